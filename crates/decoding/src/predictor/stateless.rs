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
}

/// A stateless predictor: `act(Σ_k W_k e(y_{u-context+k}) + b)`, labels oldest first.
///
/// After u labels y; k is a position in the context, e(y) the embedding of a label, W_k the weight
/// of a position, b the bias.
///
/// The convolution of k2's recipes and a linear layer over concatenated embeddings have this form.
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

    /// Computes the output row after a context.
    fn forward_row(&self, context: &[u32], out: &mut [f32]) {
        out.copy_from_slice(&self.bias);
        for (position, &label) in context.iter().enumerate().filter(|(_, label)| **label != NO_LABEL) {
            let offset = (position * self.ids + label as usize) * self.bias.len();
            add(out, &self.tables[offset..][..self.bias.len()]);
        }
        match self.activation {
            PredictorActivation::Tanh => tanh(out),
            // Not `max`, which maps NaN to 0.
            PredictorActivation::Relu => {
                out.iter_mut().for_each(|value| *value = if *value < 0.0 { 0.0 } else { *value })
            }
        }
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
