//! Projected contexts and frames of a lattice's joint network, and their scores.
//!
//! ```text
//! h[t,p] = tanh(P[p] + Q_t)        (b, l)[t,p] = h[t,p] Wᵀ + c
//! ```
//! P, Q: projected contexts p and frames t, the two addends; W, c: output layer; (b, l): scores of
//! blank and labels; a site is a pair (t, p). C context states, V labels, H hidden units.
//!
//! In `f32` the addends are stored in exponential form, `exp(2P)` and `exp(2Q)`, so that each tanh
//! costs a product and a quotient: `tanh(P + Q) = 1 - 2 / (1 + exp(2P) exp(2Q))`. A row with an
//! addend whose exponential could overflow is also stored as it is; tanh of its sites is computed
//! from the sum. In `f64` both forms are equal. Matrix products read the addends as panels of 32
//! columns: the states of one frame, or the frames of one state.
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use kernels::{
    BufferPool, PANEL_COLUMNS, PackedLeft, Real, ScratchReq, TanhAddends, TanhProducts, View, par_for, parts,
    parts_mut, transpose,
};

use crate::weight_fn::Workload;

/// Sizes of a [`JointWeightFn`](super::JointWeightFn).
///
/// They implement `WeightFn` for memory plans only: binding them is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointSizes {
    /// C, the number of context states.
    pub states: usize,
    /// V, the number of labels.
    pub vocabulary: usize,
    /// H, the width of the hidden layer.
    pub hidden: usize,
    /// E, the width of a context embedding.
    pub embedding: usize,
    /// F, the number of features of a frame.
    pub features: usize,
    /// Memory of the network that computes embeddings; empty for a table.
    pub rnn: ScratchReq,
}

impl JointSizes {
    /// Returns true if the bytes of a workload do not overflow.
    pub fn has_plan(&self, workload: Workload) -> bool {
        let sizes = [self.states, self.vocabulary, self.hidden];
        let arcs = self.states.saturating_mul(self.vocabulary.saturating_add(1));
        let longest = workload.frames.max(workload.positions).max(workload.wave.saturating_mul(arcs));
        !sizes.contains(&0) && arcs <= u32::MAX as usize && self.hidden <= 1 << 20 && longest <= 1 << 40
    }
}

/// Addends of hidden rows in exponential form, *n x H*.
pub struct TanhAddendRows<F> {
    /// The addends in exponential form ([`Real::prepare_tanh_addends`]).
    pub rows: Vec<F>,
    /// The addends themselves, for rows whose exponentials could overflow.
    large_rows: BTreeMap<usize, Vec<F>>,
}

impl<F: Real> TanhAddendRows<F> {
    /// Memory of `row_count` rows, all of them large at worst.
    fn scratch(row_count: usize, h: usize) -> ScratchReq {
        ScratchReq::new::<F>(2 * row_count * h)
    }

