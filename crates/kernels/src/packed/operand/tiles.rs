//! Tiles of an operand, which parallel tasks pack.
use super::super::bf16::{DEPTH, TILE_SIDE, Tile};
use super::super::q8::{self, ColumnBlock, RowBits, RowBlock};
use super::super::{Operand, OperandSource};
use crate::simd::{Bf16, Int8, SimdLevel};
use crate::tiles::TilesMut;
use crate::{Parts, Real, TileMut, View};

#[derive(Clone, Copy, Debug)]
pub(super) struct TileShape {
    pub(super) panel_width: usize,
    pub(super) operand: Operand,
    /// Bits of rows in 8-bit products.
    pub(super) row_bits: RowBits,
}

/// Tiles of an operand, the parts of `par_for`; see `PackedOperand::tiles_mut`.
#[derive(Debug)]
pub struct OperandTilesMut<'a> {
    pub(super) shape: TileShape,
    pub(super) words: TilesOfWords<'a>,
}

#[derive(Debug)]
pub(super) enum TilesOfWords<'a> {
    F32(TilesMut<'a, f32>),
    Bf16(TilesMut<'a, Tile>),
    Q8Rows(TilesMut<'a, RowBlock>),
    Q8Columns(TilesMut<'a, ColumnBlock>),
}

/// A tile of an operand that one task packs.
#[derive(Debug)]
pub struct OperandTileMut<'a> {
    shape: TileShape,
    words: TileOfWords<'a>,
}

#[derive(Debug)]
enum TileOfWords<'a> {
    F32(TileMut<'a, f32>),
    Bf16(TileMut<'a, Tile>),
    Q8Rows(TileMut<'a, RowBlock>),
    Q8Columns(TileMut<'a, ColumnBlock>),
}

#[allow(unsafe_code)]
// SAFETY: tiles of different indices are different tiles of `TilesMut`.
unsafe impl<'a> Parts for OperandTilesMut<'a> {
    type Part = OperandTileMut<'a>;

    fn count(&self) -> usize {
        match &self.words {
            TilesOfWords::F32(tiles) => tiles.count(),
            TilesOfWords::Bf16(tiles) => tiles.count(),
            TilesOfWords::Q8Rows(tiles) => tiles.count(),
            TilesOfWords::Q8Columns(tiles) => tiles.count(),
        }
    }

    unsafe fn part(&self, index: usize) -> OperandTileMut<'a> {
        // SAFETY: guaranteed by the caller.
        let words = unsafe {
            match &self.words {
                TilesOfWords::F32(tiles) => TileOfWords::F32(tiles.part(index)),
                TilesOfWords::Bf16(tiles) => TileOfWords::Bf16(tiles.part(index)),
                TilesOfWords::Q8Rows(tiles) => TileOfWords::Q8Rows(tiles.part(index)),
                TilesOfWords::Q8Columns(tiles) => TileOfWords::Q8Columns(tiles.part(index)),
            }
        };
        OperandTileMut { shape: self.shape, words }
    }
}

impl OperandTileMut<'_> {
    /// Packs a matrix that covers the rows and steps of the tile; padding is 0.
    pub fn pack(&mut self, view: View<f32>) {
        self.pack_from(view, 0, 0);
    }

    /// Packs a part of a matrix, from a row or column on.
    pub(super) fn pack_from(&mut self, view: View<f32>, first: usize, first_step: usize) {
        let TileShape { panel_width, operand, row_bits } = self.shape;
        let source = OperandSource::new(view, operand);
        let len = source.sizes().0;
        match &mut self.words {
            TileOfWords::F32(tile) => {
                for panel in 0..tile.rows() {
                    let start = (first + panel * panel_width, first_step);
                    if start.0 < len {
                        f32::pack_panel(SimdLevel::best(), &source, start, panel_width, tile.row(panel, 0));
                    }
                }
            }
            TileOfWords::Bf16(tile) => {
                for panel in 0..tile.rows() {
                    let first = first + panel * TILE_SIDE;
                    for (index, words) in tile.row(panel, 0).iter_mut().enumerate() {
                        let step = first_step + index * DEPTH;
                        let position = if source.steps_are_rows { (step, first) } else { (first, step) };
                        f32::pack_tile(Bf16::best(), &source, position, operand, words);
                    }
                }
            }
            TileOfWords::Q8Rows(tile) => {
                for row in (0..tile.rows()).take(len.saturating_sub(first)) {
                    let start = (first + row, first_step);
                    q8::pack_row(Int8::best(), row_bits, &source, start, tile.row(row, 0));
                }
            }
            TileOfWords::Q8Columns(tile) => {
                for panel in 0..tile.rows() {
                    let start = (first + panel * panel_width, first_step);
                    q8::pack_columns(Int8::best(), &source, start, tile.row(panel, 0));
                }
            }
        }
    }
}
