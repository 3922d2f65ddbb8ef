//! Constructors of topologies: regular, modified, constrained, big blanks, TDT, custom.
use super::{EmissionTerm, Error, Move, Result, Token, Topology, TopologyArc, TopologyKind};

/// The blank's column at the source site; `LABEL` is the label's.
const BLANK: EmissionTerm = EmissionTerm { column: 0, labels: 0 };
const LABEL: EmissionTerm = EmissionTerm { column: 1, labels: 0 };

impl Topology {
    /// A topology of a blank of one frame and a label.
    fn blank_and_label(kind: TopologyKind, label: TopologyArc, label_terms: Vec<EmissionTerm>) -> Self {
        let moves = vec![
            Move { token: 0, arc: TopologyArc::blank(1), terms: vec![BLANK] },
            Move { token: 1, arc: label, terms: label_terms },
        ];
        Self::from_moves(kind, vec![Token::Blank, Token::Label], 0, moves)
    }

    /// Regular RNN-T (Graves 2012).
    ///
    /// Arc 0 is the blank, to `(t+1, u)`; it ends the path from `(T-1, U)`. Arc 1 is the next
    /// label, to `(t, u+1)`.
    pub fn rnnt() -> Self {
        Self::blank_and_label(
            TopologyKind::Regular,
            TopologyArc { frames: 0, labels: 1, may_end: false },
            vec![LABEL],
        )
    }

    /// Modified RNN-T: at most one label per frame. The `modified` type of fast_rnnt.
    ///
    /// Arc 0 is the blank, to `(t+1, u)`; arc 1 is the next label, to `(t+1, u+1)`, so U may not
    /// exceed T. Either arc may end the path. After a label the model need not emit a blank on the
    /// same frame, which makes repeated labels easier.
    pub fn modified() -> Self {
        Self::blank_and_label(
            TopologyKind::Modified,
            TopologyArc { frames: 1, labels: 1, may_end: true },
            vec![LABEL],
        )
    }

    /// Constrained RNN-T: modified RNN-T with a forced blank. The `constrained` type of fast_rnnt.
    ///
    /// A label is followed by the blank of the same frame: its arc has the emission
    /// `label(t,u) + blank(t,u+1)`. See [`modified`](Self::modified).
    pub fn constrained() -> Self {
        let forced = EmissionTerm { labels: 1, ..BLANK };
        Self::blank_and_label(
            TopologyKind::Constrained,
            TopologyArc { frames: 1, labels: 1, may_end: true },
            vec![LABEL, forced],
        )
    }

    /// Adds big blanks, which consume several frames, as the columns that follow.
    ///
    /// A path may end with any blank that leads exactly to `(T, U)`.
    ///
    /// # Errors
    /// A topology with durations, or in which a label forces a blank; a duration of 0 or more than
    /// 2³² - 1; a repeated duration.
    pub fn with_big_blanks(mut self, durations: &[usize]) -> Result<Self> {
        expect_distinct(durations)?;
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
            let terms = vec![EmissionTerm { column: token, labels: 0 }];
            self.moves.push(Move { token, arc: TopologyArc::blank(frames), terms });
        }
        let topology = Self::from_moves(self.kind, self.tokens, 0, self.moves);
        check_spans(&topology.arcs)?;
        Ok(topology)
    }

    /// Multi-blank: [regular](Self::rnnt) RNN-T [with big blanks](Self::with_big_blanks) (Xu et
    /// al., arXiv 2211.03541).
    ///
    /// # Errors
    /// A duration of 0 or more than 2³² - 1; a repeated duration.
    pub fn multi_blank(durations: &[usize]) -> Result<Self> {
        Self::rnnt().with_big_blanks(durations)
    }

    /// Token-and-duration transducer (Xu et al., arXiv 2304.06795).
    ///
    /// A token, blank or label, consumes a duration that has a separate distribution. The columns
    /// are blank, label and the durations in their order; the emission of an arc is the sum of its
    /// two columns. A blank needs a duration of at least 1 and may end the path; a label may not.
    ///
    /// # Errors
    /// No duration of at least 1, which every path needs to end; a duration of more than 2³² - 1; a
    /// repeated duration.
    pub fn tdt(durations: &[usize]) -> Result<Self> {
        expect_distinct(durations)?;
        let term = |at: usize| EmissionTerm { column: 2 + at, labels: 0 };
        let indexed = || durations.iter().copied().enumerate();
        let blanks = indexed().filter(|(_, frames)| *frames > 0);
        let blanks = blanks.map(|(at, frames)| Move {
            token: 0,
            arc: TopologyArc::blank(frames),
            terms: vec![BLANK, term(at)],
        });
        let labels = indexed().map(|(at, frames)| Move {
            token: 1,
            arc: TopologyArc { frames, labels: 1, may_end: false },
            terms: vec![LABEL, term(at)],
        });
        let tokens = vec![Token::Blank, Token::Label];
        let moves = blanks.chain(labels).collect();
        let topology = Self::from_moves(TopologyKind::Tdt, tokens, durations.len(), moves);
        check_spans(&topology.arcs)?;
        if topology.arcs.iter().any(|arc| arc.may_end) { Ok(topology) } else { Err(Error::NoFinalDuration) }
    }

    /// A custom topology, with one emission column for each arc.
    ///
    /// The first arc that emits nothing is the blank; others are big blanks.
    ///
    /// # Errors
    /// No arc; an arc that consumes and emits nothing, or more than 2³² - 1.
    pub fn new(arcs: Vec<TopologyArc>) -> Result<Self> {
        if arcs.is_empty() {
            return Err(Error::NoArcs);
        }
        check_spans(&arcs)?;
        if let Some(arc) = arcs.iter().position(|arc| arc.frames + arc.labels == 0) {
            return Err(Error::SelfLoop { arc });
        }
        let mut blanks = [Token::Blank].into_iter().chain((0..).map(Token::BigBlank));
        let mut token = |arc: &TopologyArc| match arc.labels {
            0 => blanks.next().expect("the iterator is infinite"),
            _ => Token::Label,
        };
        let tokens = arcs.iter().map(&mut token).collect();
        let moves = arcs.into_iter().enumerate();
        let moves = moves.map(|(at, arc)| Move {
            token: at,
            arc,
            terms: vec![EmissionTerm { column: at, labels: 0 }],
        });
        Ok(Self::from_moves(TopologyKind::Custom, tokens, 0, moves.collect()))
    }
}

/// Fails if a duration is repeated.
fn expect_distinct(durations: &[usize]) -> Result<()> {
    match (1..durations.len()).find(|&at| durations[..at].contains(&durations[at])) {
        Some(at) => Err(Error::Duration { expected: "distinct durations", found: durations[at] }),
        None => Ok(()),
    }
}

/// Fails if target indices of an arc could overflow.
fn check_spans(arcs: &[TopologyArc]) -> Result<()> {
    match arcs.iter().position(|arc| arc.frames.max(arc.labels) > u32::MAX as usize) {
        Some(arc) => Err(Error::ArcTooLong { arc, frames: arcs[arc].frames, labels: arcs[arc].labels }),
        None => Ok(()),
    }
}
