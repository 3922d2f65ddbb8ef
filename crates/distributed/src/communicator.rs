//! `Communicator`: collective calls between processes; all-reduce in a fixed order.
//!
//! ```text
//! values     cut into R blocks                              on rank r
//! all-to-all block r of every rank                          x_0, x_1, ... x_{R-1}
//! add        ((x_0 + x_1) + x_2) + ...                      the sum of block r
//! all-gather the sums of all blocks                         on all ranks
//! ```
//! R: number of ranks (processes). A ring or a tree would add in another order, and an MPI library
//! may choose another algorithm for another length. Here a sum has the same bits for any division
//! into blocks, and with any other values in them. Each rank sends and receives
//! `2 (R - 1) / R` times its values, as in a ring; no all-reduce sends less (Patarasuk and Yuan
//! 2009, *Bandwidth optimal all-reduce algorithms*).
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use half::bf16;

/// Collective calls between the processes of a group.
///
/// All ranks make the same calls in the same order, and each call waits for all ranks. A failed
/// connection ends all processes, as MPI does by default.
pub trait Communicator {
    /// Returns the number of this process, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of processes.
    fn size(&self) -> usize;

    /// Sends one block to each rank, and receives one from each.
    ///
    /// Block `r` of `send` is sent to rank `r`. Block `r` of `receive` is the block that rank `r`
    /// sent to this rank.
    ///
    /// # Shapes
    /// Both are `size` blocks of the same length, which is the same on all ranks.
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]);

    /// Receives the blocks of all ranks, in the order of the ranks.
    ///
    /// # Shapes
    /// `receive` is `size` times as long as `send`, which has the same length on all ranks.
    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]);

    /// Shares a flag that is true while a thread waits.
    ///
    /// While it is false, no thread needs the result of a call yet, and the call may leave its core
    /// to other threads.
    fn set_waiting_flag(&mut self, _is_waiting: Arc<AtomicBool>) {}

    /// Ends all processes.
    fn abort(&mut self) {}

    /// Waits until all ranks have called it.
    fn barrier(&mut self) {
        let size = self.size();
        self.all_gather(&[0], &mut vec![0; size]);
    }

    /// Replaces values by their sums over all ranks, added in rank order.
    ///
    /// During the call, the vector grows to a multiple of the number of ranks.
    ///
    /// # Shapes
    /// `values` has the same length on all ranks.
    fn all_reduce(&mut self, values: &mut Vec<f32>, transfer: TransferFormat, buffers: &mut ReduceBuffers) {
        let (size, value_count) = (self.size(), values.len());
        let block_len = value_count.div_ceil(size);
        if block_len == 0 {
            return;
        }
        values.resize(size * block_len, 0.0);
        let ReduceBuffers { received_f32, sent_bf16, received_bf16 } = buffers;
        match transfer {
            TransferFormat::F32 => {
                // The blocks of all ranks, the first of which becomes the sum.
                received_f32.resize(size * block_len, 0.0);
                self.all_to_all(bytemuck::cast_slice(values), bytemuck::cast_slice_mut(received_f32));
                let (sums, other_blocks) = received_f32.split_at_mut(block_len);
                for block in other_blocks.chunks_exact(block_len) {
                    sums.iter_mut().zip(block).for_each(|(sum, value)| *sum += value);
                }
                self.all_gather(bytemuck::cast_slice(sums), bytemuck::cast_slice_mut(values));
            }
            TransferFormat::Bf16 => {
                // Terms as bf16, sums as f32.
                round_to_bf16(sent_bf16, values);
                received_bf16.resize(size * block_len, 0);
                self.all_to_all(bytemuck::cast_slice(sent_bf16), bytemuck::cast_slice_mut(received_bf16));
                received_f32.clear();
                received_f32.resize(block_len, 0.0);
                for block in received_bf16.chunks_exact(block_len) {
                    received_f32
                        .iter_mut()
                        .zip(block)
                        .for_each(|(sum, bits)| *sum += bf16::from_bits(*bits).to_f32());
                }
                // Sums as bf16.
                round_to_bf16(sent_bf16, received_f32);
                self.all_gather(bytemuck::cast_slice(sent_bf16), bytemuck::cast_slice_mut(received_bf16));
                values
                    .iter_mut()
                    .zip(received_bf16)
                    .for_each(|(value, bits)| *value = bf16::from_bits(*bits).to_f32());
            }
        }
        values.truncate(value_count);
    }
}

impl dyn Communicator + '_ {
    /// Receives bytes of any lengths from all ranks, in their order.
    pub(crate) fn all_gather_bytes(&mut self, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let size = self.size();
        // Number of bytes of each rank.
        let mut gathered_lengths = vec![0; size * size_of::<u64>()];
        self.all_gather(&(bytes.len() as u64).to_le_bytes(), &mut gathered_lengths);
        let lengths = gathered_lengths.as_chunks().0.iter();
        let lengths: Vec<usize> = lengths.map(|&bytes| u64::from_le_bytes(bytes) as usize).collect();
        // The bytes, padded to the longest.
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = vec![0; size * longest];
        bytes.resize(longest, 0);
        if longest > 0 {
            self.all_gather(&bytes, &mut padded);
        }
        lengths
            .into_iter()
            .enumerate()
            .map(|(rank, length)| padded[rank * longest..][..length].to_vec())
            .collect()
    }
}

/// Buffers of [`Communicator::all_reduce`] that are kept between calls.
#[derive(Default)]
pub struct ReduceBuffers {
    /// Received terms of [`TransferFormat::F32`], or sums of [`TransferFormat::Bf16`].
    received_f32: Vec<f32>,
    /// Bits of the bf16 numbers that this rank sends.
    sent_bf16: Vec<u16>,
    /// Bits of the bf16 numbers that it receives.
    received_bf16: Vec<u16>,
}

/// Replaces the buffer by the bits of values rounded to bf16.
fn round_to_bf16(buffer: &mut Vec<u16>, values: &[f32]) {
    buffer.clear();
    buffer.extend(values.iter().map(|&value| bf16::from_f32(value).to_bits()));
}

/// The number format in which terms and sums are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TransferFormat {
    /// 32-bit floating point, without rounding.
    #[default]
    F32,
    /// bf16: half the bytes, with terms and sums rounded to 8 bits of mantissa.
    ///
    /// Terms are added in f32. A sum `s` of terms `x` has an error of at most about
    /// `2⁻⁸ (|s| + Σ |x|)`, as rounding changes each term and the sum by at most 2⁻⁸ of its value.
    /// The sums are the same on all ranks.
    Bf16,
}

impl fmt::Display for TransferFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            TransferFormat::F32 => "f32",
            TransferFormat::Bf16 => "bf16",
        })
    }
}

impl FromStr for TransferFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(TransferFormat::F32),
            "bf16" => Ok(TransferFormat::Bf16),
            other => Err(format!("expected f32 or bf16, found {other:?}")),
        }
    }
}
