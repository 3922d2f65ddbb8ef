//! Packed operands whose number format is selected at run time: `f32`, bf16 or 8-bit blocks.
//!
//! A weight is packed once as right operand; rows are packed as left operand by parallel tasks, one
//! tile of rows and steps each. Sums are `f32` in all formats. The bits of an element depend only
//! on its row and its column, not on other rows and columns.
//!
//! ```text
//! left   micro-panels of MR rows      [panel][step][row]      MR: as equal as possible, at most 14
//! right  micro-panels of NR columns   [panel][step][column]
//! bf16   tiles of 16 rows or columns by 32 steps, see `bf16.rs`
//! q8     blocks of 32 steps of a row, or of 32 columns, see `q8.rs`
//! ```
mod product;
#[cfg(test)]
mod tests;
mod tiles;

pub use product::{RightPart, SumOrder, multiply};
pub use tiles::{OperandTileMut, OperandTilesMut};
use tiles::{TileShape, TilesOfWords};

use super::bf16::{BLOCK_SIDE, DEPTH, TILE_SIDE, Tile};
use super::q8::matrix::QuantizedMatrix;
use super::q8::{self, ColumnBlock, RowBits, RowBlock};
use super::{Operand, OperandSource};
use crate::simd::{Int8, SimdLevel};
use crate::{AlignedVec, Real, ScratchReq, Tiling, View, par_for, parts_mut, tiles_mut};

/// Columns and steps of a right part begin at multiples of this.
pub const PART_MULTIPLE: usize = 32;
/// Micro-panels that a task of [`PackedOperand::pack`] packs.
const PANELS_PER_TASK: usize = 4;

/// The number format of packed operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumberFormat {
    /// `f32`, without rounding.
    #[default]
    F32,
    /// bf16, rounded to nearest even.
    Bf16,
    /// 8-bit blocks of 32 steps with a scale: weights in f16, rows in `f32`.
    ///
    /// Rows may have 16 bits, see [`RowBits`].
    Q8,
}

impl NumberFormat {
    /// Returns the name: `f32`, `bf16` or `q8`.
    pub fn name(self) -> &'static str {
        match self {
            NumberFormat::F32 => "f32",
            NumberFormat::Bf16 => "bf16",
            NumberFormat::Q8 => "q8",
        }
    }
}

impl std::str::FromStr for NumberFormat {
    type Err = String;

    /// Parses `f32`, `bf16` or `q8`.
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(NumberFormat::F32),
            "bf16" => Ok(NumberFormat::Bf16),
            "q8" => Ok(NumberFormat::Q8),
            _ => Err(format!("expected f32, bf16 or q8, found {name}")),
        }
    }
}

/// A packed operand of matrix products with reusable memory.
#[derive(Debug)]
pub struct PackedOperand {
    words: Words,
    operand: Operand,
    /// Rows (left) or columns (right).
    len: usize,
    /// Steps of the sum.
    depth: usize,
    /// Rows or columns of a micro-panel.
    panel_width: usize,
}

#[derive(Debug)]
enum Words {
    F32(AlignedVec<f32>),
    Bf16(Vec<Tile>),
    Q8Rows(Vec<RowBlock>, RowBits),
    Q8Columns(Vec<ColumnBlock>),
}

impl PackedOperand {
    /// Creates an empty operand.
    pub fn new(format: NumberFormat, operand: Operand) -> Self {
        let words = match (format, operand) {
            (NumberFormat::F32, _) => Words::F32(AlignedVec::default()),
            (NumberFormat::Bf16, _) => Words::Bf16(Vec::new()),
            (NumberFormat::Q8, Operand::Left) => Words::Q8Rows(Vec::new(), RowBits::Eight),
            (NumberFormat::Q8, Operand::Right) => Words::Q8Columns(Vec::new()),
        };
        Self { words, operand, len: 0, depth: 0, panel_width: 1 }
    }

    /// Packs a matrix in parallel tasks.
    pub fn packed(format: NumberFormat, operand: Operand, view: View<f32>) -> Self {
        let mut packed = Self::new(format, operand);
        let (len, depth) = OperandSource::new(view, operand).sizes();
        packed.resize(len, depth);
        let panels = PANELS_PER_TASK * packed.row_multiple();
        par_for(packed.tiles_mut(panels, depth.max(1)), |index, mut tile| {
            tile.pack_from(view, index * panels, 0);
        });
        packed
    }

