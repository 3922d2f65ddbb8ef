//! Keys of relative positions: `linear_pos` of sinusoids, packed for each head.
//!
//! ```text
//! table[m, 2j] = sin(m ω_j)    table[m, 2j + 1] = cos(m ω_j)    ω_j = 10000^(-2j / W)
//! r_m = P table[m]
//! ```
//! m: distance, query minus key; P: weight of `linear_pos`. Only the distances of a call are
//! computed. The keys of few distances are kept for the next call.
use std::ops::Range;
use std::sync::{Arc, Mutex};

use kernels::packed::{NumberFormat, Operand, PackedOperand};
use kernels::{AlignedVec, ScratchReq, View, items_mut, lock, par_for};

use super::linear::{PackedLinear, TaskScratch};
use super::weights::{WeightReader, unquantized};
use crate::Result;

/// Distances whose sinusoids are computed directly; the angles between are added.
const DISTANCES_PER_BASE: usize = 64;
/// Distances of a block of the table, a multiple of [`kernels::packed::PART_MULTIPLE`].
const DISTANCES_PER_BLOCK: usize = 512;
/// Largest number of distances whose keys are kept for the next call.
const MAX_CACHED_DISTANCES: usize = 1024;
/// Largest number of values of a table that all layers share; a larger one is computed again.
const MAX_TABLE_VALUES: usize = 8 << 20;

/// An inclusive range of distances, query minus key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DistanceInterval {
    pub min: i64,
    pub max: i64,
}

