//! What classes mean to a search, read from the topology.
use rnnt_dp::{Token, Topology};

use crate::{Error, Result};

/// Which classes are blanks, and how far each moves on.
#[derive(Debug, Clone)]
pub struct TokenTable {
    classes: usize,
    blank: u32,
    big_blanks: Vec<u32>,
    /// The durations, in frames.
    durations: Vec<usize>,
    of_blank: FrameAdvance,
    of_label: FrameAdvance,
    of_big_blanks: Vec<FrameAdvance>,
}

/// Frames that a token moves on.
#[derive(Debug, Clone)]
enum FrameAdvance {
    Always(usize),
    /// With each of the durations.
    By(Vec<usize>),
}

impl TokenTable {
    /// The rules of classes that move on as the tokens of a topology do.
    ///
    /// # Errors
    /// [`Error::Blank`], [`Error::BigBlank`], [`Error::BigBlanks`] or [`Error::Topology`] unless every blank is a class, and every
    /// class a token that says how far it moves on.
    pub fn new(classes: usize, blank: u32, big_blanks: &[u32], topology: &Topology) -> Result<Self> {
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        if let Some(&class) = big_blanks.iter().find(|&&class| class as usize >= classes || class == blank) {
            return Err(Error::BigBlank { class, classes });
        }
        let big = |token: &&Token| matches!(token, Token::BigBlank(_));
        let expected = topology.token_list().iter().filter(big).count();
        if expected != big_blanks.len() {
            return Err(Error::BigBlanks { expected, found: big_blanks.len() });
        }
        let of = |token| {
            let column = topology.token_column(token)?;
            Some(match topology.token_frames(column) {
                Some(frames) => FrameAdvance::Always(frames),
                None => {
                    // A blank whose duration would be 0 moves one frame on.
                    let arc =
                        |at| topology.duration_arc(column, at).map_or(1, |arc| topology.arcs()[arc].frames);
                    FrameAdvance::By((0..topology.durations()).map(arc).collect())
                }
            })
        };
        let of_big_blanks = (0..expected).map(|k| of(Token::BigBlank(k))).collect::<Option<Vec<_>>>();
        // Blank and label, and a label at a time.
        let known = topology.tokens() == 2 + expected && topology.arcs().iter().all(|arc| arc.labels <= 1);
        match (of(Token::Blank), of(Token::Label), of_big_blanks) {
            (Some(of_blank), Some(of_label), Some(of_big_blanks)) if known => {
                let durations = match &of_label {
                    FrameAdvance::Always(_) => Vec::new(),
                    FrameAdvance::By(frames) => frames.clone(),
                };
                let big_blanks = big_blanks.to_vec();
                Ok(TokenTable { classes, blank, big_blanks, durations, of_blank, of_label, of_big_blanks })
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

    /// The frames that a duration of a label stands for.
    pub fn duration(&self, index: usize) -> usize {
        self.durations.get(index).copied().unwrap_or(0)
    }

    /// The blank and the big ones.
    pub fn blanks(&self) -> impl Iterator<Item = u32> + '_ {
        [self.blank].into_iter().chain(self.big_blanks.iter().copied())
    }

    /// Whether a class is the blank or a big one.
    pub fn is_blank(&self, class: u32) -> bool {
        class == self.blank || self.big_blanks.contains(&class)
    }

    /// Frames that a class moves on with a duration, by its index (not looked at where there are none).
    pub fn frames(&self, class: u32, duration: usize) -> usize {
        match self.of(class) {
            FrameAdvance::Always(frames) => *frames,
            FrameAdvance::By(frames) => frames[duration],
        }
    }

    /// Everything as numbers, which other rules do not have.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let mut all = vec![self.classes as u32, self.blank, self.durations.len() as u32];
        all.extend(&self.big_blanks);
        for frames in self.of_big_blanks.iter().chain([&self.of_blank, &self.of_label]) {
            match frames {
                FrameAdvance::Always(frames) => all.push(*frames as u32),
                FrameAdvance::By(frames) => all.extend(frames.iter().map(|&frames| frames as u32)),
            }
        }
        all
    }

    /// The farthest that a blank goes, in frames; 1 without big blanks and durations.
    pub fn farthest(&self) -> usize {
        let far = |frames: &FrameAdvance| match frames {
            FrameAdvance::Always(frames) => *frames,
            FrameAdvance::By(frames) => frames.iter().copied().max().unwrap_or(1),
        };
        self.of_big_blanks.iter().chain([&self.of_blank]).map(far).fold(1, usize::max)
    }

    fn of(&self, class: u32) -> &FrameAdvance {
        match self.big_blanks.iter().position(|&big| big == class) {
            Some(k) => &self.of_big_blanks[k],
            None if class == self.blank => &self.of_blank,
            None => &self.of_label,
        }
    }
}
