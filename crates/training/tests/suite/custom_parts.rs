//! Tests that custom encoders and predictors train and decode like built-in ones.
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Module, Tensor};
use candle_nn::{Conv1d, Conv1dConfig, Embedding, Linear, VarBuilder};
use decoding::{NetworkScratch, States};
use model::Result;
use model::encoders::{Encoder, ModuleEncoder};
use model::predictors::Predictor;
use model::{GradientSum, LossSessions, Model, TrainingPass};
use training::Recipe;
use training::data::Batch;
use training::optimizer::{AdamW, Optimizer};

const RECIPE: &str = r#"
    data = { train = ["none.jsonl"] }
    features = { mels = 5 }
    tokens = { kind = "words" }
    encoder = { stack = 2, stride = 2, layers = 1, hidden = 6 }
    predictor = { kind = "lstm", embedding = 3, hidden = 5, layers = 1 }
    joint = { width = 7 }
    optimizer = { learning_rate = 1e-2 }
    batch = { max_frames = 100, max_utterances = 4 }
    training = { epochs = 1, ctc_weight = 0.2 }
"#;

/// Width of the input rows: `mels` times `stack`.
const INPUT_WIDTH: usize = 10;
/// Width E of the encoder output.
const ENCODER_WIDTH: usize = 6;
/// Width P of the predictor output.
const PREDICTOR_WIDTH: usize = 4;
/// Number of labels; the blank follows them.
const LABELS: usize = 3;

/// A strided convolution and a linear layer, both candle's: [B, T, D] to [B, ⌈T/2⌉, E].
struct Convolution {
    convolution: Conv1d,
    output: Linear,
}

impl Module for Convolution {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let x = self.convolution.forward(&x.transpose(1, 2)?.contiguous()?)?.relu()?;
        self.output.forward(&x.transpose(1, 2)?.contiguous()?)
    }
}

fn new_convolution(vb: &VarBuilder) -> Result<Convolution> {
    let config = Conv1dConfig { padding: 1, stride: 2, ..Conv1dConfig::default() };
    let convolution = candle_nn::conv1d(INPUT_WIDTH, 8, 3, config, vb.pp("conv"))?;
    Ok(Convolution { convolution, output: candle_nn::linear(8, ENCODER_WIDTH, vb.pp("out"))? })
}

/// A predictor: the embedding of the last label only.
#[derive(Clone)]
struct LastLabel {
    table: Embedding,
    blank: u32,
}

impl Predictor for LastLabel {
    fn width(&self) -> usize {
        PREDICTOR_WIDTH
    }

    fn forward(&self, labels: &[Vec<u32>], pass: Option<&mut TrainingPass>) -> Result<Tensor> {
        let rows = labels.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let last_labels = |labels: &Vec<u32>| -> Vec<u32> {
            (0..rows)
                .map(|u| u.checked_sub(1).and_then(|u| labels.get(u)).copied().unwrap_or(self.blank))
                .collect()
        };
        let ids = Tensor::new(labels.iter().map(last_labels).collect::<Vec<_>>(), &Device::Cpu)?;
        let x = self.table.forward(&ids)?;
        match pass {
            Some(pass) => Ok(pass.apply(&x, 0.1)?),
            None => Ok(x),
        }
    }

    fn decoder(&self) -> Result<Arc<dyn decoding::Predictor>> {
        let rows: Vec<Vec<f32>> = self.table.embeddings().to_vec2()?;
        Ok(Arc::new(LastLabelDecoder { rows, blank: self.blank }))
    }
}

/// The predictor for decoding: the embeddings as plain rows.
struct LastLabelDecoder {
    rows: Vec<Vec<f32>>,
    blank: u32,
}

impl decoding::Predictor for LastLabelDecoder {
    fn width(&self) -> usize {
        PREDICTOR_WIDTH
    }

    fn label_ids(&self) -> usize {
        self.rows.len()
    }

    fn start(&self) -> (States, Vec<f32>) {
        (States::from_row(Vec::new(), Vec::new()), self.rows[self.blank as usize].clone())
    }

    fn step(&self, labels: &[u32], _: &mut States, out: &mut [f32], _: &mut NetworkScratch) {
        for (row, &label) in out.chunks_exact_mut(PREDICTOR_WIDTH).zip(labels) {
            row.copy_from_slice(&self.rows[label as usize]);
        }
    }
}

