//! The parallel loop of all crates: one task for each part of a slice.
//!
//! ```text
//! par for each part:  run(index, part)
//! ```
//! It uses rayon, but one compiled loop. rayon's adaptors are compiled for every loop and type, and
//! took three quarters of the compiled normalizer.
#![allow(unsafe_code)]

use std::{marker::PhantomData, ops::Range, sync::Mutex};

use rayon::prelude::*;

/// A sequence of parts that tasks can take, each part once.
///
/// A tuple yields tuples of parts and is as long as its shortest element. An [`Option`] may be
/// part of a tuple: `None` yields `None` for every part.
///
/// # Safety
/// Parts of different indices must not overlap, unless they are read-only.
pub unsafe trait Parts: Sync {
    /// The argument of a task.
    type Part;

    /// Returns the number of parts; `usize::MAX` if `None` leaves it open.
    fn count(&self) -> usize;

    /// Returns part `index`.
    ///
    /// # Safety
    /// `index < self.count()`, and each index is used only once.
    unsafe fn part(&self, index: usize) -> Self::Part;
}

/// Calls `run(index, part)` for every part, in parallel.
///
/// # Panics
/// If no argument determines the number of parts, because all are `None`.
///
/// ```
/// use kernels::{par_for, parts, parts_mut};
///
/// let (x, mut y) = ([1, 2, 3, 4, 5], [0; 5]);
/// par_for((parts_mut(&mut y, 2), parts(&x, 2)), |index, (y, x)| {
///     y.iter_mut().zip(x).for_each(|(y, x)| *y = 10 * index + x);
/// });
/// assert_eq!(y, [1, 2, 13, 14, 25]);
/// ```
pub fn par_for<P: Parts>(parts: P, run: impl Fn(usize, P::Part) + Sync) {
    assert!(parts.count() < usize::MAX, "parts: expected at least one list, found only None");
    // SAFETY: `for_each_index` uses each index below the count once, and `parts` is dropped here.
    for_each_index(parts.count(), &|index| run(index, unsafe { parts.part(index) }));
}

/// Runs `work` inside the rayon pool.
///
/// Nested parallel loops then avoid a wake-up of another thread.
pub fn run_in_pool<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    rayon::scope(|_| work())
}

/// Calls `run(index, part)` in order on the calling thread; see [`par_for`].
///
/// # Panics
/// As [`par_for`].
pub fn for_each_sequential<P: Parts>(parts: P, mut run: impl FnMut(usize, P::Part)) {
    assert!(parts.count() < usize::MAX, "parts: expected at least one list, found only None");
    // SAFETY: each index below the count is used once, and `parts` is dropped here.
    (0..parts.count()).for_each(|index| run(index, unsafe { parts.part(index) }));
}

/// Returns `find(index, part)` of the first part where it is `Some`.
///
/// All parts are searched, in parallel.
pub fn par_find<P: Parts, T: Send>(parts: P, find: impl Fn(usize, P::Part) -> Option<T> + Sync) -> Option<T> {
    let lowest = Mutex::new(None);
    par_for(parts, |index, part| {
        if let Some(value) = find(index, part) {
            let mut lowest = lowest.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if lowest.as_ref().is_none_or(|&(lowest_index, _)| index < lowest_index) {
                *lowest = Some((index, value));
            }
        }
    });
    lowest.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map(|(_, value)| value)
}

/// Calls `run` for all indices in parallel; the only compiled rayon loop.
fn for_each_index(count: usize, run: &(dyn Fn(usize) + Sync)) {
    (0..count).into_par_iter().for_each(run);
}

/// Parts of a slice; see [`parts`].
#[derive(Debug, Clone, Copy)]
pub struct SliceParts<'a, T> {
    slice: &'a [T],
    size: usize,
}

/// Divides a slice into parts of `size` elements; the last may be shorter.
///
/// # Panics
/// If `size` is 0, as for the functions below.
pub fn parts<T: Sync>(slice: &[T], size: usize) -> SliceParts<'_, T> {
    assert!(size > 0, "parts: expected a size of at least 1");
    SliceParts { slice, size }
}

// SAFETY: parts are read-only.
unsafe impl<'a, T: Sync> Parts for SliceParts<'a, T> {
    type Part = &'a [T];
    fn count(&self) -> usize {
        self.slice.len().div_ceil(self.size)
    }
    unsafe fn part(&self, index: usize) -> &'a [T] {
        &self.slice[bounds(index, self.size, self.slice.len())]
    }
}

/// Mutable parts of a slice; see [`parts_mut`].
#[derive(Debug)]
pub struct SlicePartsMut<'a, T> {
    pointer: *mut T,
    len: usize,
    size: usize,
    slice: PhantomData<&'a mut [T]>,
}

/// Divides a slice into mutable parts of `size` elements; the last may be shorter.
pub fn parts_mut<T: Send>(slice: &mut [T], size: usize) -> SlicePartsMut<'_, T> {
    assert!(size > 0, "parts: expected a size of at least 1");
    SlicePartsMut { pointer: slice.as_mut_ptr(), len: slice.len(), size, slice: PhantomData }
}

// SAFETY: sharing only allows each part to be taken once.
unsafe impl<T: Send> Sync for SlicePartsMut<'_, T> {}

// SAFETY: chunks of a slice do not overlap.
unsafe impl<'a, T: Send> Parts for SlicePartsMut<'a, T> {
    type Part = &'a mut [T];
    fn count(&self) -> usize {
        self.len.div_ceil(self.size)
    }
    unsafe fn part(&self, index: usize) -> &'a mut [T] {
        let Range { start, end } = bounds(index, self.size, self.len);
        // SAFETY: inside a slice borrowed for 'a; no other part has these elements.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), end - start) }
    }
}

