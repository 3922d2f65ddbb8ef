//! Stateless predictor of a transducer: a function of the last few labels.
use kernels::{add, par_for, parts, parts_mut, tanh};

use super::Predictor;
use crate::{Error, NetworkScratch, Result, States};

/// Placeholder before the first label; its embedding is 0.
pub const NO_LABEL: u32 = u32::MAX;
/// Rows of one parallel task.
const ROWS_PER_TASK: usize = 16;

/// Nonlinearity of a stateless predictor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorActivation {
    /// `tanh(x)`
    Tanh,
    /// `max(x, 0)`
    Relu,
    /// `x`
    Identity,
    /// `(x - μ) / √(σ² + 1e-5)`, with mean μ and variance σ² of the row.
    Normalize,
}

/// Term added to the variance of [`PredictorActivation::Normalize`].
const EPSILON: f32 = 1e-5;

impl PredictorActivation {
    /// Applies the function to a row, in place; NaN stays NaN.
    fn apply(self, row: &mut [f32]) {
        match self {
            Self::Tanh => tanh(row),
            // Not `max`, which maps NaN to 0.
            Self::Relu => row.iter_mut().for_each(|value| *value = if *value < 0.0 { 0.0 } else { *value }),
            Self::Identity => {}
            Self::Normalize => {
                let count = row.len() as f32;
                let mean = row.iter().sum::<f32>() / count;
                let variance = row.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / count;
                let scale = 1.0 / (variance + EPSILON).sqrt();
                row.iter_mut().for_each(|value| *value = (*value - mean) * scale);
            }
        }
    }
}

/// A stateless predictor: `act(Σ_k W_k e(y_{u-context+k}) + b)`, labels oldest first.
///
/// After u labels y; k is a position in the context, e(y) the embedding of a label, W_k the weight
/// of a position, b the bias.
///
/// The convolution of k2's recipes, a linear layer over concatenated embeddings, and concatenated
/// embeddings of NeMo have this form.
/// `W_k e(y)` is looked up in one table per context position, so that a step is a few additions.
#[derive(Debug)]
pub struct StatelessPredictor {
    /// `W_k e(y)` by position k and label y: *context x ids x P*, P the output width.
    tables: Vec<f32>,
    bias: Vec<f32>,
    activation: PredictorActivation,
    /// Number of label ids.
    ids: usize,
    /// Context before any label, oldest label first.
    start_context: Vec<u32>,
}

impl StatelessPredictor {
    /// Builds the tables from embeddings, weight and bias.
    ///
    /// Shapes: embeddings `[ids, E]`, weight `[P, context, E]`, bias `[P]`; E is the width of an
    /// embedding, P that of the output.
    /// `start` is the context before any label, oldest first; [`NO_LABEL`](crate::NO_LABEL) adds 0.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes do not match.
    ///
    /// Cost: `context · ids · P` numbers.
    pub fn new(
        (embedding, width): (&[f32], usize),
        weight: &[f32],
        bias: &[f32],
        start: &[u32],
        activation: PredictorActivation,
    ) -> Result<Self> {
        let (ids, context, outputs) = (embedding.len() / width.max(1), start.len(), bias.len());
        if width == 0 || ids == 0 || embedding.len() != ids * width {
            return Err(Error::shape(
                "embedding",
                format!("whole rows of {width}, at least one"),
                embedding.len(),
            ));
        }
        if context == 0 || outputs == 0 || weight.len() != outputs * context * width {
            let expected = format!("[{outputs}, {context}, {width}], at least one of each");
            return Err(Error::shape("context weight", expected, weight.len()));
        }
        if let Some(label) = start.iter().find(|&&label| label != NO_LABEL && label as usize >= ids) {
            return Err(Error::shape("start", format!("labels below {ids}"), label));
        }
        let mut tables = vec![0.0; context * ids * outputs];
        for (position, table) in tables.chunks_exact_mut(ids * outputs).enumerate() {
            let rows = weight.chunks_exact(context * width);
            let position_weight: Vec<f32> =
                rows.flat_map(|row| &row[position * width..][..width]).copied().collect();
            let matrix = kernels::View::new(&position_weight, outputs, width).transposed();
            kernels::Affine::new(matrix, None).forward(embedding, table);
        }
        Ok(Self { tables, bias: bias.to_vec(), activation, ids, start_context: start.to_vec() })
    }

