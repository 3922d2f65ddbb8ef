//! The section `preprocessor` of NeMo: the log-mel front end.
use serde_json::{Value, json};

use super::super::section::{Section, describe};
use crate::Result;

/// The settings of the front end that models differ in.
pub(super) struct NemoFrontEnd {
    pub mels: usize,
    /// True for features normalized over each utterance.
    pub normalizes: bool,
}

/// Reads the front end; other settings must be those of the preset.
pub(super) fn read(section: &Section) -> Result<NemoFrontEnd> {
    section.expect_class("_target_", "AudioToMelSpectrogramPreprocessor", true)?;
    let mels = section.count("features", Some(64))?;
    let normalizes = match section.value("normalize") {
        None if section.keys().any(|(key, _)| key == "normalize") => false,
        None => true,
        Some(Value::String(kind)) if kind == "per_feature" => true,
        Some(Value::String(kind)) if kind != "all_features" => false,
        Some(value) => return Err(section.error("normalize", "per_feature or none", describe(value))),
    };
    let guard = 2f64.powi(-24);
    let same = |value: Value| (value.clone(), vec![value]);
    let settings = [
        ("sample_rate", same(json!(16_000))),
        ("window_size", (json!(0.02), vec![json!(0.025)])),
        ("window_stride", same(json!(0.01))),
        ("n_window_size", (Value::Null, vec![Value::Null, json!(400)])),
        ("n_window_stride", (Value::Null, vec![Value::Null, json!(160)])),
        ("window", same(json!("hann"))),
        ("n_fft", (json!(512), vec![json!(512)])),
        ("preemph", same(json!(0.97))),
        ("lowfreq", same(json!(0))),
        ("highfreq", (Value::Null, vec![Value::Null, json!(8000)])),
        ("log", same(json!(true))),
        ("log_zero_guard_type", same(json!("add"))),
        ("log_zero_guard_value", same(json!(guard))),
        ("mag_power", same(json!(2.0))),
        ("pad_value", same(json!(0))),
        ("frame_splicing", same(json!(1))),
        ("exact_pad", same(json!(false))),
        ("mel_norm", same(json!("slaney"))),
        ("use_torchaudio", same(json!(false))),
        ("stft_exact_pad", same(json!(false))),
        ("stft_conv", same(json!(false))),
    ];
    for (key, (default, supported)) in settings {
        section.expect(key, default, &supported)?;
    }
    // Training only, and zero frames after the features.
    section.ignore(&["dither", "pad_to", "rng", "nb_augmentation_prob", "nb_max_freq"]);
    section.check_known()?;
    Ok(NemoFrontEnd { mels, normalizes })
}