    /// Packs rows of a quantized matrix as columns of a right operand.
    pub fn from_quantized_rows(matrix: &QuantizedMatrix) -> Self {
        let mut packed = Self::new(NumberFormat::Q8, Operand::Right);
        packed.resize(matrix.rows(), matrix.columns());
        let panel_blocks = packed.panel_words();
        if let Words::Q8Columns(blocks) = &mut packed.words {
            let count = matrix.rows().div_ceil(q8::PANEL_COLUMNS) * panel_blocks;
            par_for(parts_mut(&mut blocks[..count], panel_blocks), |panel, blocks| {
                q8::pack_quantized(Int8::best(), matrix, panel * q8::PANEL_COLUMNS, blocks);
            });
        }
        packed
    }

    /// Sets the number of bits of packed rows in q8.
    ///
    /// Another number than before sets the size to 0. Other operands have no such number.
    pub fn set_row_bits(&mut self, row_bits: RowBits) {
        if let Words::Q8Rows(_, bits) = &mut self.words
            && *bits != row_bits
        {
            *bits = row_bits;
            self.resize(0, 0);
        }
    }

    fn row_bits(&self) -> RowBits {
        match self.words {
            Words::Q8Rows(_, bits) => bits,
            _ => RowBits::default(),
        }
    }

    /// Sets the sizes; the contents are unspecified then.
    pub fn resize(&mut self, len: usize, depth: usize) {
        (self.len, self.depth) = (len, depth);
        self.panel_width = match (&self.words, self.operand) {
            (Words::Bf16(_), _) => TILE_SIDE,
            (Words::F32(_), operand) => f32_panel_width(operand, len),
            (Words::Q8Rows(..), _) => 1,
            (Words::Q8Columns(_), _) => q8::PANEL_COLUMNS,
        };
        let words = self.panels() * self.panel_words();
        match &mut self.words {
            Words::F32(buffer) => drop(buffer.ensure_len(words, 0.0)),
            Words::Bf16(buffer) => {
                crate::ensure_len(buffer, words, Tile([0; TILE_SIDE * DEPTH]));
            }
            Words::Q8Rows(buffer, _) => crate::ensure_len(buffer, words, RowBlock::ZERO),
            Words::Q8Columns(buffer) => crate::ensure_len(buffer, words, ColumnBlock::ZERO),
        }
    }

    /// Packs a whole matrix on the calling thread; memory is reused.
    pub fn fill(&mut self, view: View<f32>) {
        let (len, depth) = OperandSource::new(view, self.operand).sizes();
        self.resize(len, depth);
        crate::for_each_sequential(
            self.tiles_mut(len.max(1).next_multiple_of(self.row_multiple()), depth.max(1)),
            |_, mut tile| {
                tile.pack_from(view, 0, 0);
            },
        );
    }

    /// Packs columns from `first` on, a multiple of `PART_MULTIPLE`.
    ///
    /// `view` has all steps of these columns.
    pub fn fill_columns(&mut self, first: usize, view: View<f32>) {
        let count = OperandSource::new(view, self.operand).sizes().0;
        let (depth, panel_words) = (self.depth, self.panel_words());
        assert!(first.is_multiple_of(PART_MULTIPLE) && first + count <= self.len, "columns from {first} on");
        let panels = first / self.panel_width
            ..self.panels().min((first + count.next_multiple_of(PART_MULTIPLE)).div_ceil(self.panel_width));
        let range = panels.start * panel_words..panels.end * panel_words;
        let tiles = self.tiles_of(range, panels.len().max(1), depth.max(1));
        crate::for_each_sequential(tiles, |_, mut tile| tile.pack_from(view, 0, 0));
    }

    /// Returns the rows (left) or columns (right) of the operand.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no row or column.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the steps of the sum.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number format.
    pub fn format(&self) -> NumberFormat {
        match self.words {
            Words::F32(_) => NumberFormat::F32,
            Words::Bf16(_) => NumberFormat::Bf16,
            Words::Q8Rows(..) | Words::Q8Columns(_) => NumberFormat::Q8,
        }
    }

    /// Returns the multiple at which rows may be divided among tasks.
    pub fn row_multiple(&self) -> usize {
        match self.words {
            Words::F32(_) => self.panel_width,
            Words::Bf16(_) => BLOCK_SIDE,
            Words::Q8Rows(..) => q8::MAX_ROWS,
            Words::Q8Columns(_) => q8::PANEL_COLUMNS,
        }
    }