    /// Concatenates an embedding of each label, the newest first.
    ///
    /// `tables` has embeddings `[ids, width]` and their width for each distance, from 1 on; the
    /// width P of the output is their sum. `start` is as in [`Self::new`].
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes do not match.
    ///
    /// Cost: `context · ids · P` numbers.
    pub fn concatenate(
        tables: &[(&[f32], usize)],
        start: &[u32],
        activation: PredictorActivation,
    ) -> Result<Self> {
        let context = tables.len();
        if context == 0 || start.len() != context {
            return Err(Error::shape("start", format!("{} labels, at least one", context), start.len()));
        }
        let ids = tables[0].0.len() / tables[0].1.max(1);
        for (index, &(table, width)) in tables.iter().enumerate() {
            if width == 0 || ids == 0 || table.len() != ids * width {
                let expected = format!("[{}, {width}], at least one of each", ids.max(1));
                return Err(Error::shape(&format!("embeddings {index}"), expected, table.len()));
            }
        }
        if let Some(label) = start.iter().find(|&&label| label != NO_LABEL && label as usize >= ids) {
            return Err(Error::shape("start", format!("labels below {ids}"), label));
        }
        let outputs: usize = tables.iter().map(|&(_, width)| width).sum();
        let mut padded_tables = vec![0.0; context * ids * outputs];
        let mut column = 0;
        // The oldest label is the first of a context.
        for (&(table, width), padded) in tables.iter().zip(padded_tables.rchunks_exact_mut(ids * outputs)) {
            for (row, embedding) in padded.chunks_exact_mut(outputs).zip(table.chunks_exact(width)) {
                row[column..column + width].copy_from_slice(embedding);
            }
            column += width;
        }
        let bias = vec![0.0; outputs];
        Ok(Self { tables: padded_tables, bias, activation, ids, start_context: start.to_vec() })
    }

    /// Computes the output row after a context.
    fn forward_row(&self, context: &[u32], out: &mut [f32]) {
        out.copy_from_slice(&self.bias);
        for (position, &label) in context.iter().enumerate().filter(|(_, label)| **label != NO_LABEL) {
            let offset = (position * self.ids + label as usize) * self.bias.len();
            add(out, &self.tables[offset..][..self.bias.len()]);
        }
        self.activation.apply(out);
    }
}

impl Predictor for StatelessPredictor {
    fn width(&self) -> usize {
        self.bias.len()
    }

    fn label_ids(&self) -> usize {
        self.ids
    }

    fn start(&self) -> (States, Vec<f32>) {
        let mut out = vec![0.0; self.bias.len()];
        self.forward_row(&self.start_context, &mut out);
        (States::from_row(self.start_context.clone(), Vec::new()), out)
    }

    fn context(&self) -> usize {
        self.start_context.len()
    }

    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], _: &mut NetworkScratch) {
        let context = self.start_context.len();
        for (context_row, &label) in states.labels_mut().chunks_exact_mut(context).zip(labels) {
            context_row.copy_within(1.., 0);
            context_row[context - 1] = label;
        }
        let width = self.bias.len();
        par_for(
            (parts_mut(out, ROWS_PER_TASK * width), parts(states.labels(), ROWS_PER_TASK * context)),
            |_, (out, labels)| {
                let rows = out.chunks_exact_mut(width).zip(labels.chunks_exact(context));
                rows.for_each(|(out, context)| self.forward_row(context, out));
            },
        );
    }
}
