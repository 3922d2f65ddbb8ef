//! The model as a decoder sees it: plain slices, one label at a time.
use candle_core::Var;
use decoding::{Transducer, factor_blank};
use kernels::{Accumulate, PackedRight, View, ViewMut, add, product_packed, sigmoid, tanh};

use crate::Result;
use crate::model::Model;
use crate::predictor::Kind;
use crate::recipe::LossConfig;
use crate::tensors::to_vec;

/// Predictor, joint and head of a model, copied out of its tensors.
#[derive(Debug)]
pub struct Stepwise {
    blank: u32,
    classes: usize,
    width: usize,
    big_blanks: Vec<(u32, usize)>,
    durations: Vec<usize>,
    factored_blank: bool,
    /// `[L + 1, E]`
    embedding: Vec<f32>,
    kind: Steps,
    projection: Affine,
    /// Classes, then durations: of `[C + D, H]` and `[C + D]`.
    head: Affine,
}

/// `y = x W + b` for one row at a time, W *D x O* packed.
#[derive(Debug)]
struct Affine {
    weight: PackedRight<f32>,
    bias: Vec<f32>,
}

impl Affine {
    fn new(weight: View<f32>, bias: Vec<f32>) -> Self {
        Self { weight: PackedRight::new(weight), bias }
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; self.bias.len()];
        self.write(x, &mut y);
        y
    }

    fn write(&self, x: &[f32], y: &mut [f32]) {
        let (row, to) = (View::new(x, 1, x.len()), ViewMut::new(&mut *y, 1, self.bias.len()));
        product_packed(to, row, &self.weight, Accumulate::Replace);
        add(y, &self.bias);
    }
}

#[derive(Debug)]
enum Steps {
    /// Each layer's packed weight as input-and-recurrent matrix plus bias.
    Lstm(Vec<Affine>),
    Stateless {
        context: usize,
        layer: Affine,
    },
}

/// What the predictor remembers.
#[derive(Debug, Clone)]
pub enum Memory {
    /// h and c of each layer.
    Lstm(Vec<(Vec<f32>, Vec<f32>)>),
    /// The last labels, oldest first.
    Labels(Vec<u32>),
}

impl Stepwise {
    /// Copies the current weights of a model.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn new(model: &Model) -> Result<Self> {
        let affine = |(weight, bias): (&Var, &Var)| -> Result<Affine> {
            let (inputs, outputs) = weight.dims2()?;
            let (weight, bias) = (to_vec(weight)?, to_vec(bias)?);
            Ok(Affine::new(View::new(&weight, inputs, outputs), bias))
        };
        let packed = |weight: &Var| -> Result<Affine> {
            let (rows, outputs) = weight.dims2()?;
            let mut values = to_vec(weight)?;
            let bias = values.split_off((rows - 1) * outputs);
            Ok(Affine::new(View::new(&values, rows - 1, outputs), bias))
        };
        let kind = match &model.predictor.kind {
            Kind::Lstm(weights) => Steps::Lstm(weights.iter().map(packed).collect::<Result<_>>()?),
            Kind::Stateless { context, weight, bias } => {
                Steps::Stateless { context: *context, layer: affine((weight, bias))? }
            }
        };
        let (mut head, mut head_bias) = (to_vec(&model.head.0)?, to_vec(&model.head.1)?);
        if let Some((weight, bias)) = &model.duration_head {
            head.extend(to_vec::<f32>(weight)?);
            head_bias.extend(to_vec::<f32>(bias)?);
        }
        let head = View::new(&head, head_bias.len(), model.width()).transposed();
        Ok(Stepwise {
            blank: model.blank(),
            classes: model.classes(),
            width: model.width(),
            big_blanks: model.big_blanks(),
            durations: model.durations().to_vec(),
            factored_blank: model.recipe.loss == (LossConfig::Rnnt { factored_blank: true }),
            embedding: to_vec(&model.predictor.embedding)?,
            kind,
            projection: affine((&model.joint_predictor.0, &model.joint_predictor.1))?,
            head: Affine::new(head, head_bias),
        })
    }

    fn embed(&self, label: u32) -> &[f32] {
        let width = self.embedding.len() / (self.blank as usize + 1);
        &self.embedding[label as usize * width..][..width]
    }

    fn advance(&self, memory: &Memory, label: u32) -> (Memory, Vec<f32>) {
        match (&self.kind, memory) {
            (Steps::Lstm(layers), Memory::Lstm(states)) => {
                let mut x = self.embed(label).to_vec();
                let mut next = Vec::with_capacity(layers.len());
                for (layer, (h, c)) in layers.iter().zip(states) {
                    let (h, c) = cell(layer, &x, h, c);
                    x = h.clone();
                    next.push((h, c));
                }
                (Memory::Lstm(next), self.projection.apply(&x))
            }
            (Steps::Stateless { layer, .. }, Memory::Labels(labels)) => {
                let mut labels = labels.clone();
                labels.rotate_left(1);
                *labels.last_mut().expect("context of at least one label") = label;
                let x: Vec<f32> = labels.iter().flat_map(|&label| self.embed(label)).copied().collect();
                let mut x = layer.apply(&x);
                tanh(&mut x);
                (Memory::Labels(labels), self.projection.apply(&x))
            }
            _ => unreachable!("a state belongs to the model that made it"),
        }
    }
}

