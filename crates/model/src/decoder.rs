//! `Model::decoder`: predictor and joint network for greedy and beam search.
use std::sync::Arc;

use decoding::{AffineLayer, JointNetwork};
use kernels::packed::NumberFormat;

use crate::Result;
use crate::config::LossKind;
use crate::model::Model;
use crate::output::TransducerNetwork;
use layers::tensors::to_vec;

impl Model {
    /// Returns the layer of [`Model::project_frames`], packed.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for a model with a recognition lattice, which has no such layer;
    /// errors of candle.
    pub fn packed_projection(&self) -> Result<AffineLayer> {
        if let Some(head) = self.output.ctc_head() {
            return Ok(head.pack("ctc")?);
        }
        Ok(self.output.transducer()?.layers.encoder.pack("joint.encoder")?)
    }

    /// Copies predictor and joint network for the searches of [`decoding`].
    ///
    /// Searches take projected frames, as [`Model::encode`] returns. With an encoder in 8-bit
    /// blocks, LSTM and projection of the predictor are in 8-bit blocks too.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for a CTC model or a recognition lattice, which have no joint
    /// network; errors of candle.
    pub fn decoder(&self) -> Result<decoding::DecodingModel> {
        let TransducerNetwork { predictor, layers } = self.output.transducer()?;
        let (mut weight, mut bias) = (to_vec(layers.head.weight())?, to_vec(layers.head.bias())?);
        if let Some(durations) = &layers.durations {
            weight.extend(to_vec::<f32>(durations.weight())?);
            bias.extend(to_vec::<f32>(durations.bias())?);
        }
        let format = self.encoder_format().unwrap_or(NumberFormat::F32);
        // In `f32`: rounding its rows would change the scores of close classes.
        let head = AffineLayer::new("joint.head", &weight, self.width(), Some(&bias))?;
        let projection = layers.predictor.pack_as(format, "joint.predictor")?;
        let activation = self.config().loss.options.activation.activation();
        let mut network = JointNetwork::new(activation, None, projection, head, self.durations().len())?;
        if self.config().loss.kind == (LossKind::Rnnt { factored_blank: true }) {
            network = network.with_factored_blank(self.blank())?;
        }
        let big_blanks: Vec<u32> = self.big_blanks().into_iter().map(|(class, _)| class).collect();
        let predictor = match format {
            NumberFormat::Q8 => predictor.quantized_decoder()?,
            _ => predictor.decoder()?,
        };
        let topology = self.config().topology()?;
        Ok(decoding::DecodingModel::new(predictor, Arc::new(network), self.blank(), &big_blanks, &topology)?)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use decoding::{NetworkScratch, SiteBatch, SiteIndex, factor_blank};

    use super::*;
    use crate::ModelConfig;

    const RECIPE: &str = r#"
        data = { train = ["none.jsonl"] }
        features = { mels = 5 }
        tokens = { kind = "words" }
        encoder = { stack = 2, stride = 2, layers = 1, hidden = 6, bidirectional = true }
        joint = { width = 7 }
        optimizer = { learning_rate = 1e-3 }
        batch = { max_frames = 100, max_utterances = 4 }
        training = { epochs = 1 }
    "#;

    /// The value of `joint.width` in [`RECIPE`].
    const JOINT_WIDTH: usize = 7;

    /// Compares rows of label-by-label decoding with those of a batch.
    fn expect_same_rows(predictor: &str) {
        let config =
            ModelConfig::from_recipe(&format!("{RECIPE}\n{predictor}"), Path::new("test.toml")).unwrap();
        let model = Model::new(&config, 4).unwrap();
        let predictor = &model.output.transducer().unwrap().predictor;
        let decoder = predictor.decoder().unwrap();
        let labels = [vec![3, 0, 0, 2, 1], vec![1]];
        let rows: Vec<Vec<Vec<f32>>> = predictor.forward(&labels, None).unwrap().to_vec3().unwrap();
        for (labels, rows) in labels.iter().zip(rows) {
            let (mut states, mut row) = decoder.start();
            for (u, expected) in rows.iter().enumerate().take(labels.len() + 1) {
                for (a, b) in row.iter().zip(expected) {
                    assert!((a - b).abs() < 1e-5, "row {u}: {a} is not {b}");
                }
                if let Some(label) = labels.get(u) {
                    decoder.step(&[*label], &mut states, &mut row, &mut NetworkScratch::default());
                }
            }
        }
    }

    #[test]
    fn an_lstm_predictor_has_the_same_rows_label_by_label_and_in_a_batch() {
        expect_same_rows("predictor = { kind = \"lstm\", embedding = 3, hidden = 5, layers = 2 }");
    }

    #[test]
    fn a_stateless_predictor_has_the_same_rows_label_by_label_and_in_a_batch() {
        expect_same_rows("predictor = { kind = \"stateless\", embedding = 3, context = 2 }");
    }

    #[test]
    fn a_concatenating_predictor_has_the_same_rows_label_by_label_and_in_a_batch() {
        for options in ["context = 1", "context = 3", "context = 2, normalize = true"] {
            expect_same_rows(&format!("predictor = {{ kind = \"concat\", width = 9, {options} }}"));
        }
    }

    #[test]
    fn an_lstm_predictor_with_two_biases_starts_with_zeros() {
        let options = "layers = 2, start = \"zero\", two_biases = true";
        expect_same_rows(&format!("predictor = {{ kind = \"lstm\", embedding = 3, hidden = 5, {options} }}"));
    }

    const LSTM_PREDICTOR: &str = "predictor = { kind = \"lstm\", embedding = 3, hidden = 5, layers = 1 }";

    /// Computes the scores of one site.
    fn site_scores(decoder: &decoding::DecodingModel, frame: &[f32], label_row: &[f32]) -> Vec<f32> {
        let sites = [SiteIndex { utterance: 0, frame: 0, label_row: 0 }];
        let mut scores = vec![0.0; decoder.token_table().classes() + decoder.token_table().durations()];
        let batch = SiteBatch { frames: &[frame], label_rows: label_row, sites: &sites };
        decoder.joint().scores(&batch, &mut scores, &mut NetworkScratch::default());
        scores
    }

    /// Returns a model, the scores of a site, and the expected ones.
    ///
    /// The model has four labels; expected are `z = activation(h) Wᵀ + b` for these parameters.
    fn found_and_expected_scores(
        loss: &str,
        parameters: &[&str],
    ) -> (decoding::DecodingModel, Vec<f32>, Vec<f32>) {
        let text = format!("{RECIPE}\n{LSTM_PREDICTOR}\nloss = {loss}");
        let model = Model::new(&ModelConfig::from_recipe(&text, Path::new("test.toml")).unwrap(), 4).unwrap();
        let decoder = model.decoder().unwrap();
        let frame: [f32; JOINT_WIDTH] = [0.3, -0.2, 0.9, 0.0, -1.0, 0.5, 0.1];
        let (_, label_row) = decoder.start();
        let scores = site_scores(&decoder, &frame, label_row);
        let activation = |x: f64| if loss.contains("relu") { x.max(0.0) } else { x.tanh() };
        let hidden: Vec<f64> =
            frame.iter().zip(label_row).map(|(f, g)| activation(f64::from(f + g))).collect();
        let values = model.parameters().values().unwrap();
        let expected = parameters
            .iter()
            .flat_map(|name| values[*name].chunks_exact(JOINT_WIDTH))
            .map(|weight| weight.iter().zip(&hidden).map(|(&w, h)| f64::from(w) * h).sum::<f64>() as f32);
        let expected = expected.collect();
        (decoder, scores, expected)
    }

    fn assert_close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
    }

