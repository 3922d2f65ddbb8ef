//! Projected states and frames of a lattice's joint network, and their scores.
//!
//! ```text
//! P = e Wc + joint_bias          Q = x Wf
//! h[t,p] = tanh(P[p] + Q_t)      (b, l)[t,p] = h[t,p] Wᵀ + bias
//! ```
//! p: context state (*state* below); t: frame; e, x: embeddings of states and features of frames;
//! P, Q: their projections, the two addends of a site (t, p); (b, l): scores of blank and labels.
//! The head has the weight W = (w0, W1)ᵀ and the bias (c0, c1): row 0 for the blank, rows 1 to V
//! for the labels. Sizes: C states, V labels, H hidden units, n frames.
//!
//! In `f32` the addends are stored in exponential form, `exp(2P)` and `exp(2Q)`, so that each tanh
//! costs a product and a quotient: `tanh(P + Q) = 1 - 2 / (1 + exp(2P) exp(2Q))`. An overflow row,
//! in which an exponential could overflow, is also stored as it is; tanh of its sites is computed
//! from the sum. In `f64` addends are stored as they are. Matrix products read the addends as
//! panels of `PANEL_COLUMNS` columns: the states of one frame, or the frames of one state.
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
/// As a `WeightFn` they serve to plan memory before weights exist; `bind` returns an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JointSizes {
    /// C, the number of states.
    pub states: usize,
    /// V, the number of labels.
    pub vocabulary: usize,
    /// H, the width of the hidden layer.
    pub hidden: usize,
    /// E, the width of the embedding of a state.
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

/// Addends of hidden rows in exponential form: of states or frames.
pub struct TanhAddendRows<F> {
    /// All addends in exponential form ([`Real::prepare_tanh_addends`]).
    pub rows: Vec<F>,
    /// The addends of overflow rows as they are, by row.
    overflow_rows: BTreeMap<usize, Vec<F>>,
}

impl<F: Real> TanhAddendRows<F> {
    /// Memory of `row_count` rows, all of them overflow rows at worst.
    fn scratch(row_count: usize, h: usize) -> ScratchReq {
        ScratchReq::new::<F>(2 * row_count * h)
    }

