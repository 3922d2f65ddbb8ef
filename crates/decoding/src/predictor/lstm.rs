//! LSTM predictor of a transducer, with weights packed for inference.
//!
//! A strip is a range of LSTM units whose four gates one parallel task computes. *hidden*: units of
//! a layer, which are the width P of the predictor's output; D: width of a layer's input; *ids*:
//! label ids; h, c: hidden and cell state.
use kernels::packed::{NumberFormat, RowBits};
use kernels::{Accumulate, View, ViewMut, par_for, parts, parts_mut, sigmoid, tanh};

use super::Predictor;
use crate::affine::strip_outputs;
use crate::packed_weight::{InputRows, PackedWeight};
use crate::{AffineLayer, Error, NetworkScratch, Result, States};

/// Default limit on the bytes of the table of first-layer input products.
const MAX_TABLE_BYTES: usize = 256 << 20;
/// Gates of a unit: i, f, g, o.
const GATES: usize = 4;
/// State values of a unit: h and c.
const STATE_VALUES: usize = 2;

/// Weights of an LSTM layer, with gate order i, f, g, o.
#[derive(Debug, Clone, Copy)]
pub struct LstmLayer<'a> {
    /// Input weight `[4·hidden, D]`.
    ///
    /// D is the embedding width in the first layer, *hidden* in the others.
    pub input: &'a [f32],
    /// Recurrent weight `[4·hidden, hidden]`.
    pub recurrent: &'a [f32],
    /// Bias `[4·hidden]`; the sum for toolkits with two biases.
    pub bias: &'a [f32],
}

/// An LSTM predictor: layers of one width over label embeddings.
///
/// ```text
/// [i f g o] = x W_ihᵀ + h W_hhᵀ + b     c' = σ(f) c + σ(i) tanh(g)     h' = σ(o) tanh(c')
/// ```
/// x: input of a layer; h, c: its states; W_ih, W_hh, b: its weights and bias.
///
/// `x W_ihᵀ + b` of the first layer is looked up in a table with one row per label, unless the
/// table is too large. A step of a layer is one parallel loop over strips of units, each with the
/// four gates of its units.
pub struct LstmPredictor {
    first_input: FirstInput,
    layers: Vec<PackedLstmLayer>,
    /// Units of a layer; also the width of the output.
    hidden: usize,
    /// Units of a strip; the last strip may have fewer.
    units_per_strip: usize,
    /// Number of label ids.
    ids: usize,
    /// State and output row before any label: after a step on the start label.
    start: (States, Vec<f32>),
}

/// Input product `x W_ihᵀ + b` of the first layer, in strip order.
enum FirstInput {
    /// Input products of all labels, *ids x 4·hidden*.
    Table(Vec<f32>),
    /// Embeddings *ids x D*, and the layer that computes input products.
    Embeddings(Vec<f32>, AffineLayer),
}

/// Packed weights of a layer.
struct PackedLstmLayer {
    strips: Vec<UnitStrip>,
    /// Bias in the order of the strips.
    bias: Vec<f32>,
}

/// Weights of a range of units: their columns i, f, g, o.
struct UnitStrip {
    /// Input weight; none in the first layer.
    input: Option<PackedWeight>,
    recurrent: PackedWeight,
}

/// Gathers the gate rows of a strip's units from `[4·hidden, D]`.
fn gather_gates(matrix: &[f32], hidden: usize, units: std::ops::Range<usize>) -> Vec<f32> {
    let width = matrix.len() / (GATES * hidden);
    let gate =
        |gate: usize| &matrix[(gate * hidden + units.start) * width..(gate * hidden + units.end) * width];
    (0..GATES).flat_map(|index| gate(index).iter().copied()).collect()
}

impl LstmPredictor {
    /// Packs embeddings `[ids, embedding_width]` and layers.
    ///
    /// The start state is one step on the label `start` from zero states.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes do not match, or the start label has no embedding.
    pub fn new(embedding: &[f32], embedding_width: usize, layers: &[LstmLayer], start: u32) -> Result<Self> {
        Self::with_table_limit(MAX_TABLE_BYTES, embedding, embedding_width, layers, start)
    }

    /// [`Self::new`] with weights in 8-bit blocks, and without a table of products.
    ///
    /// Embeddings and biases are `f32`.
    ///
    /// # Errors
    /// As [`Self::new`]; also for weights above 8e6.
    pub fn quantized(
        embedding: &[f32],
        embedding_width: usize,
        layers: &[LstmLayer],
        start: u32,
    ) -> Result<Self> {
        Self::with_format(NumberFormat::Q8, 0, (embedding, embedding_width), layers, start)
    }

