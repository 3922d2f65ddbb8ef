//! The topologies that are known by name, and any other.
use super::{Arc, Error, Kind, Move, Part, Result, Token, Topology};

const BLANK: Part = Part { column: 0, labels: 0 };
const LABEL: Part = Part { column: 1, labels: 0 };

impl Topology {
    /// A blank of one frame, and a label.
    fn two(kind: Kind, label: Arc, label_parts: Vec<Part>) -> Self {
        let moves = vec![
            Move { token: 0, arc: Arc::blank(1), parts: vec![BLANK] },
            Move { token: 1, arc: label, parts: label_parts },
        ];
        Self::of(kind, vec![Token::Blank, Token::Label], 0, moves)
    }

    /// Regular RNN-T: arc 0 is blank, `(t+1, u)`, and ends the path from `(T-1, U)`; arc 1 is the next label,
    /// `(t, u+1)`. Graves 2012.
    pub fn rnnt() -> Self {
        Self::two(Kind::Regular, Arc { frames: 0, labels: 1, may_end: false }, vec![LABEL])
    }

    /// Modified RNN-T: arc 0 is blank, `(t+1, u)`; arc 1 is the next label, `(t+1, u+1)`, so that a frame emits at most
    /// one label and U may not exceed T. Either arc may end the path. The `modified` type of fast_rnnt.
    ///
    /// A model that has just emitted a label need not emit blank on the same frame, which makes repeated labels easier.
    pub fn modified() -> Self {
        Self::two(Kind::Modified, Arc { frames: 1, labels: 1, may_end: true }, vec![LABEL])
    }

    /// Constrained RNN-T: as [`modified`](Self::modified), but a label is followed by the blank of its own frame, so that
    /// its arc has the emissions `label(t,u) + blank(t,u+1)`. The `constrained` type of fast_rnnt.
    pub fn constrained() -> Self {
        let forced = Part { labels: 1, ..BLANK };
        Self::two(Kind::Constrained, Arc { frames: 1, labels: 1, may_end: true }, vec![LABEL, forced])
    }

    /// The same with big blanks, in the columns that follow, which move on several frames at once. A path ends with any blank that
    /// lands on `(T, U)` exactly.
    ///
    /// # Errors
    /// A topology with durations, or in which a label forces a blank; a duration of 0, of more than 2³² - 1, or that is
    /// there twice.
    pub fn with_big_blanks(mut self, durations: &[usize]) -> Result<Self> {
        once(durations)?;
        if durations.contains(&0) {
            return Err(Error::Duration { expected: "at least 1 frame", found: 0 });
        }
        if !self.is_plain() {
            return Err(Error::BigBlanks { topology: self.to_string() });
        }
        let before = self.tokens.iter().filter(|token| matches!(token, Token::BigBlank(_))).count();
        for (k, &frames) in durations.iter().enumerate() {
            let token = self.tokens.len();
            self.tokens.push(Token::BigBlank(before + k));
            let parts = vec![Part { column: token, labels: 0 }];
            self.moves.push(Move { token, arc: Arc::blank(frames), parts });
        }
        let all = Self::of(self.kind, self.tokens, 0, self.moves);
        near(&all.arcs)?;
        Ok(all)
    }

    /// Multi-blank: [regular](Self::rnnt) RNN-T [with big blanks](Self::with_big_blanks) (Xu et al., arXiv 2211.03541).
    ///
    /// # Errors
    /// A duration of 0, of more than 2³² - 1, or that is there twice.
    pub fn multi_blank(durations: &[usize]) -> Result<Self> {
        Self::rnnt().with_big_blanks(durations)
    }

    /// Token-and-duration transducer (Xu et al., arXiv 2304.06795): a token, blank or label, moves on by a duration that
    /// has a distribution of its own. Columns are blank, label and the durations, in their order; an arc has the sum of its
    /// two. A blank needs a duration of at least 1 and may end the path; a label may not.
    ///
    /// # Errors
    /// No duration of at least 1, with which every path ends; one of more than 2³² - 1, or that is there twice.
    pub fn tdt(durations: &[usize]) -> Result<Self> {
        once(durations)?;
        let part = |at: usize| Part { column: 2 + at, labels: 0 };
        let each = || durations.iter().copied().enumerate();
        let blanks = each().filter(|(_, frames)| *frames > 0);
        let blanks = blanks.map(|(at, frames)| Move {
            token: 0,
            arc: Arc::blank(frames),
            parts: vec![BLANK, part(at)],
        });
        let labels = each().map(|(at, frames)| Move {
            token: 1,
            arc: Arc { frames, labels: 1, may_end: false },
            parts: vec![LABEL, part(at)],
        });
        let tokens = vec![Token::Blank, Token::Label];
        let all = Self::of(Kind::Tdt, tokens, durations.len(), blanks.chain(labels).collect());
        near(&all.arcs)?;
        if all.arcs.iter().any(|arc| arc.may_end) { Ok(all) } else { Err(Error::NoEnd) }
    }

    /// Any arcs, in the order of the emission columns; the first that emits nothing is the blank, and others are big ones.
    ///
    /// # Errors
    /// No arc; an arc that stays where it is, or moves on by more than 2³² - 1.
    pub fn new(arcs: Vec<Arc>) -> Result<Self> {
        if arcs.is_empty() {
            return Err(Error::NoArcs);
        }
        near(&arcs)?;
        if let Some(arc) = arcs.iter().position(|arc| arc.frames + arc.labels == 0) {
            return Err(Error::Loop { arc });
        }
        let mut blanks = [Token::Blank].into_iter().chain((0..).map(Token::BigBlank));
        let mut token = |arc: &Arc| match arc.labels {
            0 => blanks.next().expect("there are as many as one likes"),
            _ => Token::Label,
        };
        let tokens = arcs.iter().map(&mut token).collect();
        let moves = arcs.into_iter().enumerate();
        let moves =
            moves.map(|(at, arc)| Move { token: at, arc, parts: vec![Part { column: at, labels: 0 }] });
        Ok(Self::of(Kind::Custom, tokens, 0, moves.collect()))
    }
}

/// Fails if a duration is there twice.
fn once(durations: &[usize]) -> Result<()> {
    match (1..durations.len()).find(|&at| durations[..at].contains(&durations[at])) {
        Some(at) => Err(Error::Duration { expected: "each once", found: durations[at] }),
        None => Ok(()),
    }
}

/// Fails if places that arcs lead to could not be counted.
fn near(arcs: &[Arc]) -> Result<()> {
    match arcs.iter().position(|arc| arc.frames.max(arc.labels) > u32::MAX as usize) {
        Some(arc) => Err(Error::Far { arc, frames: arcs[arc].frames, labels: arcs[arc].labels }),
        None => Ok(()),
    }
}
