//! Buffers with values for each site, which a loss session reuses.
//!
//! A site is a lattice node (t, u), or a frame for CTC. A call takes vectors from [`SiteBuffers`],
//! and returns them at its end.
use kernels::{ReusableBuffer, ScratchReq};
use panda_core::Selection;

/// Vectors that no call uses at present.
#[derive(Debug, Default)]
pub(crate) struct SiteBuffers {
    /// Adjoints of the columns, followed by scratch memory.
    pub site_values: Vec<f64>,
    /// Selection of each head.
    pub selections: Vec<Selection>,
    /// Row indices of the sites.
    pub indices: RowIndices,
}

/// Row indices of the sites, and keys of their dropout masks; unused lists are empty.
#[derive(Debug, Default)]
pub(crate) struct RowIndices {
    /// Frame row (joint network) or hidden row of each site; for scores the site of each row.
    pub rows: Vec<u32>,
    /// Label row of each site of a joint network.
    pub label_rows: Vec<u32>,
    /// Key of the dropout mask of each site.
    pub mask_keys: Vec<u64>,
}

impl SiteBuffers {
    /// Allocated memory: site values; ids and masks of the selections; indices.
    fn allocated_by_buffer(&self) -> [ScratchReq; 6] {
        let Self { site_values, selections, indices: RowIndices { rows, label_rows, mask_keys } } = self;
        let selected: usize = selections.iter().map(Selection::capacity).sum();
        [
            site_values.allocated(),
            ScratchReq::new::<u32>(selected),
            ScratchReq::new::<bool>(selected),
            rows.allocated(),
            label_rows.allocated(),
            mask_keys.allocated(),
        ]
    }

    /// Frees everything if more than `unused_bytes` bytes exceed a call's needs.
    pub(crate) fn keep_within(&mut self, needed: [ScratchReq; 6], unused_bytes: usize) {
        let pairs = self.allocated_by_buffer().into_iter().zip(needed);
        let excess: usize =
            pairs.map(|(current, needed)| current.bytes().saturating_sub(needed.bytes())).sum();
        if excess > unused_bytes {
            *self = Self::default();
        }
    }

    /// Takes the vectors of the last selection of a head.
    pub(crate) fn take_selection(&mut self, head: usize) -> Selection {
        self.selections.get_mut(head).map(std::mem::take).unwrap_or_default()
    }

    /// Returns the vectors of a selection.
    pub(crate) fn put_selection(&mut self, head: usize, selection: Selection) {
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

/// Splits off the first `count` values of a buffer.
pub(crate) fn take_front<'a>(buffer: &mut &'a mut [f64], count: usize) -> &'a mut [f64] {
    buffer.split_off_mut(..count).expect("all numbers of a site were counted")
}
