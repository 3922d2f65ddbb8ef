//! Projected contexts and frames of a lattice's joint network, and their scores.
//!
//! ```text
//! h[t,p] = tanh(P[p] + Q_t)        (b, l)[t,p] = h[t,p] Wᵀ + c
//! ```
//! P, Q: projected contexts p and frames t; W, c: output layer; (b, l): scores of blank and labels;
//! a site is a pair (t, p). The addends P and Q are prepared once, so that each tanh costs a
//! product and a quotient. Matrix products read them as panels of 32 columns: the states of one
//! frame, or the frames of one state. Rows that are too large for this preparation are also stored
//! unprepared; their tanh is computed from the sum.
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

/// Addends of hidden rows, prepared for the tangent, *n x H*.
pub struct PreparedRows<F> {
    /// Prepared rows.
    pub rows: Vec<F>,
    /// Unprepared rows that are out of the range of preparation.
    out_of_range: BTreeMap<usize, Vec<F>>,
}

impl<F: Real> PreparedRows<F> {
    /// Memory of `row_count` rows, all of them out of range at worst.
    fn scratch(row_count: usize, h: usize) -> ScratchReq {
        ScratchReq::new::<F>(2 * row_count * h)
    }

    /// Prepares rows in place.
    pub fn new(mut rows: Vec<F>, h: usize) -> Self {
        let out_of_range = Mutex::new(BTreeMap::new());
        par_for(parts_mut(&mut rows, ROWS_PER_TASK * h), |task, rows| {
            for (row, values) in (task * ROWS_PER_TASK..).zip(rows.chunks_exact(h)) {
                if is_out_of_range(values) {
                    out_of_range.lock().unwrap_or_else(PoisonError::into_inner).insert(row, values.to_vec());
                }
            }
            F::prepare_tanh_addends(rows);
        });
        Self { rows, out_of_range: out_of_range.into_inner().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Returns the first row with a NaN or infinite value; such rows are out of range.
    pub fn first_not_finite(&self) -> Option<(usize, f64)> {
        let invalid_value = |row: &Vec<F>| row.iter().map(|x| x.to_f64()).find(|x| !x.is_finite());
        self.out_of_range
            .iter()
            .find_map(|(&row_index, row)| invalid_value(row).map(|value| (row_index, value)))
    }

    /// Returns true if some row is out of range.
    pub fn has_out_of_range(&self) -> bool {
        !self.out_of_range.is_empty()
    }

    /// Returns true if a row is out of range.
    fn is_out_of_range(&self, row: usize) -> bool {
        !self.out_of_range.is_empty() && self.out_of_range.contains_key(&row)
    }
}

/// Rows that a task prepares.
const ROWS_PER_TASK: usize = 16;
/// Independent counts of [`is_out_of_range`].
const LANES: usize = 16;

/// Returns true if an element is NaN or too large for preparation.
fn is_out_of_range<F: Real>(row: &[F]) -> bool {
    let limit = F::from_f64(F::MAX_TANH_ADDEND);
    // NaN is out of range as well.
    let is_outside = |x: F| if (x <= limit) & (-x <= limit) { F::ZERO } else { F::ONE };
    // In lanes, so that the loop vectorizes.
    let mut lanes = [F::ZERO; LANES];
    let (chunks, remainder) = row.as_chunks::<LANES>();
    chunks.iter().for_each(|row| lanes.iter_mut().zip(row).for_each(|(lane, &x)| *lane += is_outside(x)));
    lanes.into_iter().chain(remainder.iter().map(|&x| is_outside(x))).any(|count| count > F::ZERO)
}

/// Returns prepared contexts as columns: panels of *H x PANEL_COLUMNS*, in a given buffer.
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
    /// `e Wc + joint_bias`, *C x H*.
    pub contexts: PreparedRows<F>,
    /// `x Wf`, *n x H*.
    pub frames: PreparedRows<F>,
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
            PreparedRows::<F>::scratch(c, h),
            PreparedRows::<F>::scratch(frames, h),
            ScratchReq::new::<F>(columns + head),
        ])
    }

    /// Projections without frames: prepared contexts, the head *(1 + V) x H*, and a buffer for
    /// columns.
    pub fn new(contexts: PreparedRows<F>, head: Vec<F>, bias: Vec<F>, column_buffer: Vec<F>) -> Self {
        let (classes, hidden) = (bias.len(), head.len() / bias.len());
        Self {
            states: contexts.rows.len() / hidden,
            vocabulary: classes - 1,
            hidden,
            contexts,
            frames: PreparedRows::new(Vec::new(), hidden),
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
        if !contexts.is_out_of_range(state) && !frames.is_out_of_range(frame) {
            return F::tanh_pairs(out, context_row, frame_row);
        }
        // Preparation is invertible.
        let unprepared = |addends: &PreparedRows<F>, row_index: usize, prepared: &[F]| match addends
            .out_of_range
            .get(&row_index)
        {
            Some(unprepared) => unprepared.clone(),
            None => {
                let mut unprepared = prepared.to_vec();
                F::restore_tanh_addends(&mut unprepared);
                unprepared
            }
        };
        F::tanh_sum(out, &unprepared(contexts, state, context_row), &unprepared(frames, frame, frame_row));
    }

    /// Returns true if a frame and a panel's states are in range.
    fn is_in_range(&self, frame: usize, panel: usize) -> bool {
        let mut states = self.panel_states(panel);
        !self.frames.is_out_of_range(frame) && !states.any(|state| self.contexts.is_out_of_range(state))
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
    /// Calls `take` with the index of the frame in `frames`, the panel, and the scores including
    /// biases, *(1 + V) x PANEL_COLUMNS*.
    pub fn score_states(
        &self,
        frames: &[usize],
        panels: Range<usize>,
        products: &mut TanhProducts<F>,
        tile: &mut [F],
        mut take: impl FnMut(usize, usize, &[F]),
    ) {
        let tile_at = |tile: usize| (tile / panels.len(), panels.start + tile % panels.len());
        let addends = |tile_index: usize| {
            let (frame_index, panel) = tile_at(tile_index);
            let &frame = frames.get(frame_index)?;
            self.is_in_range(frame, panel).then(|| self.addends(frame, panel))
        };
        for tile_index in 0..frames.len() * panels.len() {
            let (frame_index, panel) = tile_at(tile_index);
            self.write_bias(tile);
            match addends(tile_index) {
                Some(current) => products.multiply(tile, current, addends(tile_index + 1)),
                None => {
                    let sites = self.panel_states(panel).map(|state| (frames[frame_index], state));
                    self.score_sites(sites, products, tile);
                }
            }
            take(frame_index, panel, tile);
        }
    }

    /// Writes the biases to all columns.
    fn write_bias(&self, tile: &mut [F]) {
        tile.chunks_exact_mut(PANEL_COLUMNS).zip(&self.bias).for_each(|(row, &bias)| row.fill(bias));
    }

    /// Writes some frames as a panel; returns true if all of them are in range.
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
        !frames.iter().any(|&frame| self.frames.is_out_of_range(frame))
    }

    /// Computes the scores of states at a panel of frames.
    ///
    /// Calls `take` as [`score_states`](Self::score_states).
    pub fn score_frames(
        &self,
        (frames, panel): (&[usize], Option<&[F]>),
        states: &[usize],
        products: &mut TanhProducts<F>,
        tile: &mut [F],
        mut take: impl FnMut(usize, &[F]),
    ) {
        let h = self.hidden;
        let addends = |index: usize| {
            let state = *states.get(index).filter(|&&state| !self.contexts.is_out_of_range(state))?;
            panel.map(|panel| (panel, &self.contexts.rows[state * h..][..h]))
        };
        for (index, &state) in states.iter().enumerate() {
            self.write_bias(tile);
            match addends(index) {
                Some(current) => products.multiply(tile, current, addends(index + 1)),
                None => self.score_sites(frames.iter().map(|&frame| (frame, state)), products, tile),
            }
            take(state, tile);
        }
    }

    /// Computes the scores of any sites (frame, state), one per column.
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
    /// *C x H*
    pub contexts: Vec<F>,
    /// *n x H*
    pub frames: Vec<F>,
    /// *(1 + V) x H*
    pub head: Vec<F>,
    /// *1 + V*
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