    /// Converts addends to exponential form, in place.
    pub fn new(mut rows: Vec<F>, h: usize) -> Self {
        let overflow_rows = Mutex::new(BTreeMap::new());
        par_for(parts_mut(&mut rows, ROWS_PER_TASK * h), |task, rows| {
            for (row_index, row) in (task * ROWS_PER_TASK..).zip(rows.chunks_exact(h)) {
                if may_overflow(row) {
                    overflow_rows
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(row_index, row.to_vec());
                }
            }
            F::prepare_tanh_addends(rows);
        });
        Self { rows, overflow_rows: overflow_rows.into_inner().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Returns the first overflow row with a value that is not finite.
    ///
    /// In `f64`, where addends have no limit, only rows with NaN are overflow rows.
    pub fn first_not_finite(&self) -> Option<(usize, f64)> {
        let invalid_value = |row: &Vec<F>| row.iter().map(|x| x.to_f64()).find(|x| !x.is_finite());
        self.overflow_rows
            .iter()
            .find_map(|(&row_index, row)| invalid_value(row).map(|value| (row_index, value)))
    }

    /// Returns true if an exponential of any row could overflow.
    pub fn has_overflow_rows(&self) -> bool {
        !self.overflow_rows.is_empty()
    }

    /// Returns true if an exponential of this row could overflow.
    fn is_overflow_row(&self, row: usize) -> bool {
        !self.overflow_rows.is_empty() && self.overflow_rows.contains_key(&row)
    }
}

/// Rows that a task converts.
const ROWS_PER_TASK: usize = 16;
/// Independent counts of [`may_overflow`].
const LANES: usize = 16;

/// Returns true if an addend is NaN or its exponential could overflow.
fn may_overflow<F: Real>(row: &[F]) -> bool {
    let limit = F::from_f64(F::MAX_TANH_ADDEND);
    // Comparisons with NaN are false, so that NaN is outside. Each lane counts addends outside.
    let is_outside = |x: F| if (x <= limit) & (-x <= limit) { F::ZERO } else { F::ONE };
    // In lanes, so that the loop vectorizes.
    let mut lanes = [F::ZERO; LANES];
    let (chunks, remainder) = row.as_chunks::<LANES>();
    chunks.iter().for_each(|chunk| lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += is_outside(x)));
    lanes.into_iter().chain(remainder.iter().map(|&x| is_outside(x))).any(|count| count > F::ZERO)
}

/// Returns rows of states as columns: panels *H x PANEL_COLUMNS*, in a given buffer.
fn states_as_columns<F: Real>(states: &[F], h: usize, mut out: Vec<F>) -> Vec<F> {
    out.resize((states.len() / h.max(1)).next_multiple_of(PANEL_COLUMNS) * h, F::ONE);
    par_for(
        (parts_mut(&mut out, PANEL_COLUMNS * h), parts(states, PANEL_COLUMNS * h)),
        |_, (panel, states)| {
            if states.len() == PANEL_COLUMNS * h {
                return transpose(panel, View::new(states, PANEL_COLUMNS, h));
            }
            // Columns after the last state are computed and not used.
            panel.fill(F::ONE);
            for (column, row) in states.chunks_exact(h).enumerate() {
                panel
                    .chunks_exact_mut(PANEL_COLUMNS)
                    .zip(row)
                    .for_each(|(step, &value)| step[column] = value);
            }
        },
    );
    out
}

/// Projections of states and frames, and the head.
///
/// The scores of all sites are computed from them.
pub struct Projections<F: Real> {
    /// C, the number of states.
    pub states: usize,
    /// V, the number of labels.
    pub vocabulary: usize,
    /// H, the width of the hidden layer.
    pub hidden: usize,
    /// P, *C x H*.
    pub state_addends: TanhAddendRows<F>,
    /// Q, *n x H*.
    pub frame_addends: TanhAddendRows<F>,
    /// P as columns; empty until [`require_columns`](Self::require_columns).
    columns: Vec<F>,
    /// Buffer for columns, reused from earlier calls.
    pub column_buffer: Vec<F>,
    /// If true, columns are computed by [`require_columns`](Self::require_columns) only.
    ///
    /// If false, setting frames computes them.
    pub defers_columns: bool,
    /// W, *(1 + V) x H*.
    pub head: Vec<F>,
    /// Bias of the head, *1 + V*.
    pub bias: Vec<F>,
    /// W packed as the left factor of products.
    pub head_left: PackedLeft<F>,
    /// Buffers of tasks.
    pub pool: BufferPool<F>,
}

impl<F: Real> Projections<F> {
    /// Memory for `frames` frames.
    ///
    /// W counts three times: as rows, packed as a left factor, and packed as a right factor, which
    /// the caller creates for its backward pass.
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
    /// `head` is W, *(1 + V) x H*; `column_buffer` is for P as columns.
    pub fn new(state_addends: TanhAddendRows<F>, head: Vec<F>, bias: Vec<F>, column_buffer: Vec<F>) -> Self {
        let (classes, hidden) = (bias.len(), head.len() / bias.len());
        Self {
            states: state_addends.rows.len() / hidden,
            vocabulary: classes - 1,
            hidden,
            state_addends,
            frame_addends: TanhAddendRows::new(Vec::new(), hidden),
            columns: Vec::new(),
            column_buffer,
            defers_columns: false,
            head_left: TanhProducts::pack(View::new(&head, classes, hidden)),
            head,
            bias,
            pool: BufferPool::new(),
        }
    }

    /// Computes P as columns, if not yet computed.
    pub fn require_columns(&mut self) {
        if self.columns.is_empty() {
            let buffer = std::mem::take(&mut self.column_buffer);
            self.columns = states_as_columns(&self.state_addends.rows, self.hidden, buffer);
        }
    }

