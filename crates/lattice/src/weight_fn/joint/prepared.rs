//! Hidden rows of a joint network: addends that are prepared once, so that each tangent costs a product and a quotient.
//!
//! ```text
//! h[t,p] = tanh(P[p] + Q_t)
//! ```
//! Forward takes them as panels, steps of the sum x columns: the states of one frame, or the frames of one state. A few addends may
//! be too large to be prepared; tangents with them are made of the sums themselves.
use std::sync::OnceLock;

use kernels::{
    PANEL, PackedLeft, PackedRight, Real, View, panel_product, par_for, parts, parts_mut, tanh_product,
    transpose,
};

use super::opened::Opened;

/// Addends as the tangent takes them, and packed heads.
pub struct Prepared<F> {
    /// Panels of contexts, *H x PANEL* each.
    panels: Vec<F>,
    /// Contexts behind the last whole panel, a row each.
    rest: Vec<F>,
    /// Contexts *C x H*, for who wants one at a time.
    contexts: OnceLock<Vec<F>>,
    /// Whether a context has addends that cannot be prepared.
    far_states: Vec<bool>,
    /// *n x H*
    frames: Vec<F>,
    far_frames: Vec<bool>,
    head_left: PackedLeft<F>,
    pub head_right: OnceLock<PackedRight<F>>,
}

/// Rows as columns of a panel that has more of them.
fn spread<F: Real>(rows: &[F], h: usize, panel: &mut [F]) {
    for (column, row) in rows.chunks_exact(h).enumerate() {
        panel.chunks_exact_mut(PANEL).zip(row).for_each(|(step, &value)| step[column] = value);
    }
}

fn is_far<F: Real>(row: &[F]) -> bool {
    let most = F::from_f64(F::PREPARED);
    row.iter().fold(false, |far, &x| far | (x > most) | (-x > most))
}

impl<F: Real> Prepared<F> {
    pub fn new(contexts: &[F], head: &[F], h: usize) -> Self {
        let states = contexts.len() / h;
        let mut panels = kernels::filled(states.next_multiple_of(PANEL) * h, F::ZERO);
        let mut far_states = vec![false; states];
        let of_panels = (parts_mut(&mut panels, PANEL * h), parts_mut(&mut far_states, PANEL));
        par_for((of_panels, parts(contexts, PANEL * h)), |_, ((panel, far), contexts)| {
            far.iter_mut().zip(contexts.chunks_exact(h)).for_each(|(far, row)| *far = is_far(row));
            match contexts.len() / h {
                PANEL => transpose(panel, View::new(contexts, PANEL, h)),
                _ => spread(contexts, h, panel),
            }
            F::prepare_tanh(panel);
        });
        let mut rest = contexts[states / PANEL * PANEL * h..].to_vec();
        F::prepare_tanh(&mut rest);
        Self {
            panels,
            rest,
            contexts: OnceLock::new(),
            far_states,
            frames: Vec::new(),
            far_frames: Vec::new(),
            head_left: PackedLeft::new(View::new(head, head.len() / h, h), head.len() / h),
            head_right: OnceLock::new(),
        }
    }

    /// Goes on to other frames.
    pub fn enter(&mut self, frames: &[F], h: usize) {
        self.frames.clear();
        self.frames.extend_from_slice(frames);
        self.far_frames.clear();
        self.far_frames.resize(frames.len() / h, false);
        par_for(
            (parts_mut(&mut self.frames, 16 * h), parts_mut(&mut self.far_frames, 16)),
            |_, (rows, far)| {
                far.iter_mut().zip(rows.chunks_exact(h)).for_each(|(far, row)| *far = is_far(row));
                F::prepare_tanh(rows);
            },
        );
    }
}

impl<F: Real> Opened<'_, F> {
    /// `h` of one site.
    pub fn hidden_row(&self, frame: usize, state: usize, out: &mut [F]) {
        let h = self.hidden();
        let Prepared { contexts, frames, far_states, far_frames, .. } = &self.prepared;
        let (state_at, frame_at) = (state * h..(state + 1) * h, frame * h..(frame + 1) * h);
        if far_states[state] || far_frames[frame] {
            return F::tanh_sum(out, &self.contexts[state_at], &self.frames[frame_at]);
        }
        // One thread's work: one that waits for others could be given a task that waits for this.
        let contexts = contexts.get_or_init(|| {
            let mut contexts = self.contexts.clone();
            F::prepare_tanh(&mut contexts);
            contexts
        });
        F::tanh_pairs(out, &contexts[state_at], &frames[frame_at]);
    }

    /// Scores of a panel of states at a frame, *(1 + V) x PANEL* on top of what `tile` holds; `hidden` *H x PANEL* is room.
    pub fn score_states(&self, frame: usize, panel: usize, hidden: &mut [F], tile: &mut [F]) {
        let (h, states) = (self.hidden(), self.joint.states);
        let Prepared { panels, frames, far_states, far_frames, head_left, .. } = &self.prepared;
        let of_panel = panel * PANEL..states.min((panel + 1) * PANEL);
        if far_frames[frame] || far_states[of_panel.clone()].contains(&true) {
            return self.score_sites(of_panel.map(|state| (frame, state)), hidden, tile);
        }
        let addends = (&panels[panel * PANEL * h..][..PANEL * h], &frames[frame * h..][..h]);
        tanh_product(tile, head_left, addends, hidden);
    }

    /// Some frames as a panel; whether all of them are prepared. `rows` *PANEL x H* is room.
    pub fn panel_of_frames(&self, frames: &[usize], rows: &mut [F], panel: &mut [F]) -> bool {
        let h = self.hidden();
        for (row, &frame) in rows.chunks_exact_mut(h).zip(frames) {
            row.copy_from_slice(&self.prepared.frames[frame * h..][..h]);
        }
        // What is behind the last frame are numbers as good as any.
        rows[frames.len() * h..].fill(F::ONE);
        transpose(panel, View::new(rows, PANEL, h));
        !frames.iter().any(|&frame| self.prepared.far_frames[frame])
    }

    /// Scores of one of the states behind the last whole panel at a panel of frames, as [`score_states`](Self::score_states).
    pub fn score_frames(
        &self,
        (frames, panel): (&[usize], Option<&[F]>),
        state: usize,
        hidden: &mut [F],
        tile: &mut [F],
    ) {
        let h = self.hidden();
        let Prepared { rest, far_states, head_left, .. } = &self.prepared;
        match panel {
            Some(panel) if !far_states[state] => {
                tanh_product(tile, head_left, (panel, &rest[state % PANEL * h..][..h]), hidden);
            }
            _ => self.score_sites(frames.iter().map(|&frame| (frame, state)), hidden, tile),
        }
    }

    /// Scores of any sites, frame and state, a column each.
    fn score_sites(&self, sites: impl Iterator<Item = (usize, usize)>, hidden: &mut [F], tile: &mut [F]) {
        let h = self.hidden();
        let mut row = vec![F::ZERO; h];
        for (column, (frame, state)) in sites.enumerate() {
            self.hidden_row(frame, state, &mut row);
            hidden.chunks_exact_mut(PANEL).zip(&row).for_each(|(step, &value)| step[column] = value);
        }
        panel_product(tile, &self.prepared.head_left, hidden);
    }
}