/// Mutable elements of a slice; see [`items_mut`].
#[derive(Debug)]
pub struct ItemsMut<'a, T>(SlicePartsMut<'a, T>);

/// Divides a slice into its elements, as mutable references.
pub fn items_mut<T: Send>(slice: &mut [T]) -> ItemsMut<'_, T> {
    ItemsMut(parts_mut(slice, 1))
}

// SAFETY: elements of a slice do not overlap.
unsafe impl<'a, T: Send> Parts for ItemsMut<'a, T> {
    type Part = &'a mut T;
    fn count(&self) -> usize {
        self.0.len
    }
    unsafe fn part(&self, index: usize) -> &'a mut T {
        // SAFETY: as for a part of one element.
        let part = unsafe { self.0.part(index) };
        &mut part[0]
    }
}

/// Parts of a range; see [`range_parts`].
#[derive(Debug, Clone, Copy)]
pub struct RangeParts {
    count: usize,
    size: usize,
}

/// Divides `0..count` into ranges of `size` numbers; the last may be shorter.
pub fn range_parts(count: usize, size: usize) -> RangeParts {
    assert!(size > 0, "range_parts: expected a size of at least 1");
    RangeParts { count, size }
}

// SAFETY: ranges are values.
unsafe impl Parts for RangeParts {
    type Part = Range<usize>;
    fn count(&self) -> usize {
        self.count.div_ceil(self.size)
    }
    unsafe fn part(&self, index: usize) -> Range<usize> {
        bounds(index, self.size, self.count)
    }
}

/// Returns the elements of a part.
fn bounds(index: usize, size: usize, len: usize) -> Range<usize> {
    let start = index * size;
    assert!(start < len, "parts: no part {index} of {}", len.div_ceil(size));
    start..len.min(start + size)
}

// SAFETY: as for the inner parts.
unsafe impl<P: Parts> Parts for Option<P> {
    type Part = Option<P::Part>;
    fn count(&self) -> usize {
        self.as_ref().map_or(usize::MAX, P::count)
    }
    unsafe fn part(&self, index: usize) -> Self::Part {
        // SAFETY: guaranteed by the caller.
        self.as_ref().map(|parts| unsafe { parts.part(index) })
    }
}

macro_rules! tuple_parts {
    ($($name:ident $index:tt),*) => {
        // SAFETY: as for each element.
        unsafe impl<$($name: Parts),*> Parts for ($($name,)*) {
            type Part = ($($name::Part,)*);
            fn count(&self) -> usize {
                usize::MAX$(.min(self.$index.count()))*
            }
            unsafe fn part(&self, index: usize) -> Self::Part {
                // SAFETY: the count is the smallest; the rest is guaranteed by the caller.
                unsafe { ($(self.$index.part(index),)*) }
            }
        }
    };
}
tuple_parts!(A 0, B 1);
tuple_parts!(A 0, B 1, C 2);
tuple_parts!(A 0, B 1, C 2, D 3);
tuple_parts!(A 0, B 1, C 2, D 3, E 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_taken_once_with_its_index() {
        for len in [0, 1, 5, 6, 7, 1000] {
            for size in [1, 2, 6, 2000] {
                let x: Vec<usize> = (0..len).collect();
                let (mut y, mut items) = (vec![0; len], vec![0; len.div_ceil(size)]);
                let tuple =
                    (parts_mut(&mut y, size), parts(&x, size), items_mut(&mut items), range_parts(len, size));
                par_for(tuple, |index, (y, x, item, range)| {
                    assert_eq!((range.len(), range.start), (x.len(), index * size));
                    y.iter_mut().zip(x).for_each(|(y, x)| *y += x + 1);
                    *item += index + 1;
                });
                assert!(y.iter().enumerate().all(|(i, &y)| y == i + 1), "{len} by {size}");
                assert!(items.iter().enumerate().all(|(i, &item)| item == i + 1), "{len} by {size}");
            }
        }
    }

    #[test]
    fn the_shortest_element_determines_the_count_and_none_is_ignored() {
        let mut y = [0; 7];
        let missing: Option<SliceParts<u8>> = None;
        par_for((parts_mut(&mut y, 2), missing, range_parts(3, 1)), |_, (y, missing, _)| {
            assert!(missing.is_none());
            y.fill(1);
        });
        assert_eq!(y, [1, 1, 1, 1, 1, 1, 0]);
        let optional = Some(parts_mut(&mut y, 4));
        par_for((optional, range_parts(9, 1)), |index, (y, _)| y.expect("it was Some").fill(index + 5));
        assert_eq!(y, [5, 5, 5, 5, 6, 6, 6]);
    }

    #[test]
    fn the_first_part_with_a_result_is_found() {
        for _ in 0..20 {
            let value = par_find(range_parts(10_000, 3), |_, mut range| range.find(|i| i % 1000 == 777));
            assert_eq!(value, Some(777));
        }
        assert_eq!(par_find(range_parts(100, 7), |_, mut range| range.find(|&i| i > 99)), None);
    }

    #[test]
    #[should_panic(expected = "found only None")]
    fn tuples_of_none_are_refused() {
        let missing: Option<SliceParts<u8>> = None;
        par_for((missing, missing), |_, _| {});
    }

    #[test]
    #[should_panic(expected = "expected a size of at least 1")]
    fn a_size_of_zero_is_refused() {
        parts(&[1], 0);
    }
}
