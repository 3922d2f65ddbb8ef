//! Divides a row-major matrix into rectangular mutable tiles, one per task.
//!
//! The tiles are the parts of [`par_for`](crate::par_for), its parallel loop.
#![allow(unsafe_code)]
use std::marker::PhantomData;

use crate::Parts;

/// Division of rows into bands, and of their columns into strips.
///
/// ```text
/// row:   `planes` planes, one after another
/// plane: strips of `width` elements; the last may be narrower
/// tile   strip * bands + band: the rows of a band, in each the strip of every plane
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Rows of a band; the last may have fewer.
    pub rows: usize,
    /// Number of equal parts of each row.
    pub planes: usize,
    /// Elements of a plane.
    pub columns: usize,
    /// Elements of a strip.
    pub width: usize,
}

impl Tiling {
    /// Returns the elements of a row.
    fn stride(&self) -> usize {
        self.planes * self.columns
    }
}

/// Tiles of mutable rows; see [`tiles_mut`].
#[derive(Debug)]
pub struct TilesMut<'a, T> {
    pointer: *mut T,
    /// Total number of rows.
    rows: usize,
    tiling: Tiling,
    slice: PhantomData<&'a mut [T]>,
}

/// Divides row-major rows into mutable tiles.
///
/// # Panics
/// If a size of the tiling is 0, or the slice is not a whole number of rows.
///
/// ```
/// use kernels::{Tiling, par_for, tiles_mut};
///
/// let mut x = [0; 12]; // 3 rows of 2 planes of 2
/// let tiling = Tiling { rows: 2, planes: 2, columns: 2, width: 1 };
/// par_for(tiles_mut(&mut x, tiling), |index, mut tile| {
///     (0..tile.rows()).for_each(|row| tile.row(row, 1).fill(index + 1));
/// });
/// assert_eq!(x, [0, 0, 1, 3, 0, 0, 1, 3, 0, 0, 2, 4]);
/// ```
pub fn tiles_mut<T: Send>(slice: &mut [T], tiling: Tiling) -> TilesMut<'_, T> {
    let Tiling { rows, planes, columns, width } = tiling;
    assert!(rows > 0 && planes > 0 && columns > 0 && width > 0, "tiles: {tiling:?}");
    assert!(slice.len().is_multiple_of(tiling.stride()), "tiles: {} elements, {tiling:?}", slice.len());
    let rows = slice.len() / tiling.stride();
    TilesMut { pointer: slice.as_mut_ptr(), rows, tiling, slice: PhantomData }
}

// SAFETY: sharing only allows each tile to be taken once.
unsafe impl<T: Send> Sync for TilesMut<'_, T> {}

// SAFETY: different tiles have different bands or strips, hence no common element.
unsafe impl<'a, T: Send> Parts for TilesMut<'a, T> {
    type Part = TileMut<'a, T>;
    fn count(&self) -> usize {
        self.rows.div_ceil(self.tiling.rows) * self.tiling.columns.div_ceil(self.tiling.width)
    }
    unsafe fn part(&self, index: usize) -> TileMut<'a, T> {
        let bands = self.rows.div_ceil(self.tiling.rows);
        let (strip, band) = (index / bands, index % bands);
        TileMut {
            pointer: self.pointer,
            first_row: band * self.tiling.rows,
            first_column: strip * self.tiling.width,
            rows: self.tiling.rows.min(self.rows - band * self.tiling.rows),
            width: self.tiling.width.min(self.tiling.columns - strip * self.tiling.width),
            tiling: self.tiling,
            slice: PhantomData,
        }
    }
}

/// A tile that one task owns; see [`tiles_mut`].
#[derive(Debug)]
pub struct TileMut<'a, T> {
    /// The whole slice.
    pointer: *mut T,
    first_row: usize,
    /// First column in each plane.
    first_column: usize,
    rows: usize,
    width: usize,
    tiling: Tiling,
    slice: PhantomData<&'a mut [T]>,
}

impl<T> TileMut<'_, T> {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the tile's part of a plane of a row.
    ///
    /// # Panics
    /// If there is no such row or plane.
    pub fn row(&mut self, row: usize, plane: usize) -> &mut [T] {
        assert!(row < self.rows && plane < self.tiling.planes, "tiles: row {row}, plane {plane}");
        let start =
            (self.first_row + row) * self.tiling.stride() + plane * self.tiling.columns + self.first_column;
        // SAFETY: inside rows borrowed for this lifetime; no other tile has these elements.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), self.width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::par_for;

    #[test]
    fn every_element_is_in_one_tile() {
        for (rows, band_rows, planes, columns, width) in
            [(5, 2, 4, 7, 3), (1, 8, 1, 16, 16), (16, 8, 4, 32, 16), (3, 1, 2, 5, 9), (0, 3, 1, 4, 2)]
        {
            let mut x = vec![0; rows * planes * columns];
            let bands = rows.div_ceil(band_rows);
            let tiling = Tiling { rows: band_rows, planes, columns, width };
            par_for(tiles_mut(&mut x, tiling), |index, mut tile| {
                for (row, plane) in (0..tile.rows()).flat_map(|row| (0..planes).map(move |p| (row, p))) {
                    for (i, x) in tile.row(row, plane).iter_mut().enumerate() {
                        let (x_row, x_column) = (index % bands * band_rows + row, index / bands * width + i);
                        *x += 1 + (x_row * planes + plane) * columns + x_column;
                    }
                }
            });
            assert!(x.iter().enumerate().all(|(i, &x)| x == i + 1), "{tiling:?}");
        }
    }

    #[test]
    #[should_panic(expected = "row 1, plane 0")]
    fn rows_out_of_range_are_refused() {
        par_for(
            tiles_mut(&mut [0; 4], Tiling { rows: 3, planes: 1, columns: 4, width: 2 }),
            |_, mut tile| {
                tile.row(1, 0);
            },
        );
    }
}
