//! `Workspace`: memory that calls of the encoder reuse.
use std::sync::Mutex;

use kernels::packed::{NumberFormat, Operand, PackedOperand};
use kernels::{AlignedVec, WorkerSlots, ensure_len, lock};

use super::attention::AttentionScratch;
use super::linear::TaskScratch;
use super::subsampling::SubsamplingScratch;

/// Largest number of rows of a call whose memory is kept.
///
/// It is two minutes with 8 frames a row, and about 60 MB for rows of width 1024.
const MAX_KEPT_ROWS: usize = 1500;

/// Memory that the modules share.
pub(super) struct Workspace {
    /// Packed rows of a block.
    pub packed: PackedOperand,
    pub inner: PackedOperand,
    /// `[T, 3W]`
    pub qkv: Vec<f32>,
    /// Results of attention `[H, T, d]`, or gated rows `[T, W]`.
    pub results: Vec<f32>,
    /// Flattened frames of a block.
    pub flat: AlignedVec<f32>,
    pub subsampling: WorkerSlots<SubsamplingScratch>,
    pub tasks: TaskScratch,
    pub attention: WorkerSlots<AttentionScratch>,
    /// Largest number of rows of a call.
    max_rows: usize,
}

/// Workspaces that are not in use, one for each concurrent call.
#[derive(Default)]
pub(super) struct WorkspacePool(Mutex<Vec<Workspace>>);

impl std::fmt::Debug for WorkspacePool {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_tuple("WorkspacePool").field(&lock(&self.0).len()).finish()
    }
}

impl WorkspacePool {
    /// Returns a workspace for `rows` rows of `width` values.
    pub(super) fn acquire(&self, format: NumberFormat, rows: usize, width: usize) -> Workspace {
        let workspace = lock(&self.0).pop();
        let mut workspace = workspace.unwrap_or_else(|| Workspace::new(format));
        let threads = rayon::current_num_threads();
        workspace.tasks.resize(threads);
        workspace.attention.resize(threads);
        workspace.subsampling.resize(threads);
        ensure_len(&mut workspace.qkv, 3 * rows * width, 0.0);
        ensure_len(&mut workspace.results, rows * width, 0.0);
        workspace.max_rows = workspace.max_rows.max(rows);
        workspace
    }

    /// Keeps a workspace for the next call, unless it is large.
    pub(super) fn release(&self, workspace: Workspace) {
        if workspace.max_rows <= MAX_KEPT_ROWS {
            lock(&self.0).push(workspace);
        }
    }
}

impl Workspace {
    fn new(format: NumberFormat) -> Self {
        let operand = || PackedOperand::new(format, Operand::Left);
        Workspace {
            packed: operand(),
            inner: operand(),
            qkv: Vec::new(),
            results: Vec::new(),
            flat: AlignedVec::default(),
            subsampling: WorkerSlots::default(),
            tasks: TaskScratch::default(),
            attention: WorkerSlots::default(),
            max_rows: 0,
        }
    }
}
