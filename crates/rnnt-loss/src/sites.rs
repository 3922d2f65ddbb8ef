//! Sites of a group of utterances, whatever their hidden rows are made of.
use panda_core::Real;
use panda_core::Sites;

use crate::{compact::Lists, joint_sites::JointSites, row_sites::RowSites};

/// One type for the engine, which is compiled once.
pub(crate) enum GroupSites<'a, F> {
    Joint(JointSites<'a, F>),
    Rows(RowSites<'a, F>),
}

macro_rules! each {
    ($self:ident, $sites:ident => $what:expr) => {
        match $self {
            Self::Joint($sites) => $what,
            Self::Rows($sites) => $what,
        }
    };
}

impl<F: Real> GroupSites<'_, F> {
    /// A bound on the slope of a hidden unit by what it was made of.
    pub fn steepest(&self) -> f64 {
        match self {
            Self::Joint(sites) => sites.steepest(),
            Self::Rows(_) => 1.0,
        }
    }

    /// The lists of rows, to be filled anew.
    pub fn into_lists(self) -> Lists {
        each!(self, sites => sites.into_lists())
    }
}

impl<F: Real> Sites<F> for GroupSites<'_, F> {
    type Gradient = Vec<Vec<F>>;

    fn len(&self) -> usize {
        each!(self, sites => sites.len())
    }

    fn width(&self) -> usize {
        each!(self, sites => sites.width())
    }

    fn largest(&self) -> f64 {
        each!(self, sites => sites.largest())
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        each!(self, all => all.fill(sites, hidden));
    }

    fn pull_back(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        each!(self, all => all.pull_back(sites, hidden, gradient));
    }

    fn zero_gradient(&self) -> Vec<Vec<F>> {
        each!(self, sites => sites.zero_gradient())
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut Vec<Vec<F>>) {
        each!(self, all => all.scatter(sites, gradient, into));
    }
}
