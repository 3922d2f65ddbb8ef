//! Which arcs leave a site, where they land, and what their emissions are made of: the one description that losses, pruning,
//! search and recipes read.
mod known;
mod name;

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

/// What a model's classes are to a lattice: each token has a column, and all of its arcs emit as many labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// The blank.
    Blank,
    /// The next label, or the next few.
    Label,
    /// The big blank with this index.
    BigBlank(usize),
}

/// A column that the emission of an arc is the sum of, at the site from which the arc leaves or `labels` further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Index of the column.
    pub column: usize,
    /// Label positions from the site that the arc leaves to the one whose column is meant.
    pub labels: usize,
}

/// By which rule blank and label move on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
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

/// A move of a token: an arc, and what its emission is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Move {
    /// Index of the token, which is that of its column.
    token: usize,
    arc: Arc,
    /// The token's own column first.
    parts: Vec<Part>,
}

/// The arcs of a transducer and the columns of the emissions.
///
/// | topology | name | columns | arcs |
/// |---|---|---|---|
/// | [`rnnt`](Self::rnnt), the default | `regular` | blank, label | one each |
/// | [`modified`](Self::modified) | `modified` | blank, label | one each |
/// | [`constrained`](Self::constrained) | `constrained` | blank, label | one each |
/// | [`with_big_blanks`](Self::with_big_blanks) | `regular+2,4`, `modified+2,4` | blank, label, big blanks | one each |
/// | [`tdt`](Self::tdt) | `tdt:0,1,2` | blank, label, durations | a token and a duration each |
/// | [`new`](Self::new) | none | any | one each |
///
/// Names are parsed and displayed:
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
    kind: Kind,
    tokens: Vec<Token>,
    /// How many columns follow those of the tokens.
    durations: usize,
    /// The arcs of the moves, as the recursions read them.
    arcs: Vec<Arc>,
    moves: Vec<Move>,
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
    fn of(kind: Kind, tokens: Vec<Token>, durations: usize, moves: Vec<Move>) -> Self {
        let arcs = moves.iter().map(|each| each.arc).collect();
        Self { kind, tokens, durations, arcs, moves }
    }

    /// The rule by which blank and label move on; big blanks are extra.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The arcs.
    pub fn arcs(&self) -> &[Arc] {
        &self.arcs
    }

    /// S, the number of columns of the emissions.
    pub fn columns(&self) -> usize {
        self.tokens.len() + self.durations
    }

    /// How many columns, from the first, stand for tokens; durations follow.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// What each of those columns stands for.
    pub fn token_list(&self) -> &[Token] {
        &self.tokens
    }

    /// The column of a token, if the topology has it. [`Topology::new`] may have several that emit labels: the first.
    pub fn column_of(&self, token: Token) -> Option<usize> {
        self.tokens.iter().position(|&each| each == token)
    }

    /// How many columns stand for durations.
    pub fn durations(&self) -> usize {
        self.durations
    }

    /// The token's column of an arc: of those that emit a label, column 1 in every topology that has a name.
    ///
    /// # Panics
    /// Here and below: if there is no such arc.
    pub fn token_of(&self, arc: usize) -> usize {
        self.moves[arc].token
    }

    /// The columns that the emission of an arc is the sum of, its token's first.
    pub fn parts(&self, arc: usize) -> &[Part] {
        &self.moves[arc].parts
    }

    /// The arcs of a token's column.
    pub fn arcs_of(&self, token: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.moves.len()).filter(move |&arc| self.moves[arc].token == token)
    }

    /// The frames that a token moves on; none if a duration says it.
    pub fn frames_of(&self, token: usize) -> Option<usize> {
        match self.durations {
            0 => self.arcs_of(token).next().map(|arc| self.arcs[arc].frames),
            _ => None,
        }
    }

    /// The arc of a token and the duration with this index, if the token may have it.
    pub fn arc_with(&self, token: usize, duration: usize) -> Option<usize> {
        let column = self.tokens.len() + duration;
        self.arcs_of(token).find(|&arc| self.parts(arc).iter().any(|part| part.column == column))
    }

    /// Whether a column is that of a token whose arcs emit labels.
    pub(crate) fn emits(&self, column: usize) -> bool {
        self.tokens.get(column) == Some(&Token::Label)
    }

    /// Whether arc `s` has column `s` to itself.
    pub fn is_plain(&self) -> bool {
        self.durations == 0 && self.moves.iter().all(|each| each.parts.len() == 1)
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
