//! The architecture of a configuration, if other toolkits have it.
use std::path::Path;

use rnnt_loss::Topology;
use speech::{FeatureConfig, Normalization, Preset};

use crate::config::LossKind;
use crate::encoders::EncoderKind;
use crate::import::architecture::{Architecture, OutputArchitecture, TransducerArchitecture};
use crate::predictors::PredictorKind;
use crate::{Error, ModelConfig, Result};

/// Returns the architecture of a model with `labels` labels.
///
/// # Errors
/// [`Error::Conversion`] for the first part that NeMo does not have.
pub(super) fn from_config(path: &Path, config: &ModelConfig, labels: usize) -> Result<Architecture> {
    let error = |key: &str, expected: &str, found: String| Err(Error::conversion(path, key, expected, found));
    let EncoderKind::FastConformer(encoder) = &config.encoder else {
        return error("encoder.kind", "fastconformer", "another encoder".into());
    };
    let features = &config.input.features;
    let normalizes_features = match features.normalize {
        Normalization::Sample => true,
        Normalization::None => false,
        other => return error("features.normalize", "sample or none", format!("{other:?}").to_lowercase()),
    };
    let expected = FeatureConfig {
        mels: features.mels,
        normalize: features.normalize,
        // Conversions and noise of training.
        resample: features.resample,
        dither: features.dither,
        ..Preset::Nemo.config()
    };
    if *features != expected {
        return error(
            "features",
            "preset = \"nemo\", without other keys than mels and normalize",
            "others".into(),
        );
    }
    if config.terms.topology != Topology::rnnt() {
        return error("training.topology", "regular", config.terms.topology.to_string());
    }
    let output = match &config.loss.kind {
        LossKind::Ctc {} => OutputArchitecture::Ctc,
        LossKind::Rnnt { factored_blank: false } => transducer(path, config, Vec::new(), 0.0)?,
        LossKind::Tdt { durations, sigma, .. } => transducer(path, config, durations.clone(), *sigma)?,
        _ => return error("loss.kind", "rnnt, tdt or ctc, without a factored blank", "another loss".into()),
    };
    Ok(Architecture { labels, mels: features.mels, normalizes_features, encoder: encoder.clone(), output })
}

fn transducer(
    path: &Path,
    config: &ModelConfig,
    durations: Vec<usize>,
    sigma: f64,
) -> Result<OutputArchitecture> {
    let error = |key: &str, expected: &str, found: &str| Err(Error::conversion(path, key, expected, found));
    let (Some(predictor), Some(joint)) = (&config.predictor, &config.joint) else {
        return error("predictor", "a predictor and a joint network", "none");
    };
    match predictor {
        PredictorKind::Lstm(lstm) if lstm.embedding != lstm.hidden => {
            return error("predictor.embedding", "the value of predictor.hidden", "another");
        }
        PredictorKind::Lstm(lstm) if !lstm.two_biases => {
            return error("predictor.two_biases", "true", "false");
        }
        PredictorKind::Lstm(_) | PredictorKind::Concat(_) => {}
        PredictorKind::Stateless(_) => return error("predictor.kind", "lstm or concat", "stateless"),
    }
    Ok(OutputArchitecture::Transducer(TransducerArchitecture {
        predictor: predictor.clone(),
        joint: joint.clone(),
        activation: config.loss.options.activation,
        durations,
        sigma,
        ctc_weight: config.terms.ctc_weight.max(config.terms.ctc_weight_end.unwrap_or(0.0)),
    }))
}