/// One LSTM step; gates in the order i, f, o, g.
fn cell(layer: &Affine, x: &[f32], h: &[f32], c: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let hidden = h.len();
    let mut gates = layer.apply(&[x, h].concat());
    let (sigmoids, g) = gates.split_at_mut(3 * hidden);
    sigmoid(sigmoids);
    tanh(g);
    let c: Vec<f32> = (0..hidden).map(|k| sigmoids[hidden + k] * c[k] + sigmoids[k] * g[k]).collect();
    let mut h = c.clone();
    tanh(&mut h);
    h.iter_mut().zip(&sigmoids[2 * hidden..]).for_each(|(h, &o)| *h *= o);
    (h, c)
}

impl Transducer for Stepwise {
    type State = Memory;

    fn blank(&self) -> u32 {
        self.blank
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn width(&self) -> usize {
        self.width
    }

    fn big_blanks(&self) -> &[(u32, usize)] {
        &self.big_blanks
    }

    fn durations(&self) -> &[usize] {
        &self.durations
    }

    fn start(&self) -> (Memory, Vec<f32>) {
        let memory = match &self.kind {
            Steps::Lstm(layers) => Memory::Lstm(
                layers
                    .iter()
                    .map(|layer| (vec![0.0; layer.bias.len() / 4], vec![0.0; layer.bias.len() / 4]))
                    .collect(),
            ),
            Steps::Stateless { context, .. } => Memory::Labels(vec![self.blank(); *context]),
        };
        self.advance(&memory, self.blank())
    }

    fn step(&self, state: &Memory, label: u32) -> (Memory, Vec<f32>) {
        self.advance(state, label)
    }

    fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]) {
        let mut hidden: Vec<f32> = frame.iter().zip(row).map(|(f, g)| f + g).collect();
        tanh(&mut hidden);
        self.head.write(&hidden, scores);
        if self.factored_blank {
            factor_blank(scores, self.blank);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::linear;
    use crate::recipe::Recipe;

    const RECIPE: &str = r#"
        data = { train = ["none.jsonl"] }
        features = { mels = 5 }
        tokens = { kind = "words" }
        encoder = { stack = 2, stride = 2, layers = 1, hidden = 6, bidirectional = true }
        joint = { width = 7 }
        optimiser = { learning_rate = 1e-3 }
        batch = { max_frames = 100, max_utterances = 4 }
        training = { epochs = 1 }
    "#;

    fn rows_agree(predictor: &str) {
        let recipe = Recipe::parse(&format!("{RECIPE}\n{predictor}"), Path::new("test.toml")).unwrap();
        let model = Model::new(&recipe, 4).unwrap();
        let stepwise = Stepwise::new(&model).unwrap();
        let labels = [vec![3, 0, 0, 2, 1], vec![1]];
        let rows = model.predictor.forward(&labels, None).unwrap();
        let rows = linear(&rows, &model.joint_predictor.0, &model.joint_predictor.1).unwrap();
        let rows: Vec<Vec<Vec<f32>>> = rows.to_vec3().unwrap();
        for (labels, rows) in labels.iter().zip(rows) {
            let (mut state, mut row) = stepwise.start();
            for u in 0..=labels.len() {
                for (a, b) in row.iter().zip(&rows[u]) {
                    assert!((a - b).abs() < 1e-5, "row {u}: {a} is not {b}");
                }
                if u < labels.len() {
                    (state, row) = stepwise.step(&state, labels[u]);
                }
            }
        }
    }

    #[test]
    fn an_lstm_goes_stepwise_where_it_goes_in_a_batch() {
        rows_agree("predictor = { kind = \"lstm\", embedding = 3, hidden = 5, layers = 2 }");
    }

    #[test]
    fn a_stateless_predictor_goes_stepwise_where_it_goes_in_a_batch() {
        rows_agree("predictor = { kind = \"stateless\", embedding = 3, context = 2 }");
    }

    const LSTM: &str = "predictor = { kind = \"lstm\", embedding = 3, hidden = 5, layers = 1 }";

    /// Scores of a model of four labels at one site, and `z = act(h) Wᵀ + b` of some of its parameters.
    fn scores(loss: &str, parameters: &[&str]) -> (Stepwise, Vec<f32>, Vec<f32>) {
        let text = format!("{RECIPE}\n{LSTM}\nloss = {loss}");
        let model = Model::new(&Recipe::parse(&text, Path::new("test.toml")).unwrap(), 4).unwrap();
        let stepwise = Stepwise::new(&model).unwrap();
        let (frame, (_, row)) = ([0.3, -0.2, 0.9, 0.0, -1.0, 0.5, 0.1], stepwise.start());
        let mut found = vec![0.0; stepwise.classes() + stepwise.durations().len()];
        stepwise.joint(&frame, &row, &mut found);
        let hidden: Vec<f64> = frame.iter().zip(&row).map(|(f, g)| f64::from(f + g).tanh()).collect();
        let values = model.parameters().values().unwrap();
        let raw = parameters
            .iter()
            .flat_map(|name| values[*name].chunks_exact(7))
            .map(|weight| weight.iter().zip(&hidden).map(|(&w, h)| f64::from(w) * h).sum::<f64>() as f32);
        (stepwise, found, raw.collect())
    }

    fn close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
    }

    #[test]
    fn durations_and_big_blanks_have_scores_of_their_own() {
        let heads = ["joint.head", "joint.durations"];
        let (tdt, found, raw) = scores("{ kind = \"tdt\", durations = [0, 1, 3] }", &heads);
        close(&found, &raw);
        assert_eq!((tdt.classes(), tdt.blank(), tdt.durations()), (5, 4, &[0, 1, 3][..]));

        let (big, found, raw) = scores("{ kind = \"multi-blank\", durations = [2, 4] }", &heads[..1]);
        close(&found, &raw);
        assert_eq!((big.classes(), big.blank(), big.big_blanks()), (7, 4, &[(5, 2), (6, 4)][..]));
    }

    #[test]
    fn scores_of_a_factored_blank_are_probabilities() {
        let (hat, found, mut raw) = scores("{ kind = \"rnnt\", factored_blank = true }", &["joint.head"]);
        factor_blank(&mut raw, hat.blank());
        close(&found, &raw);
        let sum: f32 = found.iter().map(|score| score.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5 && found[4] < -0.1, "{found:?}");
    }
}
