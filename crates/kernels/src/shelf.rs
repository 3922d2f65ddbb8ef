//! Buffers that stay from step to step.
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Lines, Real};

/// Buffers that nobody uses, each with its role.
type Free<F> = Mutex<Vec<(&'static str, Lines<F>)>>;

/// Where buffers lie between the steps that use them; clones are the same shelf.
///
/// Whoever takes a buffer says its role, and gets one that had this role before: the smallest that is large enough. Where all are
/// too small, the largest of them is freed for a new one. So a shelf holds as many buffers of a role as were ever in use at once, none
/// larger than was ever asked for, and steps whose sizes have been seen ask for no memory.
///
/// ```
/// let shelf = kernels::Shelf::new();
/// let mut gates = shelf.take("gates", 1000);
/// gates.fill(1.0f32);
/// drop(gates);
/// let held = shelf.bytes();
/// assert_eq!(shelf.take("gates", 600).len(), 600); // the same one, whatever is in it
/// assert_eq!(shelf.take("cells", 10).len(), 10); // another
/// assert!(shelf.bytes() > held);
/// ```
#[derive(Debug)]
pub struct Shelf<F>(Arc<Free<F>>);

impl<F> Clone for Shelf<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F> Default for Shelf<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F> Shelf<F> {
    /// An empty one.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Bytes that lie here; those in use are not counted.
    pub fn bytes(&self) -> usize {
        lock(&self.0).iter().map(|(_, lines)| lines.bytes()).sum()
    }
}

impl<F: Real> Shelf<F> {
    /// A buffer of `len` elements, whatever an earlier user left in them, until it is dropped.
    pub fn take(&self, role: &'static str, len: usize) -> Lent<F> {
        let mut lines = self.fetch(role, len).unwrap_or_default();
        lines.room(len, F::ZERO);
        Lent { lines, len, home: Some((role, self.clone())) }
    }

    /// The free buffer of a role that suits best.
    fn fetch(&self, role: &'static str, len: usize) -> Option<Lines<F>> {
        let mut free = lock(&self.0);
        // Those that are large enough, smaller ones first; then the others, larger ones first.
        let order = |(_, (_, lines)): &(usize, &(_, Lines<F>))| match lines.holds(len) {
            true => (false, lines.bytes()),
            false => (true, usize::MAX - lines.bytes()),
        };
        let of_role = free.iter().enumerate().filter(|(_, (its, _))| *its == role);
        let (best, _) = of_role.min_by_key(order)?;
        Some(free.swap_remove(best).1)
    }
}

/// A buffer from the shelf if there is one, or else one that is freed after its use.
pub fn lend<F: Real>(shelf: Option<&Shelf<F>>, role: &'static str, len: usize) -> Lent<F> {
    match shelf {
        Some(shelf) => shelf.take(role, len),
        None => {
            let mut own = Lent::default();
            own.room(len);
            own
        }
    }
}

/// A buffer that begins with a cache line, and goes back to its shelf, if it is from one, when it is dropped.
#[derive(Debug)]
pub struct Lent<F> {
    lines: Lines<F>,
    len: usize,
    home: Option<(&'static str, Shelf<F>)>,
}

impl<F> Default for Lent<F> {
    /// An empty one, of no shelf.
    fn default() -> Self {
        Self { lines: Lines::default(), len: 0, home: None }
    }
}

impl<F: Real> Lent<F> {
    /// So many elements from now on, whatever is in them.
    pub fn room(&mut self, len: usize) -> &mut [F] {
        self.len = len;
        self.lines.room(len, F::ZERO)
    }

    /// No elements from now on; the memory stays.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl<F> Deref for Lent<F> {
    type Target = [F];
    fn deref(&self) -> &[F] {
        &self.lines[..self.len]
    }
}

impl<F> DerefMut for Lent<F> {
    fn deref_mut(&mut self) -> &mut [F] {
        &mut self.lines[..self.len]
    }
}

impl<F> Drop for Lent<F> {
    fn drop(&mut self) {
        if let Some((role, Shelf(free))) = self.home.take() {
            lock(&free).push((role, std::mem::take(&mut self.lines)));
        }
    }
}

/// What a panic left behind is only ever overwritten.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_is_large_enough_is_lent() {
        let shelf = Shelf::<f32>::new();
        drop([30, 100, 50].map(|len| shelf.take("row", 10 * len)));
        let held = shelf.bytes();
        let (first, second) = (shelf.take("row", 400), shelf.take("row", 400));
        assert!(first.as_ptr() != second.as_ptr());
        assert_eq!(shelf.bytes(), 4 * (300 + 16), "that of 300 is left");
        drop((first, second));
        assert_eq!(shelf.bytes(), held);
    }

    #[test]
    fn where_all_are_too_small_the_largest_gives_way() {
        let shelf = Shelf::<f64>::new();
        drop([10, 20].map(|len| shelf.take("row", len)));
        drop(shelf.take("other", 5));
        drop(shelf.take("row", 40));
        assert_eq!(shelf.bytes(), 8 * (10 + 40 + 5 + 3 * 8));
    }

    #[test]
    fn what_is_lent_outlives_its_shelf_and_is_as_long_as_was_asked() {
        let mut row = lend(Some(&Shelf::<f32>::new()), "row", 7);
        row.fill(3.0);
        assert_eq!(*row, [3.0; 7]);
        row.clear();
        assert!(row.is_empty());
        assert_eq!(row.room(9).len(), 9);
        assert_eq!(lend::<f32>(None, "row", 4).len(), 4);
        assert!(lend::<f32>(Some(&Shelf::new()), "row", 0).is_empty());
    }
}
