//! Which arcs leave a site, where they land, and what their emissions are made of.
use crate::{Error, Lattices, Result, Site};

/// One kind of arc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arc {
    /// Frames that the arc moves on.
    pub frames: usize,
    /// Labels that the arc emits.
    pub labels: usize,
    /// Whether a path may end with it, by landing on `(T, U)` exactly.
    pub may_end: bool,
}

impl Arc {
    const fn blank(frames: usize) -> Self {
        Self { frames, labels: 0, may_end: true }
    }
}

/// A column that the emission of an arc is the sum of, at the site from which the arc leaves or `labels` further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub column: usize,
    pub labels: usize,
}

/// The arcs of a transducer and the columns of the emissions.
///
/// | topology | columns | arcs |
/// |---|---|---|
/// | [`rnnt`](Self::rnnt), the default | blank, label | one each |
/// | [`modified`](Self::modified), [`constrained`](Self::constrained) | blank, label | one each |
/// | [`multi_blank`](Self::multi_blank) | blank, label, big blanks | one each |
/// | [`tdt`](Self::tdt) | blank, label, durations | a token and a duration each |
/// | [`new`](Self::new) | any | one each |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    arcs: Vec<Arc>,
    /// Of each arc, its token first; none if arc `s` has column `s` to itself.
    parts: Vec<Vec<Part>>,
    columns: usize,
    /// The first columns: every arc has one of them, and no two.
    tokens: usize,
}

/// Where an arc leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    /// The site with this index inside its utterance.
    Site(usize),
    /// The end of the path.
    End,
    /// Outside of the lattice: there is no such arc.
    Nowhere,
}

impl Default for Topology {
    fn default() -> Self {
        Self::rnnt()
    }
}

impl Topology {
    fn plain(arcs: Vec<Arc>) -> Self {
        Self { columns: arcs.len(), tokens: arcs.len(), parts: Vec::new(), arcs }
    }

    /// Regular RNN-T: arc 0 is blank, `(t+1, u)`, and ends the path from `(T-1, U)`; arc 1 is the next label,
    /// `(t, u+1)`. Graves 2012.
    pub fn rnnt() -> Self {
        Self::plain(vec![Arc::blank(1), Arc { frames: 0, labels: 1, may_end: false }])
    }

    /// Modified RNN-T: arc 0 is blank, `(t+1, u)`; arc 1 is the next label, `(t+1, u+1)`, so that a frame emits at most
    /// one label and U may not exceed T. Either arc may end the path. The `modified` type of fast_rnnt.
    ///
    /// A model that has just emitted a label need not emit blank on the same frame, which makes repeated labels easier.
    pub fn modified() -> Self {
        Self::plain(vec![Arc::blank(1), Arc { frames: 1, labels: 1, may_end: true }])
    }

    /// Constrained RNN-T: as [`modified`](Self::modified), but a label is followed by the blank of its own frame, so that
    /// its arc has the emissions `label(t,u) + blank(t,u+1)`. The `constrained` type of fast_rnnt.
    pub fn constrained() -> Self {
        let here = |column| Part { column, labels: 0 };
        let parts = vec![vec![here(0)], vec![here(1), Part { column: 0, labels: 1 }]];
        Self { parts, ..Self::modified() }
    }

    /// Multi-blank: regular RNN-T and, in columns 2 .., big blanks that move on several frames at once (Xu et al.,
    /// arXiv 2211.03541). A path ends with any blank that lands on `(T, U)` exactly.
    ///
    /// # Errors
    /// A duration of 0, of more than 2³² - 1, or that is there twice.
    pub fn multi_blank(durations: &[usize]) -> Result<Self> {
        once(durations)?;
        if durations.contains(&0) {
            return Err(Error::Duration { expected: "at least 1 frame", found: 0 });
        }
        let rnnt = Self::rnnt().arcs.into_iter();
        Self::new(rnnt.chain(durations.iter().map(|&frames| Arc::blank(frames))).collect())
    }

    /// Token-and-duration transducer (Xu et al., arXiv 2304.06795): a token, blank or label, moves on by a duration that
    /// has a distribution of its own. Columns are blank, label and the durations, in their order; an arc has the sum of its
    /// two. A blank needs a duration of at least 1 and may end the path; a label may not.
    ///
    /// # Errors
    /// No duration of at least 1, with which every path ends; one of more than 2³² - 1, or that is there twice.
    pub fn tdt(durations: &[usize]) -> Result<Self> {
        once(durations)?;
        let blanks = durations.iter().enumerate().filter(|(_, frames)| **frames > 0);
        let blanks = blanks.map(|(at, &frames)| (Arc::blank(frames), 0, at));
        let labels = durations.iter().enumerate();
        let labels = labels.map(|(at, &frames)| (Arc { frames, labels: 1, may_end: false }, 1, at));
        let part = |column| Part { column, labels: 0 };
        let (arcs, parts): (Vec<_>, Vec<_>) =
            blanks.chain(labels).map(|(arc, token, at)| (arc, vec![part(token), part(2 + at)])).unzip();
        near(&arcs)?;
        match arcs.iter().any(|arc: &Arc| arc.may_end) {
            true => Ok(Self { arcs, parts, columns: 2 + durations.len(), tokens: 2 }),
            false => Err(Error::NoEnd),
        }
    }

    /// Any arcs, in the order of the emission columns.
    ///
    /// # Errors
    /// No arc; an arc that stays where it is, or moves on by more than 2³² - 1.
    pub fn new(arcs: Vec<Arc>) -> Result<Self> {
        if arcs.is_empty() {
            return Err(Error::NoArcs);
        }
        near(&arcs)?;
        match arcs.iter().position(|arc| arc.frames + arc.labels == 0) {
            Some(arc) => Err(Error::Loop { arc }),
            None => Ok(Self::plain(arcs)),
        }
    }

    /// The arcs.
    pub fn arcs(&self) -> &[Arc] {
        &self.arcs
    }

    /// S, the number of columns of the emissions.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How many columns, from the first, stand for tokens; durations follow.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The token's column of an arc: of those that emit a label, column 1 in every topology that is known here.
    pub fn token_of(&self, arc: usize) -> usize {
        self.parts.get(arc).map_or(arc, |parts| parts[0].column)
    }

    /// Whether a column is that of a token whose arcs emit labels.
    pub(crate) fn emits(&self, column: usize) -> bool {
        column < self.tokens
            && (0..self.arcs.len()).any(|arc| self.token_of(arc) == column && self.arcs[arc].labels > 0)
    }

    /// Whether arc `s` has column `s` to itself.
    pub(crate) fn is_plain(&self) -> bool {
        self.parts.is_empty()
    }

    /// The columns of an arc's emission, its token first.
    pub(crate) fn parts(&self, arc: usize) -> impl Iterator<Item = Part> {
        let own = self.is_plain().then_some(Part { column: arc, labels: 0 });
        own.into_iter().chain(self.parts.get(arc).into_iter().flatten().copied())
    }

    /// Lands an arc in a lattice.
    pub(crate) fn land(&self, arc: usize, from: Site, lattices: &Lattices, utterance: usize) -> Landing {
        let arc = self.arcs[arc];
        let to = Site { frame: from.frame + arc.frames, label: from.label + arc.labels };
        let end = Site { frame: lattices.frames(utterance), label: lattices.labels(utterance) };
        match lattices.place(utterance, to) {
            Some(site) => Landing::Site(site),
            None if to == end && arc.may_end => Landing::End,
            None => Landing::Nowhere,
        }
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
