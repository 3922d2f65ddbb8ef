//! Golden test of NeMo's log-mel front end: stages in f64, features in f32.
//!
//! `older_release.*` are features of NeMo up to 2.4, which reflects the signal at its ends and has
//! one more frame. They are not compared: models are imported with the current rule.
use std::collections::BTreeMap;

use speech::features::FeatureStages;
use speech::{Audio, FeatureConfig, FrontEnd, Normalization, Preset};

use super::check::NemoCheck;
use crate::case::StoredTensor;
use crate::error::RunError;
use crate::mlperf::Tolerance;

type Tensors = BTreeMap<String, StoredTensor>;

/// Tolerance of features in f32.
const FEATURE_TOLERANCE: Tolerance = Tolerance::Absolute(2e-4);
/// Tolerance of pre-emphasized samples in f64.
const F64_TOLERANCE: Tolerance = Tolerance::Absolute(1e-10);
/// Tolerance of powers in f64; NeMo's window has the error of [`CONSTANT_TOLERANCE`].
const POWER_TOLERANCE: Tolerance = Tolerance::RelativeToMax(1e-6);
/// Tolerance of logarithms and features in f64, with the same window.
const LOG_TOLERANCE: Tolerance = Tolerance::Absolute(1e-5);
/// Tolerance of the window and the filters, which NeMo computes in f32.
const CONSTANT_TOLERANCE: Tolerance = Tolerance::Absolute(4e-7);
/// Tolerance of a loud square wave: the f32 Fourier transform of NeMo has noise in quiet bands.
const SQUARE_WAVE_TOLERANCE: Tolerance = Tolerance::Absolute(1e-3);
const SAMPLE_RATE: u32 = 16_000;
/// Values of 16-bit samples per unit of amplitude.
const INT16_SCALE: f64 = 32_768.0;
/// Bins of a spectrum.
const BINS: usize = 257;

/// Compares the features of `frontends.safetensors`.
pub(super) fn compare_front_ends(check: &mut NemoCheck) -> Result<(), RunError> {
    let tensors = check.tensors("frontends.safetensors")?;
    let normalized = front_end(80, Normalization::Sample)?;
    let plain = front_end(80, Normalization::None)?;
    let clips = padded_clips(&tensors)?;
    for (name, front_end) in [
        ("m80_pf_pad0", &normalized),
        ("m128_pf_pad0", &front_end(128, Normalization::Sample)?),
        ("m80_pf_pad16", &normalized),
        ("m80_na_pad0", &plain),
    ] {
        compare_batch(check, &tensors, [&format!("{name}.mel"), &format!("{name}.len")], front_end, &clips)?;
    }
    let stored_f64 = get(&tensors, "m80_pf_pad0.mel.f64")?;
    for (b, clip) in clips.iter().enumerate() {
        let stages = normalized.stages(clip)?;
        let columns = columns(stored_f64, b, stages.frames, 80);
        check.compare("m80_pf_pad0.mel.f64", &stages.features, &columns, LOG_TOLERANCE);
    }
    compare_stages(check, &tensors, &normalized.stages(&clips[2])?)?;
    check.compare(
        "window",
        &normalized.window_weights(),
        &get(&tensors, "window")?.values,
        CONSTANT_TOLERANCE,
    );
    check.compare("fb80", &normalized.mel_matrix(), &get(&tensors, "fb80")?.values, CONSTANT_TOLERANCE);
    let lengths = tensors.keys().filter_map(|name| name.strip_prefix("edge.")?.strip_suffix(".len"));
    for length in lengths {
        compare_edge(check, &tensors, length, &clips[0], [&normalized, &plain])?;
    }
    compare_synthetic(check, &tensors, &normalized, &plain)
}