impl DistanceInterval {
    /// Returns the smallest range that contains both.
    pub(super) fn union(self, other: Self) -> Self {
        DistanceInterval { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Returns the number of distances.
    pub(super) fn count(self) -> usize {
        (self.max - self.min + 1).unsigned_abs() as usize
    }

    fn contains(self, other: Self) -> bool {
        self.min <= other.min && other.max <= self.max
    }
}

/// Sinusoids of distances, shared by all layers.
#[derive(Debug)]
pub(super) struct Sinusoids {
    frequencies: Vec<f64>,
    /// sin and cos of `b ω_j`, `[DISTANCES_PER_BASE, W / 2]`.
    offsets: Vec<[f64; 2]>,
}

/// Packed rows of a table of distances, in blocks.
#[derive(Debug)]
pub(super) struct SinusoidTable {
    pub range: DistanceInterval,
    /// All blocks, unless the table is too large.
    blocks: Vec<PackedOperand>,
}

/// The keys of a range of distances for each head.
#[derive(Debug)]
pub(super) struct PositionKeys {
    pub range: DistanceInterval,
    /// Of each head `[d, distances]`, the largest distance first.
    pub heads: Vec<PackedOperand>,
}

impl SinusoidTable {
    /// Creates a table whose rows are computed when they are needed.
    pub(super) fn empty(range: DistanceInterval) -> Self {
        SinusoidTable { range, blocks: Vec::new() }
    }
}

impl PositionKeys {
    /// Returns the column of a distance.
    pub(super) fn column(&self, distance: i64) -> usize {
        (self.range.max - distance).unsigned_abs() as usize
    }
}

/// `linear_pos` of a layer.
#[derive(Debug)]
pub(super) struct PositionProjection {
    pub linear: PackedLinear,
    heads: usize,
    /// Number format of the keys.
    key_format: NumberFormat,
    cached: Mutex<Option<Arc<PositionKeys>>>,
}

impl Sinusoids {
    pub(super) fn new(width: usize) -> Self {
        let exponent = |j: usize| -(2.0 * j as f64) / width as f64;
        let frequencies: Vec<f64> = (0..width / 2).map(|j| 10_000f64.powf(exponent(j))).collect();
        let angles = (0..DISTANCES_PER_BASE).flat_map(|b| frequencies.iter().map(move |w| b as f64 * w));
        let offsets = angles.map(|angle| [angle.sin(), angle.cos()]).collect();
        Sinusoids { frequencies, offsets }
    }

    /// Returns the table of a range.
    pub(super) fn table(
        &self,
        range: DistanceInterval,
        linear: &PackedLinear,
        scratch: &TaskScratch,
    ) -> SinusoidTable {
        let mut table = SinusoidTable::empty(range);
        if range.count() * 2 * self.frequencies.len() <= MAX_TABLE_VALUES {
            for columns in column_blocks(range) {
                let mut block = linear.empty_rows();
                self.pack(range.max, columns, linear, &mut block, scratch);
                table.blocks.push(block);
            }
        }
        table
    }

    /// Packs the rows of columns, whose distances decrease from `max`.
    fn pack(
        &self,
        max: i64,
        columns: Range<usize>,
        linear: &PackedLinear,
        out: &mut PackedOperand,
        scratch: &TaskScratch,
    ) {
        let width = 2 * self.frequencies.len();
        linear.pack_rows(out, columns.len(), scratch, |rows, values| {
            // sin and cos of the base of the current row; m = base + offset.
            let mut base = (i64::MIN, vec![[0.0; 2]; self.frequencies.len()]);
            for (row, out) in rows.zip(values.chunks_exact_mut(width)) {
                let distance = max - (columns.start + row) as i64;
                let offset = distance.rem_euclid(DISTANCES_PER_BASE as i64);
                if base.0 != distance - offset {
                    base.0 = distance - offset;
                    for (value, frequency) in base.1.iter_mut().zip(&self.frequencies) {
                        let (sin, cos) = (base.0 as f64 * frequency).sin_cos();
                        *value = [sin, cos];
                    }
                }
                let offsets = &self.offsets[offset as usize * self.frequencies.len()..];
                for (out, ([s, c], [t, d])) in out.chunks_exact_mut(2).zip(base.1.iter().zip(offsets)) {
                    out[0] = (s * d + c * t) as f32;
                    out[1] = (c * d - s * t) as f32;
                }
            }
        });
    }
}

/// Returns the columns of each block of a table.
fn column_blocks(range: DistanceInterval) -> impl Iterator<Item = Range<usize>> {
    let count = range.count();
    (0..count).step_by(DISTANCES_PER_BLOCK).map(move |start| start..count.min(start + DISTANCES_PER_BLOCK))
}

impl PositionProjection {
    /// Packs `self_attn.linear_pos` of a layer.
    ///
    /// # Errors
    /// Those of the reader.
    pub(super) fn new(layer: &str, heads: usize, width: usize, reader: &mut WeightReader) -> Result<Self> {
        let weight = reader.read_linear(&format!("{layer}.self_attn.linear_pos.weight"), [width, width])?;
        let linear =
            PackedLinear::from_weight("linear_pos", reader.format, weight, width, (1.0, Vec::new()))?;
        let key_format = unquantized(reader.format);
        Ok(PositionProjection { linear, heads, key_format, cached: Mutex::new(None) })
    }

    /// Returns the keys of at least the range of a table.
    pub(super) fn keys(
        &self,
        sinusoids: &Sinusoids,
        table: &SinusoidTable,
        scratch: &TaskScratch,
    ) -> Arc<PositionKeys> {
        let range = table.range;
        if let Some(keys) = lock(&self.cached).as_ref().filter(|keys| keys.range.contains(range)) {
            return keys.clone();
        }
        let keys = Arc::new(self.compute_keys(sinusoids, table, scratch));
        if range.count() <= MAX_CACHED_DISTANCES {
            *lock(&self.cached) = Some(keys.clone());
        }
        keys
    }

    /// Returns whether the keys of a range are in memory.
    pub(super) fn has_keys(&self, range: DistanceInterval) -> bool {
        lock(&self.cached).as_ref().is_some_and(|keys| keys.range.contains(range))
    }

    fn compute_keys(
        &self,
        sinusoids: &Sinusoids,
        table: &SinusoidTable,
        scratch: &TaskScratch,
    ) -> PositionKeys {
        let width = self.linear.outputs();
        let (range, head_width) = (table.range, width / self.heads);
        let mut heads: Vec<PackedOperand> = (0..self.heads)
            .map(|_| {
                let mut keys = PackedOperand::new(self.key_format, Operand::Right);
                keys.resize(range.count(), head_width);
                keys
            })
            .collect();
        let mut packed = self.linear.empty_rows();
        let mut rows = AlignedVec::default();
        for (index, columns) in column_blocks(range).enumerate() {
            let block = match table.blocks.get(index) {
                Some(block) => block,
                None => {
                    sinusoids.pack(range.max, columns.clone(), &self.linear, &mut packed, scratch);
                    &packed
                }
            };
            let rows = rows.ensure_len(columns.len() * width, 0.0);
            self.linear.forward(block, rows, scratch);
            let rows = &*rows;
            par_for(items_mut(&mut heads), |head, keys| {
                let view = View::with_stride(&rows[head * head_width..], columns.len(), head_width, width);
                keys.fill_columns(columns.start, view.transposed());
            });
        }
        PositionKeys { range, heads }
    }

    /// Returns the memory of a range's table and of the keys.
    pub(super) fn requirement(&self, range: DistanceInterval) -> ScratchReq {
        let width = self.linear.outputs();
        let (count, head_width) = (range.count(), width / self.heads);
        let packed_rows = |rows| self.linear.row_requirement(rows);
        let blocks = column_blocks(range).map(|columns| packed_rows(columns.len()));
        let table = match count * width <= MAX_TABLE_VALUES {
            true => ScratchReq::all_of(blocks),
            false => packed_rows(DISTANCES_PER_BLOCK),
        };
        let rows = ScratchReq::aligned::<f32>(count.min(DISTANCES_PER_BLOCK) * width);
        let keys = PackedOperand::requirement(self.key_format, Operand::Right, count, head_width);
        table.and(rows).and(keys.times(self.heads))
    }
}
