//! Transducer topologies: which arcs leave a lattice site, and their emissions.
//!
//! A site is a lattice node (t, u): frame and label position; a column is one of the S
//! log-probabilities of a site (blank, label, big blanks, durations). Losses, pruning, search and
//! recipes share this description.
mod constructors;
mod name;

use crate::{Error, Lattices, Result, Site};

/// An arc of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyArc {
    /// Frames that the arc consumes.
    pub frames: usize,
    /// Labels that the arc emits.
    pub labels: usize,
    /// Whether the arc may end a path by leading exactly to `(T, U)`.
    ///
    /// T: frames, U: labels of the utterance.
    pub may_end: bool,
}

impl TopologyArc {
    const fn blank(frames: usize) -> Self {
        Self { frames, labels: 0, may_end: true }
    }
}

/// Role of a model class in the lattice.
///
/// Each token has a column, and all of its arcs emit the same number of labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The blank.
    Blank,
    /// The next label or labels.
    Label,
    /// The big blank with this index.
    BigBlank(usize),
}

/// A term of an arc's emission: a column at the source site or at a later label position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmissionTerm {
    /// Index of the column.
    pub column: usize,
    /// Label positions from the source site to the site of the column.
    pub label_offset: usize,
}

/// The rule by which blank and label advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyKind {
    /// [`Topology::rnnt`]
    Regular,
    /// [`Topology::modified`]
    Modified,
    /// [`Topology::constrained`]
    Constrained,
    /// [`Topology::tdt`]
    Tdt,
    /// [`Topology::new`]
    Custom,
}

/// A token's arc and the terms of its emission.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TokenArc {
    /// Index of the token and of its column.
    token: usize,
    arc: TopologyArc,
    /// The token's own column comes first.
    terms: Vec<EmissionTerm>,
}

/// The arcs of a transducer and their emission columns.
///
/// | topology | name | columns | arcs |
/// |---|---|---|---|
/// | [`rnnt`](Self::rnnt), the default | `regular` | blank, label | one per column |
/// | [`modified`](Self::modified) | `modified` | blank, label | one per column |
/// | [`constrained`](Self::constrained) | `constrained` | blank, label | one per column |
/// | [`with_big_blanks`](Self::with_big_blanks) | `regular+2,4`, `modified+2,4` | blank, label, big blanks | one per column |
/// | [`tdt`](Self::tdt) | `tdt:0,1,2` | blank, label, durations | one per token and duration |
/// | [`new`](Self::new) | none | any | one per column |
///
/// Topologies implement `FromStr` and `Display`:
///
/// ```
/// use rnnt_dp::Topology;
/// let topology: Topology = "modified+2,4".parse()?;
/// assert_eq!(topology, Topology::modified().with_big_blanks(&[2, 4])?);
/// assert_eq!(topology.to_string(), "modified+2,4");
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    kind: TopologyKind,
    tokens: Vec<Token>,
    /// Number of duration columns, which follow the token columns.
    durations: usize,
    /// The arcs of `token_arcs`, for the recursions.
    arcs: Vec<TopologyArc>,
    token_arcs: Vec<TokenArc>,
}

/// Target of an arc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArcTarget {
    /// The site with this index inside its utterance.
    Site(usize),
    /// The end of the path.
    End,
    /// Outside the lattice: the arc does not exist.
    Outside,
}

impl Default for Topology {
    fn default() -> Self {
        Self::rnnt()
    }
}

impl Topology {
    fn from_token_arcs(
        kind: TopologyKind,
        tokens: Vec<Token>,
        durations: usize,
        token_arcs: Vec<TokenArc>,
    ) -> Self {
        let arcs = token_arcs.iter().map(|token_arc| token_arc.arc).collect();
        Self { kind, tokens, durations, arcs, token_arcs }
    }

    /// The rule by which blank and label advance; big blanks are extra.
    pub fn kind(&self) -> TopologyKind {
        self.kind
    }

    /// The arcs.
    pub fn arcs(&self) -> &[TopologyArc] {
        &self.arcs
    }

    /// S, the number of columns of the emissions.
    pub fn num_columns(&self) -> usize {
        self.tokens.len() + self.durations
    }

    /// Number of token columns, which come first; duration columns follow.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// The token of each token column.
    pub fn token_list(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the column of a token, if the topology has it.
    ///
    /// [`Topology::new`] may have several columns that emit labels; the first is returned.
    pub fn token_column(&self, token: Token) -> Option<usize> {
        self.tokens.iter().position(|&other| other == token)
    }

    /// Number of duration columns.
    pub fn num_durations(&self) -> usize {
        self.durations
    }

    /// Returns the token column of an arc.
    ///
    /// In all named topologies, arcs that emit a label have column 1.
    ///
    /// # Panics
    /// Here and below: if the arc does not exist.
    pub fn arc_token(&self, arc: usize) -> usize {
        self.token_arcs[arc].token
    }

    /// Returns the terms of an arc's emission, the token's column first.
    pub fn emission_terms(&self, arc: usize) -> &[EmissionTerm] {
        &self.token_arcs[arc].terms
    }

    /// Iterates over the arcs of a token column.
    pub(crate) fn arcs_of_token(&self, token: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.token_arcs.len()).filter(move |&arc| self.token_arcs[arc].token == token)
    }

    /// Returns the frames that a token consumes; none if a duration decides.
    pub fn token_frames(&self, token: usize) -> Option<usize> {
        match self.durations {
            0 => self.arcs_of_token(token).next().map(|arc| self.arcs[arc].frames),
            _ => None,
        }
    }

    /// Returns the arc of a token and a duration index, if any.
    pub fn duration_arc(&self, token: usize, duration: usize) -> Option<usize> {
        let column = self.tokens.len() + duration;
        self.arcs_of_token(token)
            .find(|&arc| self.emission_terms(arc).iter().any(|term| term.column == column))
    }

    /// Returns true if the arcs of a column emit labels.
    pub(crate) fn emits(&self, column: usize) -> bool {
        self.tokens.get(column) == Some(&Token::Label)
    }

    /// Returns true if the emission of each arc is its own column.
    pub fn is_plain(&self) -> bool {
        self.durations == 0 && self.token_arcs.iter().all(|token_arc| token_arc.terms.len() == 1)
    }

    /// Returns the target of an arc from a site.
    pub(crate) fn arc_target(
        &self,
        arc: usize,
        from: Site,
        lattices: &Lattices,
        utterance: usize,
    ) -> ArcTarget {
        let arc = self.arcs[arc];
        let to = Site { frame: from.frame + arc.frames, label: from.label + arc.labels };
        let end = Site { frame: lattices.num_frames(utterance), label: lattices.num_labels(utterance) };
        match lattices.site_index(utterance, to) {
            Some(site) => ArcTarget::Site(site),
            None if to == end && arc.may_end => ArcTarget::End,
            None => ArcTarget::Outside,
        }
    }
}