    /// Returns the memory of an operand; in q8, of rows of 8 bits.
    pub fn requirement(format: NumberFormat, operand: Operand, len: usize, depth: usize) -> ScratchReq {
        match format {
            NumberFormat::F32 => {
                let width = f32_panel_width(operand, len);
                ScratchReq::aligned::<f32>(len.next_multiple_of(width).saturating_mul(depth))
            }
            NumberFormat::Bf16 => {
                let panels = 2 * len.div_ceil(BLOCK_SIDE);
                ScratchReq::new::<Tile>(panels.saturating_mul(depth.div_ceil(DEPTH)))
            }
            NumberFormat::Q8 => {
                let blocks = depth.div_ceil(q8::BLOCK_STEPS);
                match operand {
                    Operand::Left => ScratchReq::new::<RowBlock>(len.saturating_mul(blocks)),
                    Operand::Right => {
                        let panels = len.div_ceil(q8::PANEL_COLUMNS);
                        ScratchReq::new::<ColumnBlock>(panels.saturating_mul(blocks))
                    }
                }
            }
        }
    }

    /// Returns the memory of packed rows; in q8, with a number of bits.
    pub fn row_requirement(format: NumberFormat, row_bits: RowBits, rows: usize, depth: usize) -> ScratchReq {
        let requirement = Self::requirement(format, Operand::Left, rows, depth);
        if format == NumberFormat::Q8 { requirement.times(row_bits.bytes()) } else { requirement }
    }

    fn panels(&self) -> usize {
        match self.words {
            Words::Bf16(_) => 2 * self.len.div_ceil(BLOCK_SIDE),
            _ => self.len.div_ceil(self.panel_width),
        }
    }

    /// Returns the words of a micro-panel.
    fn panel_words(&self) -> usize {
        match self.words {
            Words::F32(_) => self.panel_width * self.depth,
            Words::Bf16(_) => self.depth.div_ceil(DEPTH),
            Words::Q8Rows(_, bits) => bits.bytes() * self.depth.div_ceil(q8::BLOCK_STEPS),
            Words::Q8Columns(_) => self.depth.div_ceil(q8::BLOCK_STEPS),
        }
    }

    /// Divides the operand into tiles of `rows` rows by `steps` steps.
    ///
    /// `rows` is a multiple of [`Self::row_multiple`], `steps` one of [`PART_MULTIPLE`] unless it
    /// contains all steps.
    ///
    /// # Panics
    /// For other sizes.
    pub fn tiles_mut(&mut self, rows: usize, steps: usize) -> OperandTilesMut<'_> {
        let multiple = self.row_multiple();
        let is_valid = rows > 0 && rows.is_multiple_of(multiple);
        let is_valid = is_valid && (steps.is_multiple_of(PART_MULTIPLE) || steps >= self.depth.max(1));
        assert!(is_valid, "tiles of {rows} rows by {steps} steps");
        let words = self.panels() * self.panel_words();
        self.tiles_of(0..words, rows / self.panel_width, steps)
    }

    /// Divides a range of words, whole micro-panels, into tiles.
    fn tiles_of(
        &mut self,
        words: std::ops::Range<usize>,
        panels: usize,
        steps: usize,
    ) -> OperandTilesMut<'_> {
        let (panel_width, depth, operand) = (self.panel_width, self.depth, self.operand);
        let columns = self.panel_words().max(1);
        let shape = TileShape { panel_width, operand, row_bits: self.row_bits() };
        // Tiles of bf16 and blocks of 8-bit numbers have the same number of steps.
        let width = match &self.words {
            Words::F32(_) => (steps.min(depth.max(1)) * panel_width).max(1),
            Words::Q8Rows(_, bits) => bits.bytes() * steps.div_ceil(q8::BLOCK_STEPS),
            _ => steps.div_ceil(q8::BLOCK_STEPS),
        };
        let tiling = Tiling { rows: panels, planes: 1, columns, width };
        let words = match &mut self.words {
            Words::F32(buffer) => TilesOfWords::F32(tiles_mut(&mut buffer[words], tiling)),
            Words::Bf16(buffer) => TilesOfWords::Bf16(tiles_mut(&mut buffer[words], tiling)),
            Words::Q8Rows(buffer, _) => TilesOfWords::Q8Rows(tiles_mut(&mut buffer[words], tiling)),
            Words::Q8Columns(buffer) => TilesOfWords::Q8Columns(tiles_mut(&mut buffer[words], tiling)),
        };
        OperandTilesMut { shape, words }
    }
}

const _: () = assert!(DEPTH == q8::BLOCK_STEPS && PART_MULTIPLE == q8::BLOCK_STEPS);

/// Returns the rows or columns of an `f32` micro-panel; few rows are divided evenly.
fn f32_panel_width(operand: Operand, len: usize) -> usize {
    let [max_rows, columns] = f32::tile_shape(SimdLevel::best());
    match operand {
        Operand::Left => len.div_ceil(len.div_ceil(max_rows).max(1)).max(1),
        Operand::Right => columns,
    }
}
