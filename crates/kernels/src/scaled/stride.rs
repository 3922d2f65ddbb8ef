//! Where neighbours on a diagonal of a row-major matrix lie: (t, u) and (t - 1, u + 1) are equally far apart.

/// Where the sites of a diagonal are in a row-major matrix: at `first`, `first - back`, `first - 2 back`, ...
#[derive(Debug, Clone, Copy)]
pub struct Stride {
    /// Place of the first one.
    pub first: usize,
    /// From one to the next.
    pub back: usize,
}

impl Stride {
    /// Whether `sites` sites of `arcs` numbers are among the first `len` numbers.
    pub(super) fn inside(self, arcs: usize, sites: usize, len: usize) -> bool {
        let reach = sites.saturating_sub(1).checked_mul(self.back);
        reach.is_some_and(|reach| reach <= self.first)
            && self.first.checked_add(arcs).is_some_and(|end| end <= len)
    }
}

/// The sites of diagonal d from the label `low` on.
pub fn stride(d: usize, low: usize, labels: usize, arcs: usize) -> Stride {
    Stride { first: ((d - low) * (labels + 1) + low) * arcs, back: labels * arcs }
}
