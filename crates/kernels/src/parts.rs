//! Slices cut into parts, a task a part: the parallel loop of the house.
//!
//! ```text
//! par for each part:  run(number, part)
//! ```
//! It stands on rayon, whose own adaptors are compiled anew for every loop and every type in it: three quarters of the
//! normaliser's code were theirs. Here a loop costs its body.
#![allow(unsafe_code)]

use std::{marker::PhantomData, ops::Range, sync::Mutex};

use rayon::prelude::*;

/// Things that can be had one by one, each by a task of its own. Several side by side are a tuple of them, as long as the
/// shortest; what may be missing is an [`Option`], of as many parts as asked for.
///
/// # Safety
/// Parts of different numbers must not overlap where one of them can be written.
pub unsafe trait Parts: Sync {
    /// What a task gets.
    type Part;

    /// How many.
    fn count(&self) -> usize;

    /// Part number `at`.
    ///
    /// # Safety
    /// `at < self.count()`, and no number twice.
    unsafe fn part(&self, at: usize) -> Self::Part;
}

/// Calls `run(number, part)` for every part, in parallel.
///
/// # Panics
/// If all that is side by side is missing, so that nothing says how many.
///
/// ```
/// use kernels::{par_for, parts, parts_mut};
///
/// let (x, mut y) = ([1, 2, 3, 4, 5], [0; 5]);
/// par_for((parts_mut(&mut y, 2), parts(&x, 2)), |at, (y, x)| {
///     y.iter_mut().zip(x).for_each(|(y, x)| *y = 10 * at + x);
/// });
/// assert_eq!(y, [1, 2, 13, 14, 25]);
/// ```
pub fn par_for<P: Parts>(parts: P, run: impl Fn(usize, P::Part) + Sync) {
    assert!(parts.count() < usize::MAX, "parts: none of them is there");
    // SAFETY: `numbers` calls with each number below the count once, and `parts`, which is ours, ends here.
    numbers(parts.count(), &|at| run(at, unsafe { parts.part(at) }));
}

/// Runs `work` inside the rayon pool, so that nested parallel loops avoid a cross-thread wake-up.
pub fn install<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    rayon::scope(|_| work())
}

/// [`par_for`] on the thread that calls, in order: for a task that is large enough.
///
/// # Panics
/// As [`par_for`].
pub fn for_each_sequential<P: Parts>(parts: P, mut run: impl FnMut(usize, P::Part)) {
    assert!(parts.count() < usize::MAX, "parts: none of them is there");
    // SAFETY: each number below the count once, and `parts`, which is ours, ends here.
    (0..parts.count()).for_each(|at| run(at, unsafe { parts.part(at) }));
}

/// What `find(number, part)` finds in the first of the parts where it finds anything; all are looked at, in parallel.
pub fn par_find<P: Parts, T: Send>(parts: P, find: impl Fn(usize, P::Part) -> Option<T> + Sync) -> Option<T> {
    let first = Mutex::new(None);
    par_for(parts, |at, part| {
        if let Some(found) = find(at, part) {
            let mut first = first.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if first.as_ref().is_none_or(|&(before, _)| at < before) {
                *first = Some((at, found));
            }
        }
    });
    first.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map(|(_, found)| found)
}

/// The one loop that is compiled.
fn numbers(count: usize, run: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().for_each(run);
}

/// See [`parts`].
#[derive(Debug, Clone, Copy)]
pub struct SliceParts<'a, T> {
    slice: &'a [T],
    size: usize,
}

/// Parts of so many elements; the last one may be shorter.
///
/// # Panics
/// Here and below: if the size is 0.
pub fn parts<T: Sync>(slice: &[T], size: usize) -> SliceParts<'_, T> {
    assert!(size > 0, "parts: a size of 0");
    SliceParts { slice, size }
}

// SAFETY: nothing can be written.
unsafe impl<'a, T: Sync> Parts for SliceParts<'a, T> {
    type Part = &'a [T];
    fn count(&self) -> usize {
        self.slice.len().div_ceil(self.size)
    }
    unsafe fn part(&self, at: usize) -> &'a [T] {
        &self.slice[bounds(at, self.size, self.slice.len())]
    }
}

/// See [`parts_mut`].
#[derive(Debug)]
pub struct SlicePartsMut<'a, T> {
    first: *mut T,
    len: usize,
    size: usize,
    slice: PhantomData<&'a mut [T]>,
}

/// Parts of so many elements, to be written; the last one may be shorter.
pub fn parts_mut<T: Send>(slice: &mut [T], size: usize) -> SlicePartsMut<'_, T> {
    assert!(size > 0, "parts: a size of 0");
    SlicePartsMut { first: slice.as_mut_ptr(), len: slice.len(), size, slice: PhantomData }
}

// SAFETY: all that a shared one does is to hand its elements out, once each.
unsafe impl<T: Send> Sync for SlicePartsMut<'_, T> {}

// SAFETY: chunks of a slice do not overlap.
unsafe impl<'a, T: Send> Parts for SlicePartsMut<'a, T> {
    type Part = &'a mut [T];
    fn count(&self) -> usize {
        self.len.div_ceil(self.size)
    }
    unsafe fn part(&self, at: usize) -> &'a mut [T] {
        let Range { start, end } = bounds(at, self.size, self.len);
        // SAFETY: inside of a slice that was lent to us alone for 'a, and nobody else has this part of it.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(start), end - start) }
    }
}