    /// Converts addends to exponential form, in place.
    pub fn new(mut rows: Vec<F>, h: usize) -> Self {
        let large_rows = Mutex::new(BTreeMap::new());
        par_for(parts_mut(&mut rows, ROWS_PER_TASK * h), |task, rows| {
            for (row_index, row) in (task * ROWS_PER_TASK..).zip(rows.chunks_exact(h)) {
                if has_large_addend(row) {
                    large_rows.lock().unwrap_or_else(PoisonError::into_inner).insert(row_index, row.to_vec());
                }
            }
            F::prepare_tanh_addends(rows);
        });
        Self { rows, large_rows: large_rows.into_inner().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Returns the first large row with a NaN or infinite value.
    ///
    /// In `f64`, where addends have no limit, only rows with NaN are large.
    pub fn first_not_finite(&self) -> Option<(usize, f64)> {
        let invalid_value = |row: &Vec<F>| row.iter().map(|x| x.to_f64()).find(|x| !x.is_finite());
        self.large_rows
            .iter()
            .find_map(|(&row_index, row)| invalid_value(row).map(|value| (row_index, value)))
    }

    /// Returns true if an exponential of some row could overflow.
    pub fn has_large_rows(&self) -> bool {
        !self.large_rows.is_empty()
    }

    /// Returns true if an exponential of a row could overflow.
    fn is_large(&self, row: usize) -> bool {
        !self.large_rows.is_empty() && self.large_rows.contains_key(&row)
    }
}

/// Rows that a task converts.
const ROWS_PER_TASK: usize = 16;
/// Independent counts of [`has_large_addend`].
const LANES: usize = 16;

/// Returns true if an addend is NaN or its exponential could overflow.
fn has_large_addend<F: Real>(row: &[F]) -> bool {
    let limit = F::from_f64(F::MAX_TANH_ADDEND);
    // Comparisons with NaN are false, so that NaN is outside.
    let is_outside = |x: F| if (x <= limit) & (-x <= limit) { F::ZERO } else { F::ONE };
    // In lanes, so that the loop vectorizes.
    let mut lanes = [F::ZERO; LANES];
    let (chunks, remainder) = row.as_chunks::<LANES>();
    chunks.iter().for_each(|chunk| lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += is_outside(x)));
    lanes.into_iter().chain(remainder.iter().map(|&x| is_outside(x))).any(|count| count > F::ZERO)
}

/// Returns contexts as columns: panels *H x PANEL_COLUMNS*, in a given buffer.
fn contexts_as_columns<F: Real>(contexts: &[F], h: usize, mut out: Vec<F>) -> Vec<F> {
    out.resize((contexts.len() / h.max(1)).next_multiple_of(PANEL_COLUMNS) * h, F::ONE);
    par_for(
        (parts_mut(&mut out, PANEL_COLUMNS * h), parts(contexts, PANEL_COLUMNS * h)),
        |_, (panel, contexts)| {
            if contexts.len() == PANEL_COLUMNS * h {
                return transpose(panel, View::new(contexts, PANEL_COLUMNS, h));
            }
            // Columns after the last context are computed and not used.
            panel.fill(F::ONE);
            for (column, row) in contexts.chunks_exact(h).enumerate() {
                panel
                    .chunks_exact_mut(PANEL_COLUMNS)
                    .zip(row)
                    .for_each(|(step, &value)| step[column] = value);
            }
        },
    );
    out
}

/// Projections of contexts and frames, and the output layer.
///
/// The scores of all sites are computed from them.
pub struct Projections<F: Real> {
    /// C, the number of context states.
    pub states: usize,
    /// V, the number of labels.
    pub vocabulary: usize,
    /// H, the width of the hidden layer.
    pub hidden: usize,
    /// P: `e Wc + joint_bias`, *C x H*.
    pub contexts: TanhAddendRows<F>,
    /// Q: `x Wf`, *n x H*.
    pub frames: TanhAddendRows<F>,
    /// Contexts as columns; empty until [`require_columns`](Self::require_columns).
    columns: Vec<F>,
    /// Buffer for columns, reused from earlier calls.
    pub column_buffer: Vec<F>,
    /// If true, columns are computed by [`require_columns`](Self::require_columns) only.
    ///
    /// If false, setting frames computes them.
    pub defers_columns: bool,
    /// `w0` and `W1` as rows, *(1 + V) x H*.
    pub head: Vec<F>,
    /// `c0` and `c1`, *1 + V*.
    pub bias: Vec<F>,
    /// The head packed for products.
    pub head_left: PackedLeft<F>,
    /// Buffers of tasks.
    pub pool: BufferPool<F>,
}

impl<F: Real> Projections<F> {
    /// Memory for `frames` frames; the head is stored as rows and packed twice.
    pub fn scratch(sizes: &JointSizes, frames: usize) -> ScratchReq {
        let JointSizes { states: c, vocabulary: v, hidden: h, .. } = *sizes;
        let columns = c.next_multiple_of(PANEL_COLUMNS) * h;
        let head = 2 * (1 + v) * h + (1 + v) * h.next_multiple_of(PANEL_COLUMNS);
        ScratchReq::all_of([
            TanhAddendRows::<F>::scratch(c, h),
            TanhAddendRows::<F>::scratch(frames, h),
            ScratchReq::new::<F>(columns + head),
        ])
    }