/// Compares silence and a square wave.
fn compare_synthetic(
    check: &mut NemoCheck,
    tensors: &Tensors,
    normalized: &FrontEnd,
    plain: &FrontEnd,
) -> Result<(), RunError> {
    let square = |i: usize| if (i / 20).is_multiple_of(2) { 32767.0 / 32768.0 } else { -1.0 };
    let audio = |samples| Audio { samples, sample_rate: SAMPLE_RATE };
    let (silence, square) = (audio(vec![0.0; 3200]), audio((0..3200).map(square).collect()));
    let mut compare = |name: &str, front_end: &FrontEnd, audio: &Audio, tolerance| {
        let actual = front_end.log_mel(audio)?;
        let stored = columns(get(tensors, name)?, 0, actual.frames, actual.dim);
        check.compare(name, &to_f64(&actual.data), &stored, tolerance);
        Ok::<(), RunError>(())
    };
    compare("silence3200.na.mel", plain, &silence, FEATURE_TOLERANCE)?;
    compare("square3200.na.mel", plain, &square, SQUARE_WAVE_TOLERANCE)?;
    compare("square3200.pf.mel", normalized, &square, FEATURE_TOLERANCE)?;
    // The stored values are the rounding error of NeMo's mean in f32, divided by 1e-5; the exact
    // ones are 0.
    let features = to_f64(&normalized.log_mel(&silence)?.data);
    check.compare("silence3200.pf.mel", &features, &vec![0.0; features.len()], FEATURE_TOLERANCE);
    Ok(())
}

/// Compares the features of a model's utterances.
pub(super) fn compare_model(check: &mut NemoCheck) -> Result<(), RunError> {
    let (tensors, weights) = (check.tensors("io.safetensors")?, check.tensors("weights.safetensors")?);
    let settings = &check.json("config.json")?["preprocessor"];
    let mels = settings["features"].as_u64().unwrap_or(0) as usize;
    let normalization =
        if settings["normalize"] == "per_feature" { Normalization::Sample } else { Normalization::None };
    let front_end = front_end(mels, normalization)?;
    let mut begin = 0;
    let mut clips = Vec::new();
    for length in to_integers(get(&tensors, "wave_len")?) {
        clips.push(to_audio(&get(&tensors, "wave")?.values[begin..begin + length]));
        begin += length;
    }
    compare_batch(check, &tensors, ["mel", "mel_len"], &front_end, &clips)?;
    for (name, actual) in [("window", front_end.window_weights()), ("fb", front_end.mel_matrix())] {
        let name = format!("preprocessor.featurizer.{name}");
        check.compare(&name, &actual, &get(&weights, &name)?.values, CONSTANT_TOLERANCE);
    }
    Ok(())
}

fn front_end(mels: usize, normalize: Normalization) -> Result<FrontEnd, RunError> {
    Ok(FrontEnd::new(&FeatureConfig { mels, normalize, ..Preset::Nemo.config() })?)
}

/// Compares a padded batch `[B, mels, T]`, and its lengths.
fn compare_batch(
    check: &mut NemoCheck,
    tensors: &Tensors,
    [features, lengths]: [&str; 2],
    front_end: &FrontEnd,
    clips: &[Audio],
) -> Result<(), RunError> {
    let frames: Vec<usize> = clips.iter().map(|clip| front_end.frames(clip.samples.len())).collect();
    check.expect_equal(lengths, &frames, &to_integers(get(tensors, lengths)?));
    for (b, clip) in clips.iter().enumerate() {
        compare_features(check, &format!("{features}[{b}]"), get(tensors, features)?, b, front_end, clip)?;
    }
    Ok(())
}

/// Compares the valid frames of utterance `b`, in f32.
fn compare_features(
    check: &mut NemoCheck,
    name: &str,
    stored: &StoredTensor,
    b: usize,
    front_end: &FrontEnd,
    audio: &Audio,
) -> Result<(), RunError> {
    let features = front_end.log_mel(audio)?;
    check.compare(
        name,
        &to_f64(&features.data),
        &columns(stored, b, features.frames, features.dim),
        FEATURE_TOLERANCE,
    );
    Ok(())
}