/// See [`items_mut`].
#[derive(Debug)]
pub struct ItemsMut<'a, T>(SlicePartsMut<'a, T>);

/// One element a part, to be written.
pub fn items_mut<T: Send>(slice: &mut [T]) -> ItemsMut<'_, T> {
    ItemsMut(parts_mut(slice, 1))
}

// SAFETY: elements of a slice do not overlap.
unsafe impl<'a, T: Send> Parts for ItemsMut<'a, T> {
    type Part = &'a mut T;
    fn count(&self) -> usize {
        self.0.len
    }
    unsafe fn part(&self, at: usize) -> &'a mut T {
        // SAFETY: as for a part of one element.
        let part = unsafe { self.0.part(at) };
        &mut part[0]
    }
}

/// See [`runs`].
#[derive(Debug, Clone, Copy)]
pub struct RangeParts {
    count: usize,
    size: usize,
}

/// Numbers from 0 to below `count`, in runs of `size`; the last one may be shorter.
pub fn runs(count: usize, size: usize) -> RangeParts {
    assert!(size > 0, "runs: a size of 0");
    RangeParts { count, size }
}

// SAFETY: nothing can be written.
unsafe impl Parts for RangeParts {
    type Part = Range<usize>;
    fn count(&self) -> usize {
        self.count.div_ceil(self.size)
    }
    unsafe fn part(&self, at: usize) -> Range<usize> {
        bounds(at, self.size, self.count)
    }
}

fn bounds(at: usize, size: usize, len: usize) -> Range<usize> {
    let start = at * size;
    assert!(start < len, "parts: number {at} of {}", len.div_ceil(size));
    start..len.min(start + size)
}

// SAFETY: as for what is in it.
unsafe impl<P: Parts> Parts for Option<P> {
    type Part = Option<P::Part>;
    fn count(&self) -> usize {
        self.as_ref().map_or(usize::MAX, P::count)
    }
    unsafe fn part(&self, at: usize) -> Self::Part {
        // SAFETY: the caller's promise.
        self.as_ref().map(|parts| unsafe { parts.part(at) })
    }
}

macro_rules! side_by_side {
    ($($name:ident $at:tt),*) => {
        // SAFETY: as for each of them.
        unsafe impl<$($name: Parts),*> Parts for ($($name,)*) {
            type Part = ($($name::Part,)*);
            fn count(&self) -> usize {
                usize::MAX$(.min(self.$at.count()))*
            }
            unsafe fn part(&self, at: usize) -> Self::Part {
                // SAFETY: the count is the smallest; the rest is the caller's promise.
                unsafe { ($(self.$at.part(at),)*) }
            }
        }
    };
}
side_by_side!(A 0, B 1);
side_by_side!(A 0, B 1, C 2);
side_by_side!(A 0, B 1, C 2, D 3);
side_by_side!(A 0, B 1, C 2, D 3, E 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_comes_once_with_its_number_whatever_stands_beside_it() {
        for len in [0, 1, 5, 6, 7, 1000] {
            for size in [1, 2, 6, 2000] {
                let x: Vec<usize> = (0..len).collect();
                let (mut y, mut items) = (vec![0; len], vec![0; len.div_ceil(size)]);
                let sides =
                    (parts_mut(&mut y, size), parts(&x, size), items_mut(&mut items), runs(len, size));
                par_for(sides, |at, (y, x, item, run)| {
                    assert_eq!((run.len(), run.start), (x.len(), at * size));
                    y.iter_mut().zip(x).for_each(|(y, x)| *y += x + 1);
                    *item += at + 1;
                });
                assert!(y.iter().enumerate().all(|(i, &y)| y == i + 1), "{len} by {size}");
                assert!(items.iter().enumerate().all(|(i, &item)| item == i + 1), "{len} by {size}");
            }
        }
    }

    #[test]
    fn the_shortest_counts_and_what_is_missing_does_not() {
        let mut y = [0; 7];
        let missing: Option<SliceParts<u8>> = None;
        par_for((parts_mut(&mut y, 2), missing, runs(3, 1)), |_, (y, missing, _)| {
            assert!(missing.is_none());
            y.fill(1);
        });
        assert_eq!(y, [1, 1, 1, 1, 1, 1, 0]);
        let some = Some(parts_mut(&mut y, 4));
        par_for((some, runs(9, 1)), |at, (y, _)| y.expect("it is there").fill(at + 5));
        assert_eq!(y, [5, 5, 5, 5, 6, 6, 6]);
    }

    #[test]
    fn the_first_that_is_found_is_that_of_the_lowest_number() {
        for _ in 0..20 {
            let found = par_find(runs(10_000, 3), |_, mut run| run.find(|i| i % 1000 == 777));
            assert_eq!(found, Some(777));
        }
        assert_eq!(par_find(runs(100, 7), |_, mut run| run.find(|&i| i > 99)), None);
    }

    #[test]
    #[should_panic(expected = "none of them is there")]
    fn nothing_beside_nothing_is_refused() {
        let missing: Option<SliceParts<u8>> = None;
        par_for((missing, missing), |_, _| {});
    }

    #[test]
    #[should_panic(expected = "a size of 0")]
    fn parts_of_nothing_are_refused() {
        parts(&[1], 0);
    }
}