    /// [`Self::new`] with a limit on the bytes of the product table.
    ///
    /// The table has *ids x 4·hidden* values; the default limit is 256 MiB. Above the limit, the
    /// embeddings of a step's labels are multiplied in the step; results are the same bits.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_table_limit(
        max_table_bytes: usize,
        embedding: &[f32],
        embedding_width: usize,
        layers: &[LstmLayer],
        start: u32,
    ) -> Result<Self> {
        Self::with_format(NumberFormat::F32, max_table_bytes, (embedding, embedding_width), layers, start)
    }

    fn with_format(
        format: NumberFormat,
        max_table_bytes: usize,
        (embedding, embedding_width): (&[f32], usize),
        layers: &[LstmLayer],
        start: u32,
    ) -> Result<Self> {
        let ids = embedding.len() / embedding_width.max(1);
        if embedding_width == 0 || ids == 0 || embedding.len() != ids * embedding_width {
            return Err(Error::shape(
                "embedding",
                format!("whole rows of {embedding_width}, at least one"),
                embedding.len(),
            ));
        }
        if start as usize >= ids {
            return Err(Error::shape("start", format!("a label below {ids}"), start));
        }
        let hidden = layers.first().map_or(0, |layer| layer.bias.len() / GATES);
        if hidden == 0 {
            return Err(Error::shape("layers", "at least one, with a bias of 4P".into(), layers.len()));
        }
        let units_per_strip = (strip_outputs(hidden) / GATES).min(hidden);
        let strips =
            || (0..hidden).step_by(units_per_strip).map(|begin| begin..hidden.min(begin + units_per_strip));
        // Weights of each layer, packed by strips.
        let mut packed_layers = Vec::with_capacity(layers.len());
        for (index, layer) in layers.iter().enumerate() {
            let inputs = if index == 0 { embedding_width } else { hidden };
            for (name, found, expected) in [
                ("weight_ih", layer.input.len(), GATES * hidden * inputs),
                ("weight_hh", layer.recurrent.len(), GATES * hidden * hidden),
                ("bias", layer.bias.len(), GATES * hidden),
            ] {
                if found != expected {
                    let name = format!("{name} of layer {index}");
                    return Err(Error::shape(&name, format!("{expected} values"), found));
                }
            }
            let pack = |name, matrix: &[f32], inputs: usize, units: &std::ops::Range<usize>| {
                let matrix = gather_gates(matrix, hidden, units.clone());
                PackedWeight::new(name, format, &matrix, inputs)
            };
            let strip = |units: std::ops::Range<usize>| {
                let input =
                    (index > 0).then(|| pack("weight_ih", layer.input, inputs, &units)).transpose()?;
                Ok(UnitStrip { input, recurrent: pack("weight_hh", layer.recurrent, hidden, &units)? })
            };
            let bias = strips().flat_map(|units| gather_gates(layer.bias, hidden, units)).collect();
            packed_layers.push(PackedLstmLayer { strips: strips().map(strip).collect::<Result<_>>()?, bias });
        }
        // Input products of the first layer, in a table if it is small enough.
        let weight: Vec<f32> =
            strips().flat_map(|units| gather_gates(layers[0].input, hidden, units)).collect();
        let bias = Some(&packed_layers[0].bias[..]);
        let input_layer = AffineLayer::with_format(format, "weight_ih", &weight, embedding_width, bias)?;
        let first_input =
            if (GATES * hidden).saturating_mul(ids).saturating_mul(size_of::<f32>()) <= max_table_bytes {
                let mut table = vec![0.0; ids * GATES * hidden];
                input_layer.forward(embedding, &mut table, &mut NetworkScratch::default());
                FirstInput::Table(table)
            } else {
                FirstInput::Embeddings(embedding.to_vec(), input_layer)
            };
        // Start state: a step on the start label from zero states.
        let zero = States::from_row(Vec::new(), vec![0.0; STATE_VALUES * hidden * layers.len()]);
        let mut predictor = Self {
            first_input,
            layers: packed_layers,
            hidden,
            units_per_strip,
            ids,
            start: (zero, vec![0.0; hidden]),
        };
        let (mut states, mut out) = predictor.start.clone();
        predictor.step(&[start], &mut states, &mut out, &mut NetworkScratch::default());
        predictor.start = (states, out);
        Ok(predictor)
    }
}

/// Adds `values` to a row of `matrix`, whose rows have `width` values.
fn add_to_row(matrix: &mut [f32], width: usize, row: usize, values: &[f32]) {
    kernels::add(&mut matrix[row * width..][..width], values);
}

impl Predictor for LstmPredictor {
    fn width(&self) -> usize {
        self.hidden
    }

    fn label_ids(&self) -> usize {
        self.ids
    }