/// Compares the stages of a clip, in f64.
fn compare_stages(check: &mut NemoCheck, tensors: &Tensors, stages: &FeatureStages) -> Result<(), RunError> {
    let (frames, mels) = (stages.frames, 80);
    check.compare("stage.preemph", &stages.emphasized, &get(tensors, "stage.preemph")?.values, F64_TOLERANCE);
    let power = columns(get(tensors, "stage.power")?, 0, frames, BINS);
    check.compare("stage.power", &stages.power, &power, POWER_TOLERANCE);
    let log = columns(get(tensors, "stage.logmel")?, 0, frames, mels);
    check.compare("stage.logmel", &stages.log, &log, LOG_TOLERANCE);
    // The mean and the deviation with its constant follow from two frames of normalized features.
    let (mut means, mut deviations) = (Vec::new(), Vec::new());
    for m in 0..mels {
        let band = |data: &[f64]| (0..frames).map(|t| data[t * mels + m]).collect::<Vec<f64>>();
        let (log, normalized) = (band(&stages.log), band(&stages.features));
        let [low, high] = [f64::min, f64::max].map(|select| {
            let value = log.iter().copied().reduce(select).unwrap_or(f64::NAN);
            (value, normalized[log.iter().position(|x| *x == value).unwrap_or(0)])
        });
        let divisor = (high.0 - low.0) / (high.1 - low.1);
        deviations.push(divisor);
        means.push(low.0 - divisor * low.1);
    }
    check.compare("stage.mean", &means, &get(tensors, "stage.mean")?.values, LOG_TOLERANCE);
    check.compare("stage.std", &deviations, &get(tensors, "stage.std")?.values, LOG_TOLERANCE);
    Ok(())
}

/// Compares the first samples of a clip, with and without normalization.
fn compare_edge(
    check: &mut NemoCheck,
    tensors: &Tensors,
    length: &str,
    clip: &Audio,
    [normalized, plain]: [&FrontEnd; 2],
) -> Result<(), RunError> {
    let num_samples = length.parse::<usize>().map_err(|error| RunError::Failed(error.to_string()))?;
    let audio = Audio { samples: clip.samples[..num_samples].to_vec(), sample_rate: SAMPLE_RATE };
    let frames = normalized.frames(num_samples);
    let name = format!("edge.{length}.len");
    check.expect_equal(&name, &vec![frames], &to_integers(get(tensors, &name)?));
    if frames == 0 {
        let is_short = matches!(normalized.log_mel(&audio), Err(speech::Error::ShortSignal { .. }));
        check.expect_equal(&format!("edge.{length}: too short"), &is_short, &true);
        return Ok(());
    }
    for (kind, front_end) in [("mel", normalized), ("logmel", plain)] {
        let name = format!("edge.{length}.{kind}");
        compare_features(check, &name, get(tensors, &name)?, 0, front_end, &audio)?;
    }
    Ok(())
}

/// Returns the first frames of a stored matrix as `[frames, dim]`.
///
/// It is matrix `b` of `[B, dim, T]`, or `[dim, T]`.
fn columns(tensor: &StoredTensor, b: usize, frames: usize, dim: usize) -> Vec<f64> {
    let width = tensor.shape.last().copied().unwrap_or(0);
    let matrix = tensor.values.get(b * dim * width..(b + 1) * dim * width).unwrap_or_default();
    let column = |t: usize| (0..dim).filter_map(move |m| matrix.get(m * width + t).copied());
    (0..frames.min(width)).flat_map(column).collect()
}

/// Returns the clips of a padded matrix of samples.
fn padded_clips(tensors: &Tensors) -> Result<Vec<Audio>, RunError> {
    let (wave, lengths) = (get(tensors, "wave")?, to_integers(get(tensors, "wave_len")?));
    let width = wave.shape.last().copied().unwrap_or(0);
    Ok(wave.values.chunks(width.max(1)).zip(lengths).map(|(row, length)| to_audio(&row[..length])).collect())
}

fn to_audio(int16_samples: &[f64]) -> Audio {
    let samples = int16_samples.iter().map(|&x| (x / INT16_SCALE) as f32).collect();
    Audio { samples, sample_rate: SAMPLE_RATE }
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

fn to_integers(tensor: &StoredTensor) -> Vec<usize> {
    tensor.values.iter().map(|&value| value as usize).collect()
}

fn get<'a>(tensors: &'a Tensors, name: &str) -> Result<&'a StoredTensor, RunError> {
    tensors.get(name).ok_or_else(|| RunError::Failed(format!("{name}: expected a tensor, found none")))
}
