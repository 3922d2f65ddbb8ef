//! `TokenTable`: blanks of a transducer, and the frames that each class advances.
//!
//! Searches use it to classify a class as blank or label, and to find the next frame. The numbers
//! of frames come from the topology of the loss (crate `rnnt-dp`): all labels advance alike, each
//! big blank by a fixed number, and labels and blank of a token-and-duration transducer (TDT) by
//! the duration that the search selects.
use rnnt_dp::{Token, Topology};

use crate::{Error, Result};

/// Blanks among the classes, and the frames that each class advances.
///
/// Every class that is not a blank is a label.
#[derive(Debug, Clone)]
pub struct TokenTable {
    /// Number of classes.
    classes: usize,
    /// Class id of the blank.
    blank: u32,
    /// Class ids of the big blanks.
    big_blanks: Vec<u32>,
    /// Frames of each duration of a TDT; empty for other transducers.
    durations: Vec<usize>,
    blank_advance: FrameAdvance,
    /// The same for all labels.
    label_advance: FrameAdvance,
    /// In the order of `big_blanks`.
    big_blank_advances: Vec<FrameAdvance>,
}

/// Frames that a class advances.
#[derive(Debug, Clone)]
enum FrameAdvance {
    /// The same number, independent of the duration.
    Fixed(usize),
    /// Frames for each duration, by its index.
    PerDuration(Vec<usize>),
}

impl TokenTable {
    /// Creates the table of `classes` classes with the advances of a topology.
    ///
    /// `big_blanks` are the class ids of the topology's big blanks, in order.
    ///
    /// # Errors
    /// [`Error::Blank`], [`Error::BigBlank`] or [`Error::BigBlanks`] unless every blank is a
    /// distinct class; [`Error::Topology`] unless the topology has a blank and one token for
    /// labels.
    pub fn new(classes: usize, blank: u32, big_blanks: &[u32], topology: &Topology) -> Result<Self> {
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        if let Some(&class) = big_blanks.iter().find(|&&class| class as usize >= classes || class == blank) {
            return Err(Error::BigBlank { class, classes });
        }
        let is_big_blank = |token: &&Token| matches!(token, Token::BigBlank(_));
        let big_blank_count = topology.token_list().iter().filter(is_big_blank).count();
        if big_blank_count != big_blanks.len() {
            return Err(Error::BigBlanks { expected: big_blank_count, found: big_blanks.len() });
        }
        // `None` for a token that the topology does not have.
        let token_advance = |token| {
            let column = topology.token_column(token)?;
            Some(match topology.token_frames(column) {
                Some(frames) => FrameAdvance::Fixed(frames),
                None => {
                    // A blank of duration 0 advances by one frame.
                    let duration_frames = |index| {
                        topology.duration_arc(column, index).map_or(1, |arc| topology.arcs()[arc].frames)
                    };
                    FrameAdvance::PerDuration((0..topology.num_durations()).map(duration_frames).collect())
                }
            })
        };
        let big_blank_advances =
            (0..big_blank_count).map(|k| token_advance(Token::BigBlank(k))).collect::<Option<Vec<_>>>();
        // The tokens are blank, label and big blanks; an arc emits at most one label.
        let is_supported =
            topology.num_tokens() == 2 + big_blank_count && topology.arcs().iter().all(|arc| arc.labels <= 1);
        match (token_advance(Token::Blank), token_advance(Token::Label), big_blank_advances) {
            (Some(blank_advance), Some(label_advance), Some(big_blank_advances)) if is_supported => {
                let durations = match &label_advance {
                    FrameAdvance::Fixed(_) => Vec::new(),
                    FrameAdvance::PerDuration(frames) => frames.clone(),
                };
                let big_blanks = big_blanks.to_vec();
                Ok(TokenTable {
                    classes,
                    blank,
                    big_blanks,
                    durations,
                    blank_advance,
                    label_advance,
                    big_blank_advances,
                })
            }
            _ => Err(Error::Topology { found: topology.clone() }),
        }
    }

    /// Number of classes C, blanks included.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Class id of the blank.
    pub fn blank(&self) -> u32 {
        self.blank
    }

    /// Number of durations D; 0 except for a TDT.
    pub fn durations(&self) -> usize {
        self.durations.len()
    }

    /// Frames of the duration of an index; 0 for an unknown index.
    pub fn duration(&self, index: usize) -> usize {
        self.durations.get(index).copied().unwrap_or(0)
    }

    /// Class ids of the blank and of the big blanks.
    pub fn blanks(&self) -> impl Iterator<Item = u32> + '_ {
        [self.blank].into_iter().chain(self.big_blanks.iter().copied())
    }

    /// Returns whether a class is the blank or a big blank.
    pub fn is_blank(&self, class: u32) -> bool {
        class == self.blank || self.big_blanks.contains(&class)
    }

    /// Frames that a class advances with a duration.
    ///
    /// `duration` is an index; it is ignored if the class has no durations.
    pub fn frame_advance(&self, class: u32, duration: usize) -> usize {
        match self.class_advance(class) {
            FrameAdvance::Fixed(frames) => *frames,
            FrameAdvance::PerDuration(frames) => frames[duration],
        }
    }

    /// Words that identify the table in a model's fingerprint.
    ///
    /// Different tables have different words. Stored streams contain the fingerprint: another
    /// encoding would make them invalid.
    pub(crate) fn fingerprint_words(&self) -> Vec<u32> {
        let mut words = vec![self.classes as u32, self.blank, self.durations.len() as u32];
        words.extend(&self.big_blanks);
        for advance in self.big_blank_advances.iter().chain([&self.blank_advance, &self.label_advance]) {
            match advance {
                FrameAdvance::Fixed(frames) => words.push(*frames as u32),
                FrameAdvance::PerDuration(frames) => words.extend(frames.iter().map(|&frames| frames as u32)),
            }
        }
        words
    }

    /// Most frames that a blank advances; 1 without big blanks and durations.
    pub(crate) fn max_blank_frames(&self) -> usize {
        let max_frames = |advance: &FrameAdvance| match advance {
            FrameAdvance::Fixed(frames) => *frames,
            FrameAdvance::PerDuration(frames) => frames.iter().copied().max().unwrap_or(1),
        };
        self.big_blank_advances.iter().chain([&self.blank_advance]).map(max_frames).fold(1, usize::max)
    }

    /// Returns the advance of a class.
    fn class_advance(&self, class: u32) -> &FrameAdvance {
        match self.big_blanks.iter().position(|&big_blank| big_blank == class) {
            Some(k) => &self.big_blank_advances[k],
            None if class == self.blank => &self.blank_advance,
            None => &self.label_advance,
        }
    }
}