    /// Creates projections without frames.
    ///
    /// `head` is *(1 + V) x H*; `column_buffer` is for the contexts as columns.
    pub fn new(contexts: TanhAddendRows<F>, head: Vec<F>, bias: Vec<F>, column_buffer: Vec<F>) -> Self {
        let (classes, hidden) = (bias.len(), head.len() / bias.len());
        Self {
            states: contexts.rows.len() / hidden,
            vocabulary: classes - 1,
            hidden,
            contexts,
            frames: TanhAddendRows::new(Vec::new(), hidden),
            columns: Vec::new(),
            column_buffer,
            defers_columns: false,
            head_left: TanhProducts::pack(View::new(&head, classes, hidden)),
            head,
            bias,
            pool: BufferPool::new(),
        }
    }

    /// Computes the contexts as columns, if not yet computed.
    pub fn require_columns(&mut self) {
        if self.columns.is_empty() {
            let buffer = std::mem::take(&mut self.column_buffer);
            self.columns = contexts_as_columns(&self.contexts.rows, self.hidden, buffer);
        }
    }

    /// Returns true if the contexts are computed as columns.
    pub fn has_columns(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Removes the large buffers, for later calls.
    pub fn take_buffers(&mut self) -> Vec<Vec<F>> {
        let columns = if self.columns.is_empty() { &mut self.column_buffer } else { &mut self.columns };
        [&mut self.contexts.rows, columns, &mut self.frames.rows].map(std::mem::take).into()
    }

    /// Computes `h` of one site.
    pub fn hidden_row(&self, frame: usize, state: usize, out: &mut [F]) {
        let h = self.hidden;
        let (contexts, frames) = (&self.contexts, &self.frames);
        let (context_row, frame_row) = (&contexts.rows[state * h..][..h], &frames.rows[frame * h..][..h]);
        if !contexts.is_large(state) && !frames.is_large(frame) {
            return F::tanh_pairs(out, context_row, frame_row);
        }
        // The row that is not large has its exponential form only, which is invertible.
        let addends = |rows: &TanhAddendRows<F>, row_index: usize, exponential_form: &[F]| match rows
            .large_rows
            .get(&row_index)
        {
            Some(row) => row.clone(),
            None => {
                let mut row = exponential_form.to_vec();
                F::restore_tanh_addends(&mut row);
                row
            }
        };
        F::tanh_sum(out, &addends(contexts, state, context_row), &addends(frames, frame, frame_row));
    }

    /// Returns true if neither frame nor panel has a large row.
    fn has_no_large_row(&self, frame: usize, panel: usize) -> bool {
        let mut states = self.panel_states(panel);
        !self.frames.is_large(frame) && !states.any(|state| self.contexts.is_large(state))
    }

    /// The states of a panel.
    fn panel_states(&self, panel: usize) -> Range<usize> {
        panel * PANEL_COLUMNS..self.states.min((panel + 1) * PANEL_COLUMNS)
    }

    /// Addends of a panel of states at a frame.
    fn addends(&self, frame: usize, panel: usize) -> TanhAddends<'_, F> {
        let h = self.hidden;
        (&self.columns[panel * PANEL_COLUMNS * h..][..PANEL_COLUMNS * h], &self.frames.rows[frame * h..][..h])
    }

    /// Computes the scores of panels of states at some frames.
    ///
    /// Calls `receive_tile` with the index of the frame in `frames`, the panel, and the scores
    /// including biases, *(1 + V) x PANEL_COLUMNS*. `tile` is scratch memory for these scores.
    pub fn score_states(
        &self,
        frames: &[usize],
        panels: Range<usize>,
        products: &mut TanhProducts<F>,
        tile: &mut [F],
        mut receive_tile: impl FnMut(usize, usize, &[F]),
    ) {
        // A tile is a panel of states at a frame; all panels of a frame come before the next frame.
        let frame_and_panel =
            |tile_index: usize| (tile_index / panels.len(), panels.start + tile_index % panels.len());
        // None if the tile does not exist, or if its tanh needs the sums of large rows.
        let addends = |tile_index: usize| {
            let (frame_index, panel) = frame_and_panel(tile_index);
            let &frame = frames.get(frame_index)?;
            self.has_no_large_row(frame, panel).then(|| self.addends(frame, panel))
        };
        for tile_index in 0..frames.len() * panels.len() {
            let (frame_index, panel) = frame_and_panel(tile_index);
            self.write_bias(tile);
            match addends(tile_index) {
                Some(current) => products.multiply(tile, current, addends(tile_index + 1)),
                None => {
                    let sites = self.panel_states(panel).map(|state| (frames[frame_index], state));
                    self.score_sites(sites, products, tile);
                }
            }
            receive_tile(frame_index, panel, tile);
        }
    }

