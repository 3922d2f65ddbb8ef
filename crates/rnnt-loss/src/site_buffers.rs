//! Vectors with values for each site, reused from call to call.
//!
//! A site is a lattice node (t, u), or a frame for CTC.
use kernels::{ReusableBuffer, ScratchReq};
use panda_core::Selection;

/// Vectors that no call uses at present; a call takes them and returns them.
#[derive(Debug, Default)]
pub(crate) struct SiteBuffers {
    /// Adjoints of the columns, and intermediate results.
    pub numbers: Vec<f64>,
    /// Selection of each head.
    pub selections: Vec<Selection>,
    pub indices: SiteIndices,
}

/// Row indices of the sites, and keys of their dropout masks.
///
/// `first` are frame rows, hidden rows, or for scores the site of each row; `second` label rows.
#[derive(Debug, Default)]
pub(crate) struct SiteIndices {
    pub first: Vec<u32>,
    pub second: Vec<u32>,
    pub keys: Vec<u64>,
}

impl SiteBuffers {
    /// Memory of the vectors: numbers; ids and masks of the selections; indices.
    fn held(&self) -> [ScratchReq; 6] {
        let Self { numbers, selections, indices: SiteIndices { first, second, keys } } = self;
        let selected: usize = selections.iter().map(Selection::capacity).sum();
        [
            numbers.requirement(),
            ScratchReq::new::<u32>(selected),
            ScratchReq::new::<bool>(selected),
            first.requirement(),
            second.requirement(),
            keys.requirement(),
        ]
    }

    /// Frees everything if more than `left` bytes exceed a call's needs.
    pub fn keep_within(&mut self, needed: [ScratchReq; 6], left: usize) {
        let pairs = self.held().into_iter().zip(needed);
        let excess: usize = pairs.map(|(held, needed)| held.bytes().saturating_sub(needed.bytes())).sum();
        if excess > left {
            *self = Self::default();
        }
    }

    /// Takes the vectors of the last selection of a head.
    pub fn take_selection(&mut self, head: usize) -> Selection {
        self.selections.get_mut(head).map(std::mem::take).unwrap_or_default()
    }

    /// Returns the vectors of a selection.
    pub fn put_selection(&mut self, head: usize, selection: Selection) {
        if self.selections.len() <= head {
            self.selections.resize_with(head + 1, Selection::default);
        }
        self.selections[head] = selection;
    }
}

/// Clears a list and ensures a capacity.
pub(crate) fn clear_with_capacity<T>(mut list: Vec<T>, count: usize) -> Vec<T> {
    list.clear();
    kernels::ensure_capacity(&mut list, count);
    list
}

/// Splits off the first `count` numbers.
pub(crate) fn split_front<'a>(numbers: &mut &'a mut [f64], count: usize) -> &'a mut [f64] {
    numbers.split_off_mut(..count).expect("all numbers of a site were counted")
}
