//! How far a token moves on.
use super::best_class;
use crate::{Error, Result, Transducer};

/// Blanks and durations of a model, checked.
pub(super) struct Moves<'a> {
    classes: usize,
    blank: u32,
    big_blanks: &'a [(u32, usize)],
    durations: &'a [usize],
}

impl<'a> Moves<'a> {
    /// Fails unless every blank is a class and moves on.
    pub fn new<M: Transducer>(model: &'a M) -> Result<Self> {
        let (classes, blank) = (model.classes(), model.blank());
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        let (big_blanks, durations) = (model.big_blanks(), model.durations());
        for &(class, frames) in big_blanks {
            if class as usize >= classes || class == blank || frames == 0 {
                return Err(Error::BigBlank { class, frames, classes });
            }
        }
        if !durations.is_empty() && durations.iter().all(|&frames| frames == 0) {
            return Err(Error::Durations { found: durations.len() });
        }
        Ok(Moves { classes, blank, big_blanks, durations })
    }

    /// Whether a class is the blank or a big one.
    pub fn is_blank(&self, class: u32) -> bool {
        class == self.blank || self.of_big_blank(class).is_some()
    }

    /// Frames that a class moves on at `frame`, where durations have these scores.
    pub fn step(&self, class: u32, scores: &[f32], frame: usize) -> Result<usize> {
        if let Some(frames) = self.of_big_blank(class) {
            return Ok(frames);
        }
        let blank = class == self.blank;
        if self.durations.is_empty() {
            return Ok(usize::from(blank));
        }
        let best = best_class(scores, frame).map_err(|error| match error {
            Error::Score { frame, class, found } => {
                Error::Score { frame, class: class + self.classes, found }
            }
            other => other,
        })?;
        match self.durations[best] {
            0 if blank => Ok(self.best_above_zero(scores)),
            frames => Ok(frames),
        }
    }

    fn of_big_blank(&self, class: u32) -> Option<usize> {
        self.big_blanks.iter().find(|(big, _)| *big == class).map(|(_, frames)| *frames)
    }

    /// No arc of a blank stays on its frame.
    fn best_above_zero(&self, scores: &[f32]) -> usize {
        let above = self.durations.iter().zip(scores).filter(|(frames, _)| **frames > 0);
        let best = above.reduce(|best, other| if other.1 > best.1 { other } else { best });
        best.map_or(1, |(&frames, _)| frames)
    }
}
