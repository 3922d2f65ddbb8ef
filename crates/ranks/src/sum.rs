//! Sums over all processes, whose terms are added in the order of the ranks.
//!
//! ```text
//! values     cut into R blocks                                             on rank r
//! all-to-all block r of every rank                                         x_0, x_1, ... x_{R-1}
//! add        ((x_0 + x_1) + x_2) + ...                                     the sum of block r
//! all-gather the sums of all blocks                                        everywhere
//! ```
//! A ring or a tree would add in an order of its own, and an engine may choose another one for another length: here a sum has the same
//! bits whatever else is summed, and however values are cut. Each rank sends and receives `2 (R - 1) / R` times its values, which is
//! what a ring does, and the least that is possible (Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms*).
use std::fmt;
use std::str::FromStr;

use half::bf16;

use crate::Wire;

/// The numbers that travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transfer {
    /// As they are.
    #[default]
    F32,
    /// Half the bytes: terms and sums are rounded to 8 bits of mantissa, and added in f32.
    ///
    /// A sum `s` of terms `x` has an error of at most `2⁻⁸ (|s| + Σ |x|)` or little more, as each term and the sum are rounded by at most
    /// 2⁻⁸ of theirs, mostly half of it. All processes have the same one.
    Bf16,
}

impl fmt::Display for Transfer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Transfer::F32 => "f32",
            Transfer::Bf16 => "bf16",
        })
    }
}

impl FromStr for Transfer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Transfer::F32),
            "bf16" => Ok(Transfer::Bf16),
            other => Err(format!("expected f32 or bf16, found {other:?}")),
        }
    }
}

/// Buffers that stay from call to call.
#[derive(Default)]
pub struct Buffers {
    received: Vec<f32>,
    short: Vec<bf16>,
    shorts: Vec<bf16>,
}

impl Buffers {
    /// Replaces values by their sums over all processes, which have as many. The list grows by zeros to as many blocks as there are
    /// processes, and is as long as before in the end.
    pub fn sum(&mut self, wire: &mut dyn Wire, transfer: Transfer, values: &mut Vec<f32>) {
        let (count, length) = (wire.count(), values.len());
        let block = length.div_ceil(count);
        if block == 0 {
            return;
        }
        values.resize(count * block, 0.0);
        match transfer {
            Transfer::F32 => {
                self.received.resize(count * block, 0.0);
                wire.all_to_all(bytemuck::cast_slice(values), bytemuck::cast_slice_mut(&mut self.received));
                let (sums, others) = self.received.split_at_mut(block);
                for other in others.chunks_exact(block) {
                    sums.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
                }
                wire.all_gather(bytemuck::cast_slice(sums), bytemuck::cast_slice_mut(values));
            }
            Transfer::Bf16 => {
                rounded(&mut self.short, values);
                self.shorts.resize(count * block, bf16::ZERO);
                let shorts = bytemuck::cast_slice_mut(&mut self.shorts);
                wire.all_to_all(bytemuck::cast_slice(&self.short), shorts);
                self.received.clear();
                self.received.resize(block, 0.0);
                for other in self.shorts.chunks_exact(block) {
                    self.received.iter_mut().zip(other).for_each(|(sum, x)| *sum += x.to_f32());
                }
                rounded(&mut self.short, &self.received);
                let shorts = bytemuck::cast_slice_mut(&mut self.shorts);
                wire.all_gather(bytemuck::cast_slice(&self.short), shorts);
                values.iter_mut().zip(&self.shorts).for_each(|(value, sum)| *value = sum.to_f32());
            }
        }
        values.truncate(length);
    }
}

fn rounded(buffer: &mut Vec<bf16>, values: &[f32]) {
    buffer.clear();
    buffer.extend(values.iter().map(|&value| bf16::from_f32(value)));
}