    fn start(&self) -> (States, Vec<f32>) {
        self.start.clone()
    }

    /// Advances each state row by a label.
    ///
    /// ```text
    /// for layers:
    ///   for strips of units:  gates = h W_hh[strip]ᵀ + (table[label] | x W_ih[strip]ᵀ + b);  new h, c of the strip
    ///   h, c of all strips into the states
    /// ```
    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], scratch: &mut NetworkScratch) {
        let (rows, hidden) = (labels.len(), self.hidden);
        if rows == 0 {
            return;
        }
        // Values of one hypothesis: gates of a layer, states of a layer, states of all layers.
        let (layer_gates, layer_values) = (GATES * hidden, STATE_VALUES * hidden);
        let state_width = layer_values * self.layers.len();
        assert!(
            states.values().len() == rows * state_width && out.len() == rows * hidden,
            "lstm: {rows} labels, {} rows of states",
            states.rows()
        );
        let input_scratch_len = match &self.first_input {
            FirstInput::Table(_) => 0,
            FirstInput::Embeddings(_, layer) => {
                rows * (layer.inputs() + layer_gates) + layer.scratch_len(rows)
            }
        };
        let ([gates, new_states, input_scratch], [quantized_h, quantized_input]) =
            scratch.buffers([rows * layer_gates, rows * layer_values, input_scratch_len]);
        // Without a table: input products of the first layer, from the embeddings of the labels.
        if let FirstInput::Embeddings(embedding, layer) = &self.first_input {
            let embedding_width = layer.inputs();
            let (products, rest) = input_scratch.split_at_mut(rows * layer_gates);
            let (embedded, layer_scratch) = rest.split_at_mut(rows * embedding_width);
            for (row, &label) in embedded.chunks_exact_mut(embedding_width).zip(labels) {
                row.copy_from_slice(&embedding[label as usize * embedding_width..][..embedding_width]);
            }
            layer.forward_in(embedded, products, layer_scratch, quantized_input);
        }
        let products = &input_scratch[..input_scratch_len.min(rows * layer_gates)];
        for (index, layer) in self.layers.iter().enumerate() {
            // New h and c of each strip, from h and c of this layer and the new h of the layer
            // below.
            let values = states.values();
            let h =
                |layer: usize| View::with_stride(&values[layer * layer_values..], rows, hidden, state_width);
            let format = layer.strips[0].recurrent.format();
            let old_h = InputRows::new(h(index), format, RowBits::Eight, quantized_h);
            let layer_below = index.checked_sub(1);
            let input_h =
                layer_below.map(|below| InputRows::new(h(below), format, RowBits::Eight, quantized_input));
            let units_per_strip = self.units_per_strip;
            let task_parts = (
                parts_mut(&mut gates[..rows * layer_gates], rows * GATES * units_per_strip),
                parts_mut(&mut new_states[..rows * layer_values], rows * STATE_VALUES * units_per_strip),
                parts(&layer.strips, 1),
            );
            par_for(task_parts, |strip, (gates, new_states, weights)| {
                let (units, first_unit) = (new_states.len() / (STATE_VALUES * rows), strip * units_per_strip);
                let (strip_gates, strip_values) = (GATES * units, STATE_VALUES * units);
                let [weights] = weights else { unreachable!("one strip a part") };
                let target = ViewMut::new(&mut *gates, rows, strip_gates);
                weights.recurrent.multiply(target, old_h, Accumulate::Replace);
                if let (Some(input), Some(input_h)) = (&weights.input, input_h) {
                    let target = ViewMut::new(&mut *gates, rows, strip_gates);
                    input.multiply(target, input_h, Accumulate::Add);
                }
                for (row, &label) in labels.iter().enumerate() {
                    let input = match (&self.first_input, index) {
                        (FirstInput::Table(table), 0) => {
                            &table[label as usize * layer_gates..][..layer_gates]
                        }
                        (FirstInput::Embeddings(..), 0) => &products[row * layer_gates..][..layer_gates],
                        _ => &layer.bias,
                    };
                    add_to_row(gates, strip_gates, row, &input[GATES * first_unit..][..strip_gates]);
                    let old_cell =
                        &values[row * state_width + index * layer_values + hidden + first_unit..][..units];
                    let gates = &mut gates[row * strip_gates..][..strip_gates];
                    let (new_h, new_cell) =
                        new_states[row * strip_values..][..strip_values].split_at_mut(units);
                    advance_cells(gates, old_cell, new_h, new_cell);
                }
            });
            // Copy h and c of all strips into the states.
            for (strip, new_states) in
                new_states[..rows * layer_values].chunks(rows * STATE_VALUES * units_per_strip).enumerate()
            {
                let units = new_states.len() / (STATE_VALUES * rows);
                for (row, new_state) in new_states.chunks_exact(STATE_VALUES * units).enumerate() {
                    let offset = row * state_width + index * layer_values + strip * units_per_strip;
                    let values = states.values_mut();
                    values[offset..][..units].copy_from_slice(&new_state[..units]);
                    values[offset + hidden..][..units].copy_from_slice(&new_state[units..]);
                }
            }
        }
        // The output is h of the last layer.
        let top_offset = (self.layers.len() - 1) * layer_values;
        for (out, values) in out.chunks_exact_mut(hidden).zip(states.values().chunks_exact(state_width)) {
            out.copy_from_slice(&values[top_offset..][..hidden]);
        }
    }
}

