//! Which arcs leave a site and where they land.
use crate::{Error, Result, Site};

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

/// The arcs of a transducer; arc `s` uses column `s` of the emissions.
///
/// The default is [`Topology::rnnt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    arcs: Vec<Arc>,
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
    /// Regular RNN-T: arc 0 is blank, `(t+1, u)`, and ends the path from `(T-1, U)`; arc 1 is the next label,
    /// `(t, u+1)`. Graves 2012.
    pub fn rnnt() -> Self {
        Self {
            arcs: vec![
                Arc { frames: 1, labels: 0, may_end: true },
                Arc { frames: 0, labels: 1, may_end: false },
            ],
        }
    }

    /// Modified RNN-T: arc 0 is blank, `(t+1, u)`; arc 1 is the next label, `(t+1, u+1)`, so that a frame emits at most
    /// one label and U may not exceed T. Either arc may end the path. The `modified` type of fast_rnnt.
    ///
    /// A model that has just emitted a label need not emit blank on the same frame, which makes repeated labels easier.
    pub fn modified() -> Self {
        Self {
            arcs: vec![
                Arc { frames: 1, labels: 0, may_end: true },
                Arc { frames: 1, labels: 1, may_end: true },
            ],
        }
    }

    /// Any arcs, in the order of the emission columns.
    ///
    /// # Errors
    /// No arc; an arc that stays where it is.
    pub fn new(arcs: Vec<Arc>) -> Result<Self> {
        if arcs.is_empty() {
            return Err(Error::NoArcs);
        }
        match arcs.iter().position(|arc| arc.frames + arc.labels == 0) {
            Some(arc) => Err(Error::Loop { arc }),
            None => Ok(Self { arcs }),
        }
    }

    /// The arcs, in the order of the emission columns.
    pub fn arcs(&self) -> &[Arc] {
        &self.arcs
    }

    /// Lands an arc in a lattice of `frames` x `labels`.
    pub(crate) fn land(&self, arc: usize, from: Site, frames: usize, labels: usize) -> Landing {
        let arc = self.arcs[arc];
        let to = Site { frame: from.frame + arc.frames, label: from.label + arc.labels };
        if to.label > labels || to.frame > frames {
            Landing::Nowhere
        } else if to.frame < frames {
            Landing::Site(to.frame * (labels + 1) + to.label)
        } else if to.label == labels && arc.may_end {
            Landing::End
        } else {
            Landing::Nowhere
        }
    }
}
