//! The model as a decoder sees it: plain slices, one label at a time.
use std::sync::Arc;

use candle_core::Tensor;
use decoding::{Transducer, factor_blank};
use kernels::{Accumulate, PackedRight, View, ViewMut, add, product_packed};
use rnnt_loss::{Activation, Topology};

use crate::Result;
use crate::model::Model;
use crate::predictor::{Memory, Steps};
use crate::recipe::LossConfig;
use crate::tensors::to_vec;

/// Predictor, joint and head of a model, copied out of its tensors.
pub struct Stepwise {
    blank: u32,
    classes: usize,
    width: usize,
    topology: Topology,
    big_blanks: Vec<u32>,
    factored_blank: bool,
    activation: Activation,
    predictor: Arc<dyn Steps>,
    projection: Affine,
    /// Classes, then durations.
    heads: Vec<Affine>,
}

/// `y = W x + b` for one row at a time, W *O x D* packed.
#[derive(Debug)]
pub(crate) struct Affine {
    weight: PackedRight<f32>,
    bias: Vec<f32>,
}

impl Affine {
    /// Copies a layer `[O, D]`, `[O]`; without a bias, it is 0.
    pub fn new(weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        let bias = match bias {
            Some(bias) => to_vec(bias)?,
            None => vec![0.0; outputs],
        };
        let weight = to_vec(weight)?;
        Ok(Affine { weight: PackedRight::new(View::new(&weight, outputs, inputs).transposed()), bias })
    }

    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
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

impl Stepwise {
    /// Copies the current weights of a model.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn new(model: &Model) -> Result<Self> {
        let affine = |layer: &crate::Linear| Affine::new(layer.weight(), Some(layer.bias()));
        let heads = &model.heads;
        Ok(Stepwise {
            blank: model.blank(),
            classes: model.classes(),
            width: model.width(),
            topology: model.recipe.topology()?,
            big_blanks: model.big_blanks().into_iter().map(|(class, _)| class).collect(),
            factored_blank: model.recipe.loss.kind == (LossConfig::Rnnt { factored_blank: true }),
            activation: model.recipe.loss.options.activation.activation(),
            predictor: model.predictor.stepwise()?,
            projection: affine(&heads.predictor)?,
            heads: [&heads.head].into_iter().chain(&heads.durations).map(affine).collect::<Result<_>>()?,
        })
    }

    fn projected(&self, (memory, row): (Memory, Vec<f32>)) -> (Memory, Vec<f32>) {
        (memory, self.projection.apply(&row))
    }
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

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn big_blanks(&self) -> &[u32] {
        &self.big_blanks
    }

    fn start(&self) -> (Memory, Vec<f32>) {
        self.projected(self.predictor.start())
    }

    fn step(&self, state: &Memory, label: u32) -> (Memory, Vec<f32>) {
        self.projected(self.predictor.step(state, label))
    }

    fn joint(&self, frame: &[f32], row: &[f32], scores: &mut [f32]) {
        let mut hidden = vec![0.0; self.width];
        self.activation.apply(&mut hidden, frame, row);
        let mut rest = &mut *scores;
        for head in &self.heads {
            let (scores, after) = rest.split_at_mut(head.bias.len());
            head.write(&hidden, scores);
            rest = after;
        }
        if self.factored_blank {
            factor_blank(scores, self.blank);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
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
        let rows = model.heads.predictor.apply(&rows).unwrap();
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
        let mut found = vec![0.0; stepwise.classes() + stepwise.topology().durations()];
        stepwise.joint(&frame, &row, &mut found);
        let act = |x: f64| if loss.contains("relu") { x.max(0.0) } else { x.tanh() };
        let hidden: Vec<f64> = frame.iter().zip(&row).map(|(f, g)| act(f64::from(f + g))).collect();
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
        let heads = ["joint.head.weight", "joint.durations.weight"];
        let (tdt, found, raw) = scores("{ kind = \"tdt\", durations = [0, 1, 3] }", &heads);
        close(&found, &raw);
        assert_eq!((tdt.classes(), tdt.blank(), tdt.topology().to_string()), (5, 4, "tdt:0,1,3".into()));

        let (big, found, raw) = scores("{ kind = \"multi-blank\", durations = [2, 4] }", &heads[..1]);
        close(&found, &raw);
        assert_eq!((big.classes(), big.blank(), big.big_blanks()), (7, 4, &[5, 6][..]));
    }

    #[test]
    fn the_search_knows_the_activation_that_the_model_was_trained_with() {
        let heads = ["joint.head.weight"];
        let (_, tanh, raw) = scores("{ kind = \"rnnt\", activation = \"tanh\" }", &heads);
        close(&tanh, &raw);
        let (relu, found, raw) = scores("{ kind = \"rnnt\", activation = \"relu\" }", &heads);
        close(&found, &raw);
        assert_ne!(found, tanh);
        let mut scores = [0.0; 5];
        relu.joint(&[f32::NAN; 7], &[0.0; 7], &mut scores);
        assert!(scores.iter().all(|score| score.is_nan()));
    }

    #[test]
    fn scores_of_a_factored_blank_are_probabilities() {
        let (hat, found, mut raw) =
            scores("{ kind = \"rnnt\", factored_blank = true }", &["joint.head.weight"]);
        factor_blank(&mut raw, hat.blank());
        close(&found, &raw);
        let sum: f32 = found.iter().map(|score| score.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5 && found[4] < -0.1, "{found:?}");
    }
}
