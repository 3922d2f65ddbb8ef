//! Forward passes of the modules of a layer over blocks of rows.
use std::ops::Range;

use kernels::packed::PackedOperand;
use kernels::{par_for, parts_mut};

use super::attention::AttentionRows;
use super::layer::{PackedAttention, PackedConvolution, PackedFeedForward, PackedLayer};
use super::linear::TaskScratch;
use super::positions::PositionKeys;
use super::workspace::Workspace;
use layers::ragged::Ragged;

/// Rows of a block of all modules but attention, at most.
const ROWS_PER_BLOCK: usize = 512;
/// Rows that a task normalizes.
const ROWS_PER_NORM_TASK: usize = 32;

impl PackedFeedForward {
    /// Adds `½ (W₂ silu(W₁ norm(x)))` to each row x.
    pub(super) fn forward(&self, rows: &mut [f32], workspace: &mut Workspace) {
        let width = self.outer.outputs();
        let Workspace { packed, inner, tasks, .. } = workspace;
        for block in row_blocks(rows.len() / width) {
            let x = &mut rows[block.start * width..block.end * width];
            let input = &*x;
            self.inner.pack_rows(packed, block.len(), tasks, |rows, values| {
                self.norm.apply(&input[rows.start * width..rows.end * width], values);
            });
            self.inner.forward_silu(packed, &self.outer, inner, tasks);
            self.outer.forward_add(inner, x, tasks);
        }
    }
}

impl PackedAttention {
    /// Adds the attention module to each row; `positions` are the keys of all distances.
    pub(super) fn forward(
        &self,
        rows: &mut [f32],
        ragged: &Ragged,
        positions: &PositionKeys,
        workspace: &mut Workspace,
    ) {
        let width = self.out.outputs();
        let Workspace { packed, qkv, results, tasks, attention, .. } = workspace;
        let total = ragged.rows();
        let (qkv, results) = (&mut qkv[..3 * total * width], &mut results[..total * width]);
        for block in row_blocks(total) {
            let x = &rows[block.start * width..block.end * width];
            self.qkv.pack_rows(packed, block.len(), tasks, |rows, values| {
                self.norm.apply(&x[rows.start * width..rows.end * width], values);
            });
            self.qkv.forward(packed, &mut qkv[3 * block.start * width..3 * block.end * width], tasks);
        }
        let utterances = ragged_attention_rows(qkv, ragged, width);
        self.heads.forward(&utterances, positions, results, attention);
        for block in row_blocks(total) {
            let out = &mut rows[block.start * width..block.end * width];
            self.add_results(results, block, out, packed, tasks);
        }
    }

    /// Adds `W_o` times the results of attention of some rows.
    pub(super) fn add_results(
        &self,
        results: &[f32],
        block: Range<usize>,
        out: &mut [f32],
        packed: &mut PackedOperand,
        tasks: &TaskScratch,
    ) {
        let width = self.out.outputs();
        let (head_width, total) = (width / self.heads.heads, results.len() / width);
        self.out.pack_rows(packed, block.len(), tasks, |rows, values| {
            for (row, values) in rows.zip(values.chunks_exact_mut(width)) {
                for (head, values) in values.chunks_exact_mut(head_width).enumerate() {
                    let start = (head * total + block.start + row) * head_width;
                    values.copy_from_slice(&results[start..][..head_width]);
                }
            }
        });
        self.out.forward_add(packed, out, tasks);
    }
}

impl PackedLayer {
    /// Applies the last norm of the layer to each row.
    pub(super) fn normalize(&self, rows: &mut [f32], workspace: &Workspace) {
        let width = self.feed_forward1.outer.outputs();
        par_for(parts_mut(rows, ROWS_PER_NORM_TASK * width), |_, rows| {
            let mut buffer = workspace.tasks.lock();
            let normalized = buffer.ensure_len(rows.len(), 0.0);
            self.norm_out.apply(rows, normalized);
            rows.copy_from_slice(normalized);
        });
    }
}

impl PackedConvolution {
    /// Adds the convolution module to each row.
    pub(super) fn forward(&self, rows: &mut [f32], ragged: &Ragged, workspace: &mut Workspace) {
        let width = self.out.outputs();
        let Workspace { packed, results, tasks, .. } = workspace;
        let gated = &mut results[..rows.len()];
        for block in row_blocks(ragged.rows()) {
            let x = &rows[block.start * width..block.end * width];
            self.gated.pack_rows(packed, block.len(), tasks, |rows, values| {
                self.norm.apply(&x[rows.start * width..rows.end * width], values);
            });
            self.gated.forward_glu(packed, &mut gated[block.start * width..block.end * width], tasks);
        }
        for block in row_blocks(ragged.rows()) {
            self.out.pack_rows(packed, block.len(), tasks, |rows, values| {
                self.convolve_rows(gated, ragged, block.start + rows.start..block.start + rows.end, values);
            });
            self.out.forward_add(packed, &mut rows[block.start * width..block.end * width], tasks);
        }
    }

    /// Computes the depthwise convolution of rows that may belong to several utterances.
    fn convolve_rows(&self, gated: &[f32], ragged: &Ragged, rows: Range<usize>, out: &mut [f32]) {
        let width = self.out.outputs();
        let mut out = out;
        for utterance in 0..ragged.utterances() {
            let range = ragged.range(utterance);
            let shared = range.start.max(rows.start)..range.end.min(rows.end);
            if !shared.is_empty() {
                let (part, rest) = out.split_at_mut(shared.len() * width);
                let x = ragged.utterance(gated, width, utterance);
                self.depthwise.apply(x, shared.start - range.start..shared.end - range.start, part);
                out = rest;
            }
        }
    }
}

/// Returns queries, keys and values of each utterance.
fn ragged_attention_rows<'a>(qkv: &'a [f32], ragged: &Ragged, width: usize) -> Vec<AttentionRows<'a>> {
    let utterances = (0..ragged.utterances()).filter(|&utterance| !ragged.range(utterance).is_empty());
    let rows = utterances.map(|utterance| {
        let rows = ragged.utterance(qkv, 3 * width, utterance);
        AttentionRows {
            queries: rows,
            query_stride: 3 * width,
            first_query: 0,
            keys: &rows[width..],
            key_stride: 3 * width,
            rows: ragged.range(utterance).len(),
        }
    });
    rows.collect()
}

/// Returns the rows of a block: blocks are as equal as possible.
pub(super) fn block_rows(total: usize) -> usize {
    total.div_ceil(total.div_ceil(ROWS_PER_BLOCK).max(1)).max(1)
}

/// Divides rows into blocks.
pub(super) fn row_blocks(total: usize) -> impl Iterator<Item = Range<usize>> {
    let size = block_rows(total);
    (0..total).step_by(size).map(move |start| start..total.min(start + size))
}
