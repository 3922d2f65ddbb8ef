//! Numbers of every site of a group, in vectors that stay in the session from group to group and from step to step.
use panda_core::Selection;

/// What nobody needs at the moment.
#[derive(Debug, Default)]
pub(crate) struct Compact {
    /// Adjoints of the columns, and what a loss makes of them.
    pub numbers: Vec<f64>,
    /// What each head was asked for.
    pub selections: Vec<Selection>,
    /// What hidden rows are made of.
    pub rows: Lists,
}

/// Rows of the sites and names of their masks.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub first: Vec<u32>,
    pub second: Vec<u32>,
    pub keys: Vec<u64>,
}

/// Bytes of each of the vectors: numbers; ids and marks of the selections; lists.
pub(crate) type Parts = [usize; 6];

impl Compact {
    fn parts(&self) -> Parts {
        let Self { numbers, selections, rows: Lists { first, second, keys } } = self;
        let selected: usize = selections.iter().map(Selection::capacity).sum();
        [
            8 * numbers.capacity(),
            4 * selected,
            selected,
            4 * first.capacity(),
            4 * second.capacity(),
            8 * keys.capacity(),
        ]
    }

    /// Lets go of everything if there is more of it than a call needs, by more bytes than are left to it.
    pub fn keep_within(&mut self, needed: Parts, left: usize) {
        let pairs = self.parts().into_iter().zip(needed);
        let excess: usize = pairs.map(|(held, needed)| held.saturating_sub(needed)).sum();
        if excess > left {
            *self = Self::default();
        }
    }

    /// What a head was asked for before, or nothing.
    pub fn selection(&mut self, head: usize) -> Selection {
        self.selections.get_mut(head).map(std::mem::take).unwrap_or_default()
    }

    /// Takes it back.
    pub fn keep_selection(&mut self, head: usize, selection: Selection) {
        if self.selections.len() <= head {
            self.selections.resize_with(head + 1, Selection::default);
        }
        self.selections[head] = selection;
    }
}

/// An empty list with room for so many elements.
pub(crate) fn emptied<T>(mut list: Vec<T>, count: usize) -> Vec<T> {
    list.clear();
    kernels::ensure_capacity(&mut list, count);
    list
}

/// The first so many of some numbers, which they are no longer part of.
pub(crate) fn cut<'a>(room: &mut &'a mut [f64], count: usize) -> &'a mut [f64] {
    room.split_off_mut(..count).expect("all numbers of a site were counted")
}