fn recipe_and_model() -> (Recipe, Model) {
    let recipe = Recipe::parse(RECIPE, Path::new("own.toml")).unwrap();
    let model = Model::with_parts(&recipe.model_config(), LABELS, |encoder, predictor| {
        let table = candle_nn::embedding(LABELS + 1, PREDICTOR_WIDTH, predictor.pp("table"))?;
        let encoder: Arc<dyn Encoder> =
            Arc::new(ModuleEncoder::new(new_convolution(&encoder)?, ENCODER_WIDTH, 2)?);
        Ok((encoder, Arc::new(LastLabel { table, blank: LABELS as u32 })))
    });
    (recipe, model.unwrap())
}

/// A tensor of pseudorandom values.
fn test_tensor(shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (0.37 * i as f32).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

#[test]
fn custom_parts_are_named_trained_and_decoded_like_built_in_ones() {
    let (recipe, model) = recipe_and_model();
    let names: Vec<&str> = model.parameters().iter().map(|(name, _)| name).collect();
    for name in ["encoder.conv.weight", "encoder.out.bias", "predictor.table.weight", "joint.head.weight"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("layers")), "{names:?}");

    let (x, lengths, labels) = (test_tensor(&[2, 9, INPUT_WIDTH]), [9, 6], [vec![0, 2, 1], vec![1]]);
    let batch = Batch::new(x.clone(), lengths.to_vec(), labels.to_vec());
    let mut optimizer = AdamW::new(model.parameters(), &recipe.optimizer);
    let (sessions, mut losses) = (LossSessions::new(&recipe.model_config()).unwrap(), Vec::new());
    for step in 0..40 {
        let mut pass = TrainingPass::new(1, step, &batch.indices);
        let step_losses = model.losses(&sessions, batch.labeled(), 2, step, Some(&mut pass)).unwrap();
        let mut gradients = GradientSum::new(model.parameters());
        gradients.backward(&step_losses.mean, None).unwrap();
        let gradients = gradients.into_gradients();
        for (name, _) in model.parameters().iter().filter(|(name, _)| !name.starts_with("ctc")) {
            assert!(gradients.contains_key(name), "{name} has no gradient");
        }
        optimizer.step(model.parameters(), &gradients, 0.02).unwrap();
        losses.push(step_losses.mean.to_scalar::<f64>().unwrap());
    }
    assert!(losses[39] < 0.5 * losses[0], "{losses:?}");

    let (frames, halved) = model.encode(&x, &lengths).unwrap();
    assert_eq!((frames.dims(), halved), (&[2, 5, 7][..], vec![5, 3]));
    // The decoder's predictor gives the rows of the training graph.
    let rows: Vec<Vec<Vec<f32>>> = model.joint_rows(&x, &lengths, &labels).unwrap().labels.to_vec3().unwrap();
    let decoder = model.decoder().unwrap();
    let (mut states, mut row) = (decoder.start().0.clone(), decoder.start().1.to_vec());
    let mut predicted = vec![0.0; PREDICTOR_WIDTH];
    for (u, expected) in rows[0].iter().enumerate() {
        assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "row {u}");
        if let Some(&label) = labels[0].get(u) {
            decoder.predictor().step(&[label], &mut states, &mut predicted, &mut NetworkScratch::default());
            decoder.joint().project(&predicted, &mut row, &mut NetworkScratch::default());
        }
    }
}

#[test]
fn a_module_with_other_output_shapes_than_declared_is_an_error() {
    let vb = VarBuilder::from_varmap(&candle_nn::VarMap::new(), candle_core::DType::F32, &Device::Cpu);
    let error = |width, factor| {
        let frames = ModuleEncoder::new(new_convolution(&vb).unwrap(), width, factor)?;
        frames.forward(&test_tensor(&[2, 9, INPUT_WIDTH]), &[9, 6], None).map(drop)
    };
    assert!(error(6, 2).is_ok());
    for (width, factor, part) in [
        (5, 2, "encoder: expected [2, T', 5] from the module, found [2, 5, 6]"),
        (6, 1, "encoder: expected at least 9 rows from the module, found 5"),
        (6, 0, "factor: expected at least 1"),
    ] {
        let error = error(width, factor).unwrap_err().to_string();
        assert!(error.starts_with(part), "{error}");
    }
}