    /// Writes the biases to all columns.
    fn write_bias(&self, tile: &mut [F]) {
        tile.chunks_exact_mut(PANEL_COLUMNS).zip(&self.bias).for_each(|(row, &bias)| row.fill(bias));
    }

    /// Writes some frames as a panel; returns true if none has a large row.
    ///
    /// `rows` *PANEL_COLUMNS x H* is scratch memory.
    pub fn write_frame_panel(&self, frames: &[usize], rows: &mut [F], panel: &mut [F]) -> bool {
        let h = self.hidden;
        for (row, &frame) in rows.chunks_exact_mut(h).zip(frames) {
            row.copy_from_slice(&self.frames.rows[frame * h..][..h]);
        }
        // Columns after the last frame are computed and not used.
        rows[frames.len() * h..].fill(F::ONE);
        transpose(panel, View::new(rows, PANEL_COLUMNS, h));
        !frames.iter().any(|&frame| self.frames.is_large(frame))
    }

    /// Computes the scores of states at a panel of frames.
    ///
    /// `panel` is that of [`write_frame_panel`](Self::write_frame_panel), none if a frame has a
    /// large row. Calls `receive_tile` with each state and its scores at the frames, *(1 + V) x
    /// PANEL_COLUMNS*.
    pub fn score_frames(
        &self,
        frames: &[usize],
        panel: Option<&[F]>,
        states: &[usize],
        products: &mut TanhProducts<F>,
        tile: &mut [F],
        mut receive_tile: impl FnMut(usize, &[F]),
    ) {
        let h = self.hidden;
        let addends = |index: usize| {
            let state = *states.get(index).filter(|&&state| !self.contexts.is_large(state))?;
            panel.map(|panel| (panel, &self.contexts.rows[state * h..][..h]))
        };
        for (index, &state) in states.iter().enumerate() {
            self.write_bias(tile);
            match addends(index) {
                Some(current) => products.multiply(tile, current, addends(index + 1)),
                None => self.score_sites(frames.iter().map(|&frame| (frame, state)), products, tile),
            }
            receive_tile(state, tile);
        }
    }

    /// Computes the scores of sites (frame, state), one per column.
    ///
    /// The sites may have large rows.
    fn score_sites(
        &self,
        sites: impl Iterator<Item = (usize, usize)>,
        products: &mut TanhProducts<F>,
        tile: &mut [F],
    ) {
        let mut row = vec![F::ZERO; self.hidden];
        products.multiply_filled(tile, |hidden| {
            for (column, (frame, state)) in sites.enumerate() {
                self.hidden_row(frame, state, &mut row);
                hidden
                    .chunks_exact_mut(PANEL_COLUMNS)
                    .zip(&row)
                    .for_each(|(step, &value)| step[column] = value);
            }
        });
    }
}

/// Gradients of projections and head.
pub struct ProjectionGradients<F> {
    /// dP, *C x H*.
    pub contexts: Vec<F>,
    /// dQ, *n x H*.
    pub frames: Vec<F>,
    /// dW, *(1 + V) x H*.
    pub head: Vec<F>,
    /// dc, *1 + V*.
    pub bias: Vec<f64>,
}

impl<F: Real> ProjectionGradients<F> {
    /// Memory for `frames` frames.
    pub fn scratch(sizes: &JointSizes, frames: usize) -> ScratchReq {
        let JointSizes { states: c, vocabulary: v, hidden: h, .. } = *sizes;
        ScratchReq::new::<F>(c * h + (1 + v) * (h + 2) + frames * h)
    }

    /// Zero gradients, without frames.
    pub fn zeros(projections: &Projections<F>) -> Self {
        let &Projections { states, hidden, vocabulary, .. } = projections;
        Self {
            contexts: vec![F::ZERO; states * hidden],
            frames: Vec::new(),
            head: vec![F::ZERO; (1 + vocabulary) * hidden],
            bias: vec![0.0; 1 + vocabulary],
        }
    }
}
