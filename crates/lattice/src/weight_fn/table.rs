//! Arc weights of a recognition lattice from a table.
//!
//! It is for tests, examples, and weights that are computed elsewhere. Its gradient has the name
//! `table`.
use kernels::{Real, ScratchReq, par_for, parts_mut};

use super::{Arcs, ArcsMut, BoundWeights, LabelChain, Parameters, WeightFn, Workload};
use crate::{Error, Result, error::expect_len};

/// Weights from a table: `(b_t[p], l_t[p, y]) = table[x_t, p, (0, y)]`.
///
/// `x_t` is the first feature of frame t as an integer; p: context state; y: label.
///
///
/// A table *B.. x X x C x (1 + V)* has separate rows for each utterance; one *X x C x (1 + V)* is
/// shared by all. X rows, C context states, V labels.
#[derive(Debug, Clone, Copy)]
pub struct TableWeightFn<'a, F> {
    values: &'a [F],
    /// Number of utterances with separate rows; none for a shared table.
    utterances: Option<usize>,
    /// X, the number of rows of an utterance.
    row_count: usize,
    states: usize,
    vocabulary: usize,
}

impl<'a, F: Real> TableWeightFn<'a, F> {
    /// Creates a table of a shape *B.. x X x C x (1 + V)*.
    ///
    /// # Errors
    /// A shape without X, C and 1 + V; another length; a weight that is NaN or +inf. -inf blocks an
    /// arc.
    pub fn new(values: &'a [F], shape: &[usize]) -> Result<Self> {
        let dims = || format!("{shape:?}");
        let [batch @ .., row_count, states, columns] = shape else {
            return Err(Error::shape("table", "axes B.., X, C and 1 + V", dims()));
        };
        if *columns < 2 {
            return Err(Error::shape("table", "at least 2 columns, 1 + V", dims()));
        }
        let count = shape.iter().try_fold(1usize, |count, &axis| count.checked_mul(axis));
        expect_len("table", count.unwrap_or(usize::MAX), values.len())?;
        let is_invalid = |value: &F| value.to_f64().is_nan() || value.to_f64() == f64::INFINITY;
        if let Some(index) = values.iter().position(is_invalid) {
            let (argument, value) = ("table".into(), values[index].to_f64());
            return Err(Error::Parameter { argument, expected: "a finite value or -inf", index, value });
        }
        let utterances = (!batch.is_empty()).then(|| batch.iter().product());
        Ok(Self { values, utterances, row_count: *row_count, states: *states, vocabulary: columns - 1 })
    }
}

impl<F: Real> WeightFn<F> for TableWeightFn<'_, F> {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn states(&self) -> usize {
        self.states
    }

    fn frame_size(&self) -> Option<usize> {
        None
    }

    fn utterances(&self) -> Option<usize> {
        self.utterances
    }

    fn is_checked(&self) -> bool {
        true
    }

    fn scratch(&self, workload: Workload) -> ScratchReq {
        let gradient = if workload.gradients { self.values.len() } else { 0 };
        // Frames usually have one feature; the gradients of others are zero.
        let frame_starts = ScratchReq::new::<usize>(workload.frames);
        frame_starts.and(ScratchReq::new::<F>(workload.frames)).and(ScratchReq::new::<F>(gradient))
    }

    fn bind(&self, _buffers: &mut Vec<Vec<F>>) -> Result<Box<dyn BoundWeights<F> + '_>> {
        Ok(Box::new(BoundTable {
            table: *self,
            frame_starts: Vec::new(),
            frame_size: 0,
            gradient: Vec::new(),
        }))
    }
}

/// A table with the frames of a group.
struct BoundTable<'a, F> {
    table: TableWeightFn<'a, F>,
    /// Start of the table row of each frame.
    frame_starts: Vec<usize>,
    /// F, the number of features of a frame.
    frame_size: usize,
    /// Gradient of the table; empty before the first backward.
    gradient: Vec<F>,
}

impl<F: Real> BoundTable<'_, F> {
    /// Returns the index of the blank of a frame and state; labels follow.
    fn row_start(&self, frame: usize, state: usize) -> usize {
        self.frame_starts[frame] + state * (1 + self.table.vocabulary)
    }

    /// Returns the gradient of the table, which is initially zero.
    fn gradient(&mut self) -> &mut [F] {
        if self.gradient.is_empty() {
            self.gradient = vec![F::ZERO; self.table.values.len()];
        }
        &mut self.gradient
    }
}

