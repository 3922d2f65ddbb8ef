//! Numbers of every site of a group, in vectors that stay in the session from group to group and from step to step.
use kernels::{ReusableBuffer, ScratchReq};
use panda_core::Selection;

/// Vectors that no call uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct SiteBuffers {
    /// Adjoints of the columns, and intermediate results.
    pub numbers: Vec<f64>,
    /// Selection of each head.
    pub selections: Vec<Selection>,
    pub indices: SiteIndices,
}

/// Rows of the sites and keys of their dropout masks.
#[derive(Debug, Default)]
pub(crate) struct SiteIndices {
    pub first: Vec<u32>,
    pub second: Vec<u32>,
    pub keys: Vec<u64>,
}

impl SiteBuffers {
    /// What the vectors hold: numbers; ids and marks of the selections; indices.
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

    /// Frees everything if it exceeds what a call needs by more than `left` bytes.
    pub fn keep_within(&mut self, needed: [ScratchReq; 6], left: usize) {
        let pairs = self.held().into_iter().zip(needed);
        let excess: usize = pairs.map(|(held, needed)| held.bytes().saturating_sub(needed.bytes())).sum();
        if excess > left {
            *self = Self::default();
        }
    }

    /// Takes the vectors of a head's last selection.
    pub fn take_selection(&mut self, head: usize) -> Selection {
        self.selections.get_mut(head).map(std::mem::take).unwrap_or_default()
    }

    /// Returns them.
    pub fn put_selection(&mut self, head: usize, selection: Selection) {
        if self.selections.len() <= head {
            self.selections.resize_with(head + 1, Selection::default);
        }
        self.selections[head] = selection;
    }
}

/// An empty list with capacity for so many elements.
pub(crate) fn clear_with_capacity<T>(mut list: Vec<T>, count: usize) -> Vec<T> {
    list.clear();
    kernels::ensure_capacity(&mut list, count);
    list
}

/// Splits the first `count` numbers off.
pub(crate) fn split_front<'a>(numbers: &mut &'a mut [f64], count: usize) -> &'a mut [f64] {
    numbers.split_off_mut(..count).expect("all numbers of a site were counted")
}
