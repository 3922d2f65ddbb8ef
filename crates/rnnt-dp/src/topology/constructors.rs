//! Constructors of transducer topologies: regular, modified, constrained, big blanks, TDT, custom.
//!
//! (t, u) is a site: frame t and label position u of an utterance with T frames and U labels. A
//! column is one of the log-probabilities of a site; an arc's emission is the sum of its terms.
use super::{EmissionTerm, Error, Result, Token, TokenArc, Topology, TopologyArc, TopologyKind};

/// The blank's column at the source site.
const BLANK: EmissionTerm = EmissionTerm { column: 0, label_offset: 0 };
/// The label's column at the source site.
const LABEL: EmissionTerm = EmissionTerm { column: 1, label_offset: 0 };
/// Number of duration columns of a topology without durations.
const NO_DURATIONS: usize = 0;

impl Topology {
    /// A topology of a blank of one frame and a label.
    fn blank_and_label(kind: TopologyKind, label: TopologyArc, label_terms: Vec<EmissionTerm>) -> Self {
        let token_arcs = vec![
            TokenArc { token: 0, arc: TopologyArc::blank(1), terms: vec![BLANK] },
            TokenArc { token: 1, arc: label, terms: label_terms },
        ];
        Self::from_token_arcs(kind, vec![Token::Blank, Token::Label], NO_DURATIONS, token_arcs)
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
        // The blank of the context with the label.
        let forced_blank = EmissionTerm { label_offset: 1, ..BLANK };
        Self::blank_and_label(
            TopologyKind::Constrained,
            TopologyArc { frames: 1, labels: 1, may_end: true },
            vec![LABEL, forced_blank],
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
        let existing = self.tokens.iter().filter(|token| matches!(token, Token::BigBlank(_))).count();
        for (index, &frames) in durations.iter().enumerate() {
            let token = self.tokens.len();
            self.tokens.push(Token::BigBlank(existing + index));
            let terms = vec![EmissionTerm { column: token, label_offset: 0 }];
            self.token_arcs.push(TokenArc { token, arc: TopologyArc::blank(frames), terms });
        }
        let topology = Self::from_token_arcs(self.kind, self.tokens, NO_DURATIONS, self.token_arcs);
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
        // Durations follow the columns of blank and label.
        let duration_term = |duration: usize| EmissionTerm { column: 2 + duration, label_offset: 0 };
        let indexed_durations = || durations.iter().copied().enumerate();
        let blanks = indexed_durations().filter(|(_, frames)| *frames > 0);
        let blanks = blanks.map(|(duration, frames)| TokenArc {
            token: 0,
            arc: TopologyArc::blank(frames),
            terms: vec![BLANK, duration_term(duration)],
        });
        let labels = indexed_durations().map(|(duration, frames)| TokenArc {
            token: 1,
            arc: TopologyArc { frames, labels: 1, may_end: false },
            terms: vec![LABEL, duration_term(duration)],
        });
        let tokens = vec![Token::Blank, Token::Label];
        let token_arcs = blanks.chain(labels).collect();
        let topology = Self::from_token_arcs(TopologyKind::Tdt, tokens, durations.len(), token_arcs);
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
        let token_arcs = arcs.into_iter().enumerate();
        let token_arcs = token_arcs.map(|(column, arc)| TokenArc {
            token: column,
            arc,
            terms: vec![EmissionTerm { column, label_offset: 0 }],
        });
        Ok(Self::from_token_arcs(TopologyKind::Custom, tokens, NO_DURATIONS, token_arcs.collect()))
    }
}

/// Fails if a duration is repeated.
fn expect_distinct(durations: &[usize]) -> Result<()> {
    match (1..durations.len()).find(|&index| durations[..index].contains(&durations[index])) {
        Some(index) => Err(Error::Duration { expected: "distinct durations", found: durations[index] }),
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