impl<F: Real> BoundWeights<F> for BoundTable<'_, F> {
    fn set_frames(&mut self, rows: &[F], utterances: &[u32]) -> Result<()> {
        let TableWeightFn { utterances: table_utterances, row_count, states, vocabulary, .. } = self.table;
        self.frame_starts.clear();
        self.frame_size = rows.len() / utterances.len().max(1);
        if self.frame_size == 0 && !utterances.is_empty() {
            return Err(Error::shape("frames", "at least 1 feature, the row of the table", 0));
        }
        for (index, (features, &utterance)) in
            rows.chunks_exact(self.frame_size.max(1)).zip(utterances).enumerate()
        {
            let (row, utterance) = (features[0].to_f64(), utterance as usize);
            if !(row > -1.0 && row < row_count as f64) {
                let frame = utterances[..index]
                    .iter()
                    .rev()
                    .take_while(|&&other| other as usize == utterance)
                    .count();
                let description = format!("{row} in frame {frame} of utterance {utterance}");
                return Err(Error::shape(
                    "frames",
                    format!("rows of the table below {row_count}"),
                    description,
                ));
            }
            if table_utterances.is_some_and(|utterance_count| utterance >= utterance_count) {
                let description = format!("utterance {utterance}");
                return Err(Error::shape("table", "rows for each utterance of the frames", description));
            }
            let table_row = table_utterances.map_or(0, |_| utterance) * row_count + row as usize;
            self.frame_starts.push(table_row * states * (1 + vocabulary));
        }
        Ok(())
    }

    fn forward(&self, frames: &[usize], arcs: ArcsMut<F>) {
        let TableWeightFn { values, states, vocabulary, .. } = self.table;
        let arcs = (parts_mut(arcs.blank, states), parts_mut(arcs.labels, states * vocabulary));
        par_for(arcs, |index, (blank, label_arcs)| {
            let rows = &values[self.row_start(frames[index], 0)..][..states * (1 + vocabulary)];
            let rows = rows.chunks_exact(1 + vocabulary);
            for ((row, blank), label_arcs) in rows.zip(blank).zip(label_arcs.chunks_exact_mut(vocabulary)) {
                *blank = row[0];
                label_arcs.copy_from_slice(&row[1..]);
            }
        });
    }

    fn forward_state(&self, frame: usize, state: usize, label_arcs: &mut [F]) -> F {
        let row = &self.table.values[self.row_start(frame, state)..][..1 + self.table.vocabulary];
        label_arcs.copy_from_slice(&row[1..]);
        row[0]
    }

    fn backward(&mut self, frames: &[usize], adjoints: Arcs<F>) {
        let TableWeightFn { states, vocabulary, .. } = self.table;
        for (index, &frame) in frames.iter().enumerate() {
            let start = self.row_start(frame, 0);
            let (blank, label_arcs) =
                (&adjoints.blank[index * states..], &adjoints.labels[index * states * vocabulary..]);
            let rows = self.gradient()[start..][..states * (1 + vocabulary)].chunks_exact_mut(1 + vocabulary);
            for ((row, &blank), label_arcs) in rows.zip(blank).zip(label_arcs.chunks_exact(vocabulary)) {
                row[0] += blank;
                F::add_slice(&mut row[1..], label_arcs);
            }
        }
    }

    fn forward_chain(&self, first_frame: usize, chain: LabelChain, arcs: ArcsMut<F>) -> Result<()> {
        let positions = chain.states.len();
        let frames = arcs.blank.chunks_exact_mut(positions).zip(arcs.labels.chunks_exact_mut(positions));
        for (frame, (blank, label_arcs)) in (first_frame..).zip(frames) {
            for (position, &state) in chain.states.iter().enumerate() {
                let row = &self.table.values[self.row_start(frame, state)..];
                blank[position] = row[0];
                label_arcs[position] =
                    chain.labels.get(position).map_or(F::NEG_INFINITY, |&y| row[y as usize]);
            }
        }
        Ok(())
    }

    fn backward_chain(&mut self, first_frame: usize, chain: LabelChain, adjoints: Arcs<F>) -> Result<()> {
        let positions = chain.states.len();
        let frames = adjoints.blank.chunks_exact(positions).zip(adjoints.labels.chunks_exact(positions));
        for (frame, (blank, label_arcs)) in (first_frame..).zip(frames) {
            for (position, &state) in chain.states.iter().enumerate() {
                let start = self.row_start(frame, state);
                let row = &mut self.gradient()[start..];
                row[0] += blank[position];
                if let Some(&label) = chain.labels.get(position) {
                    row[label as usize] += label_arcs[position];
                }
            }
        }
        Ok(())
    }

    fn frame_gradient(&mut self, _rows: &[F]) -> Vec<F> {
        vec![F::ZERO; self.frame_starts.len() * self.frame_size]
    }

    fn finish(mut self: Box<Self>) -> Parameters<F> {
        self.gradient();
        Parameters::from([("table".to_owned(), self.gradient)])
    }
}
