//! `TokenTable`: blanks of a transducer, and the frames that each class advances.
use rnnt_dp::{Token, Topology};

use crate::{Error, Result};

/// Blanks among the classes, and the frames that each class advances.
#[derive(Debug, Clone)]
pub struct TokenTable {
    classes: usize,
    blank: u32,
    big_blanks: Vec<u32>,
    /// The durations, in frames.
    durations: Vec<usize>,
    blank_advance: FrameAdvance,
    label_advance: FrameAdvance,
    big_blank_advances: Vec<FrameAdvance>,
}

/// Frames that a token advances.
#[derive(Debug, Clone)]
enum FrameAdvance {
    /// The same number in all cases.
    Fixed(usize),
    /// One entry per duration.
    PerDuration(Vec<usize>),
}

impl TokenTable {
    /// Creates the table of classes with the advances of a topology.
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
        let advance_of = |token| {
            let column = topology.token_column(token)?;
            Some(match topology.token_frames(column) {
                Some(frames) => FrameAdvance::Fixed(frames),
                None => {
                    // A blank of duration 0 advances by one frame.
                    let frames_of = |index| {
                        topology.duration_arc(column, index).map_or(1, |arc| topology.arcs()[arc].frames)
                    };
                    FrameAdvance::PerDuration((0..topology.num_durations()).map(frames_of).collect())
                }
            })
        };
        let big_blank_advances =
            (0..big_blank_count).map(|k| advance_of(Token::BigBlank(k))).collect::<Option<Vec<_>>>();
        // Blank and label, and one label per arc.
        let is_supported =
            topology.num_tokens() == 2 + big_blank_count && topology.arcs().iter().all(|arc| arc.labels <= 1);
        match (advance_of(Token::Blank), advance_of(Token::Label), big_blank_advances) {
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

    /// The blank.
    pub fn blank(&self) -> u32 {
        self.blank
    }

    /// Number of durations D.
    pub fn durations(&self) -> usize {
        self.durations.len()
    }

    /// Frames of a duration, by its index.
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

    /// Frames that a class advances with the duration of an index.
    ///
    /// The index is ignored if the class has no durations.
    pub fn frame_advance(&self, class: u32, duration: usize) -> usize {
        match self.advance_of(class) {
            FrameAdvance::Fixed(frames) => *frames,
            FrameAdvance::PerDuration(frames) => frames[duration],
        }
    }

    /// The table as numbers; different tables have different numbers.
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

    fn advance_of(&self, class: u32) -> &FrameAdvance {
        match self.big_blanks.iter().position(|&big_blank| big_blank == class) {
            Some(k) => &self.big_blank_advances[k],
            None if class == self.blank => &self.blank_advance,
            None => &self.label_advance,
        }
    }
}
