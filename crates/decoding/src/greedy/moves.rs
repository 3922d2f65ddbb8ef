//! How far a class moves on, read from the topology.
use rnnt_dp::Token;

use super::best_class;
use crate::{Error, Result, Transducer};

/// Classes and moves of a model, checked.
pub(super) struct Moves<'a> {
    classes: usize,
    blank: u32,
    big_blanks: &'a [u32],
    of_blank: Frames,
    of_label: Frames,
    of_big_blanks: Vec<Frames>,
}

/// Frames that a token moves on.
enum Frames {
    Always(usize),
    /// With each of the durations, unless it never has it.
    By(Vec<Option<usize>>),
}

impl<'a> Moves<'a> {
    /// Fails unless every blank is a class, and every class a token that says how far it moves on.
    pub fn new<M: Transducer>(model: &'a M) -> Result<Self> {
        let (classes, blank, big_blanks) = (model.classes(), model.blank(), model.big_blanks());
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        if let Some(&class) = big_blanks.iter().find(|&&class| class as usize >= classes || class == blank) {
            return Err(Error::BigBlank { class, classes });
        }
        let topology = model.topology();
        let big = |token: &&Token| matches!(token, Token::BigBlank(_));
        let expected = topology.token_list().iter().filter(big).count();
        if expected != big_blanks.len() {
            return Err(Error::BigBlanks { expected, found: big_blanks.len() });
        }
        let of = |token| {
            let column = topology.column_of(token)?;
            Some(match topology.frames_of(column) {
                Some(frames) => Frames::Always(frames),
                None => {
                    let arcs = (0..topology.durations()).map(|at| topology.arc_with(column, at));
                    Frames::By(arcs.map(|arc| arc.map(|arc| topology.arcs()[arc].frames)).collect())
                }
            })
        };
        let of_big_blanks = (0..expected).map(|k| of(Token::BigBlank(k))).collect::<Option<_>>();
        // Blank and label, and a label at a time.
        let known = topology.tokens() == 2 + expected && topology.arcs().iter().all(|arc| arc.labels <= 1);
        match (of(Token::Blank), of(Token::Label), of_big_blanks) {
            (Some(of_blank), Some(of_label), Some(of_big_blanks)) if known => {
                Ok(Moves { classes, blank, big_blanks, of_blank, of_label, of_big_blanks })
            }
            _ => Err(Error::Topology { found: topology.clone() }),
        }
    }

    /// Whether a class is the blank or a big one.
    pub fn is_blank(&self, class: u32) -> bool {
        class == self.blank || self.big_blanks.contains(&class)
    }

    /// Frames that a class moves on at `frame`, where durations have these scores.
    pub fn step(&self, class: u32, scores: &[f32], frame: usize) -> Result<usize> {
        let by = match self.of(class) {
            Frames::Always(frames) => return Ok(*frames),
            Frames::By(frames) => frames,
        };
        let best = best_class(scores, frame).map_err(|error| match error {
            Error::Score { frame, class, found } => {
                Error::Score { frame, class: class + self.classes, found }
            }
            other => other,
        })?;
        // The best of those that the token has: no arc of a blank stays on its frame.
        let own = by.iter().zip(scores).filter_map(|(frames, score)| Some(((*frames)?, score)));
        let best_own = own.reduce(|best, other| if other.1 > best.1 { other } else { best });
        Ok(by[best].or(best_own.map(|(frames, _)| frames)).unwrap_or(1))
    }

    fn of(&self, class: u32) -> &Frames {
        match self.big_blanks.iter().position(|&big| big == class) {
            Some(k) => &self.of_big_blanks[k],
            None if class == self.blank => &self.of_blank,
            None => &self.of_label,
        }
    }
}