    /// Returns true if P is available as columns.
    pub fn has_columns(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Removes the largest buffers and returns them, for later calls.
    pub fn take_buffers(&mut self) -> Vec<Vec<F>> {
        let columns = if self.columns.is_empty() { &mut self.column_buffer } else { &mut self.columns };
        [&mut self.state_addends.rows, columns, &mut self.frame_addends.rows].map(std::mem::take).into()
    }

    /// Computes `h` of one site.
    pub fn hidden_row(&self, frame: usize, state: usize, out: &mut [F]) {
        let h = self.hidden;
        let (states, frames) = (&self.state_addends, &self.frame_addends);
        let (state_row, frame_row) = (&states.rows[state * h..][..h], &frames.rows[frame * h..][..h]);
        if !states.is_overflow_row(state) && !frames.is_overflow_row(frame) {
            return F::tanh_pairs(out, state_row, frame_row);
        }
        // A row that is not an overflow row has its exponential form only, which is invertible.
        let addends = |rows: &TanhAddendRows<F>, row_index: usize, exponential_form: &[F]| match rows
            .overflow_rows
            .get(&row_index)
        {
            Some(row) => row.clone(),
            None => {
                let mut row = exponential_form.to_vec();
                F::restore_tanh_addends(&mut row);
                row
            }
        };
        F::tanh_sum(out, &addends(states, state, state_row), &addends(frames, frame, frame_row));
    }

    /// Returns true if a frame and a panel have no overflow row.
    fn has_no_overflow_row(&self, frame: usize, panel: usize) -> bool {
        let mut states = self.panel_states(panel);
        !self.frame_addends.is_overflow_row(frame)
            && !states.any(|state| self.state_addends.is_overflow_row(state))
    }

    /// The states of a panel.
    fn panel_states(&self, panel: usize) -> Range<usize> {
        panel * PANEL_COLUMNS..self.states.min((panel + 1) * PANEL_COLUMNS)
    }

    /// Addends of a panel of states at a frame.
    fn addends(&self, frame: usize, panel: usize) -> TanhAddends<'_, F> {
        let h = self.hidden;
        (
            &self.columns[panel * PANEL_COLUMNS * h..][..PANEL_COLUMNS * h],
            &self.frame_addends.rows[frame * h..][..h],
        )
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
        // None if the tile does not exist, or if its tanh needs the sums of overflow rows.
        let addends = |tile_index: usize| {
            let (frame_index, panel) = frame_and_panel(tile_index);
            let &frame = frames.get(frame_index)?;
            self.has_no_overflow_row(frame, panel).then(|| self.addends(frame, panel))
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

    /// Writes some frames as a panel; returns true if none has an overflow row.
    ///
    /// `rows` *PANEL_COLUMNS x H* is scratch memory.
    pub fn write_frame_panel(&self, frames: &[usize], rows: &mut [F], panel: &mut [F]) -> bool {
        let h = self.hidden;
        for (row, &frame) in rows.chunks_exact_mut(h).zip(frames) {
            row.copy_from_slice(&self.frame_addends.rows[frame * h..][..h]);
        }
        // Columns after the last frame are computed and not used.
        rows[frames.len() * h..].fill(F::ONE);
        transpose(panel, View::new(rows, PANEL_COLUMNS, h));
        !frames.iter().any(|&frame| self.frame_addends.is_overflow_row(frame))
    }

    /// Computes the scores of states at a panel of frames.
    ///
    /// `panel` is that of [`write_frame_panel`](Self::write_frame_panel), none if a frame has an
    /// overflow row. Calls `receive_tile` with each state and its scores at the frames, *(1 + V) x
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
            let state = *states.get(index).filter(|&&state| !self.state_addends.is_overflow_row(state))?;
            panel.map(|panel| (panel, &self.state_addends.rows[state * h..][..h]))
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
    /// The sites may have overflow rows.
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

/// Gradients of projections and head; d: gradient.
pub(crate) struct ProjectionGradients<F> {
    /// dP, *C x H*.
    pub state_addends: Vec<F>,
    /// dQ, *n x H*.
    pub frame_addends: Vec<F>,
    /// dW, *(1 + V) x H*.
    pub head: Vec<F>,
    /// Gradient of the head's bias, *1 + V*.
    pub bias: Vec<f64>,
}

impl<F: Real> ProjectionGradients<F> {
    /// Memory for `frames` frames.
    pub(crate) fn scratch(sizes: &JointSizes, frames: usize) -> ScratchReq {
        let JointSizes { states: c, vocabulary: v, hidden: h, .. } = *sizes;
        ScratchReq::new::<F>(c * h + (1 + v) * (h + 2) + frames * h)
    }

    /// Zero gradients, without frames.
    pub(crate) fn zeros(projections: &Projections<F>) -> Self {
        let &Projections { states, hidden, vocabulary, .. } = projections;
        Self {
            state_addends: vec![F::ZERO; states * hidden],
            frame_addends: Vec::new(),
            head: vec![F::ZERO; (1 + vocabulary) * hidden],
            bias: vec![0.0; 1 + vocabulary],
        }
    }
}