/// Computes the LSTM cell of a range of units: new cell and hidden state.
///
/// `gates` are i, f, g and o of all units before their activations, which replace them.
fn advance_cells(gates: &mut [f32], old_cell: &[f32], new_h: &mut [f32], new_cell: &mut [f32]) {
    let units = old_cell.len();
    let (input_and_forget, rest) = gates.split_at_mut(2 * units);
    let (g, o) = rest.split_at_mut(units);
    sigmoid(input_and_forget);
    tanh(g);
    sigmoid(o);
    let (i, f) = input_and_forget.split_at(units);
    for k in 0..units {
        new_cell[k] = f[k] * old_cell[k] + i[k] * g[k];
    }
    new_h.copy_from_slice(new_cell);
    tanh(new_h);
    new_h.iter_mut().zip(o).for_each(|(h, &mut o)| *h *= o);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Label ids, embedding width and units of [`predictor`].
    const SIZES: (usize, usize, usize) = (9, 11, 70);

    /// Packs two layers with a limit on the bytes of the table.
    fn predictor(format: NumberFormat, max_table_bytes: usize) -> LstmPredictor {
        let test_values = |count: usize, step: f32| -> Vec<f32> {
            (0..count).map(|i| (i as f32 * step).sin() / 4.0).collect()
        };
        let (ids, width, h) = SIZES;
        let embedding = test_values(ids * width, 0.7);
        let (first, upper) = (test_values(4 * h * width, 0.31), test_values(4 * h * h, 0.17));
        let (recurrent, bias) = (test_values(4 * h * h, 0.23), test_values(4 * h, 1.3));
        let layer = |input| LstmLayer { input, recurrent: &recurrent, bias: &bias };
        let layers = [layer(&first), layer(&upper)];
        LstmPredictor::with_format(format, max_table_bytes, (&embedding, width), &layers, 3).unwrap()
    }

    #[test]
    fn table_and_products_give_the_same_bits() {
        let (ids, _, h) = SIZES;
        let output_and_states = |max_table_bytes| {
            let predictor = predictor(NumberFormat::F32, max_table_bytes);
            let mut states = States::new(predictor.shape());
            let mut scratch = NetworkScratch::default();
            let (start, _) = predictor.start();
            states.extend(&start, [0; 60]);
            let mut out = vec![f32::NAN; 60 * h];
            for step in 0..3 {
                let labels: Vec<u32> = (0..60).map(|row| (row * 5 + step) % ids as u32).collect();
                predictor.step(&labels, &mut states, &mut out, &mut scratch);
            }
            (out, states)
        };
        assert_eq!(output_and_states(MAX_TABLE_BYTES), output_and_states(4 * ids * 4 * h - 1));
    }

    #[test]
    fn quantized_steps_are_close_to_f32_and_independent_of_the_batch() {
        let (ids, _, h) = SIZES;
        let outputs = |predictor: &LstmPredictor, first: usize, rows: usize| {
            let (mut states, mut scratch) = (States::new(predictor.shape()), NetworkScratch::default());
            states.extend(&predictor.start().0, vec![0; rows]);
            let mut out = vec![f32::NAN; rows * h];
            for step in 0..3 {
                let labels: Vec<u32> =
                    (first..first + rows).map(|row| (row * 5 + step) as u32 % ids as u32).collect();
                predictor.step(&labels, &mut states, &mut out, &mut scratch);
            }
            out
        };
        let quantized = predictor(NumberFormat::Q8, 0);
        let all = outputs(&quantized, 0, 60);
        for row in [0, 31, 59] {
            assert_eq!(outputs(&quantized, row, 1), all[row * h..][..h], "row {row}");
        }
        let expected = outputs(&predictor(NumberFormat::F32, MAX_TABLE_BYTES), 0, 60);
        let largest = all.iter().zip(&expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(largest > 1e-6 && largest < 0.02, "{largest}");
    }
}