    #[test]
    fn durations_and_big_blanks_have_separate_scores() {
        let heads = ["joint.head.weight", "joint.durations.weight"];
        let (tdt, found, expected) =
            found_and_expected_scores("{ kind = \"tdt\", durations = [0, 1, 3] }", &heads);
        assert_close(&found, &expected);
        let table = tdt.token_table();
        assert_eq!((table.classes(), table.blank(), table.durations(), table.duration(2)), (5, 4, 3, 3));

        let (multi_blank, found, expected) =
            found_and_expected_scores("{ kind = \"multi-blank\", durations = [2, 4] }", &heads[..1]);
        assert_close(&found, &expected);
        let table = multi_blank.token_table();
        assert_eq!((table.classes(), table.blank(), table.frame_advance(6, 0)), (7, 4, 4));
        assert!(table.is_blank(5) && table.is_blank(6) && !table.is_blank(3));
    }

    #[test]
    fn the_search_uses_the_activation_of_the_model() {
        let heads = ["joint.head.weight"];
        let (_, tanh, expected) =
            found_and_expected_scores("{ kind = \"rnnt\", activation = \"tanh\" }", &heads);
        assert_close(&tanh, &expected);
        let (relu, found, expected) =
            found_and_expected_scores("{ kind = \"rnnt\", activation = \"relu\" }", &heads);
        assert_close(&found, &expected);
        assert_ne!(found, tanh);
        let scores = site_scores(&relu, &[f32::NAN; JOINT_WIDTH], &[0.0; JOINT_WIDTH]);
        assert!(scores.iter().all(|score| score.is_nan()));
    }

    #[test]
    fn scores_of_a_factored_blank_are_probabilities() {
        let (hat, found, mut expected) =
            found_and_expected_scores("{ kind = \"rnnt\", factored_blank = true }", &["joint.head.weight"]);
        factor_blank(&mut expected, hat.token_table().blank());
        assert_close(&found, &expected);
        let sum: f32 = found.iter().map(|score| score.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5 && found[4] < -0.1, "{found:?}");
    }
}
