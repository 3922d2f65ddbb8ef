//! Golden test of MLPerf's log-mel front end: all stages in f64, features in f32.
//!
//! References are NVIDIA's data-loading library DALI and a stand-alone script with another
//! convention for normalization (`framework` in names of tensors).
use speech::features::FeatureStages;
use speech::wave::change_speed;
use speech::{Audio, FeatureConfig, Features, FrontEnd, Preset};

use super::check::{MlPerfCheck, Tolerance};
use crate::error::RunError;

type CheckResult = Result<(), RunError>;

/// Tolerances of a run.
struct Tolerances {
    log: f64,
    normalized: f64,
    /// Output of DALI, which computes in f32.
    dali: f64,
    resampled: f64,
}

const F64_TOLERANCES: Tolerances = Tolerances { log: 1e-8, normalized: 1e-8, dali: 1e-4, resampled: 1e-6 };
const F32_TOLERANCES: Tolerances = Tolerances { log: 1e-3, normalized: 1e-4, dali: 1e-4, resampled: 1e-5 };
/// Tolerance of DALI for quiet bins next to loud ones.
const DALI_QUIET_BINS_TOLERANCE: f64 = 1e-2;
/// Tolerance of tensors stored in f32.
const STORED_F32_TOLERANCE: f64 = 1e-6;
/// Tolerance of powers, filters, their edges and windows in f64.
const LINEAR_STAGE_TOLERANCE: f64 = 1e-12;
const SAMPLE_RATE: u32 = 16_000;
const MELS: usize = 80;
/// Adjacent frames that are joined ("spliced") into one encoder input row.
const SPLICE: usize = 3;
/// Values of 16-bit samples per unit of amplitude.
const INT16_SCALE: f64 = 32_768.0;
/// Channels of a padded spliced row.
const PADDED_CHANNELS: usize = 256;

/// Compares all stages of the front end.
pub(super) fn compare_stages(check: &mut MlPerfCheck) -> CheckResult {
    compare_tensors(check, &F64_TOLERANCES, true)
}

/// Compares the features only.
pub(super) fn compare_features(check: &mut MlPerfCheck) -> CheckResult {
    // Intermediate stages are always in f64.
    let stages = ["preemphasized", "power", "power_frame_index", "mel"];
    check.ignore(|name| stages.iter().any(|stage| name.rsplit('.').next() == Some(stage)));
    compare_tensors(check, &F32_TOLERANCES, false)
}

/// Compares the tensors of a case; their names show its kind.
fn compare_tensors(check: &mut MlPerfCheck, tolerances: &Tolerances, is_f64: bool) -> CheckResult {
    let front_end = FrontEnd::new(&FeatureConfig { dither: 0.0, ..Preset::Mlperf.config() })?;
    let names: Vec<&str> = check.file.tensors.keys().map(String::as_str).collect();
    if names.contains(&"mel_matrix") {
        return compare_filters_and_window(check, &front_end);
    }
    if names.contains(&"rates") {
        return compare_resampling(check, &front_end, tolerances, is_f64);
    }
    if names.contains(&"audio0") {
        return compare_batch(check, &front_end);
    }
    for name in names {
        if let Some(prefix) = name.strip_suffix("audio") {
            let samples = check.input::<f64>(name)?.into_iter().map(|x| x as f32).collect();
            compare_signal(check, &front_end, prefix, samples, tolerances, is_f64)?;
        }
    }
    Ok(())
}

/// Compares the constants of the front end: mel filters, their edges, and the window.
fn compare_filters_and_window(check: &mut MlPerfCheck, front_end: &FrontEnd) -> CheckResult {
    check.compare("mel_matrix", &front_end.mel_matrix(), Tolerance::RelativeToMax(LINEAR_STAGE_TOLERANCE))?;
    check.compare("window", &front_end.window_weights(), Tolerance::RelativeToMax(LINEAR_STAGE_TOLERANCE))?;
    let scale = front_end.mel_scale();
    let edges: Vec<f64> = (0..scale.bins() + 2).map(|edge| scale.hz(edge as f64 - 1.0)).collect();
    Ok(check.compare("mel_edges_hz", &edges, Tolerance::Relative(LINEAR_STAGE_TOLERANCE))?)
}

/// Compares all tensors of a signal; their names start with `prefix`.
fn compare_signal(
    check: &mut MlPerfCheck,
    front_end: &FrontEnd,
    prefix: &str,
    samples: Vec<f32>,
    tolerances: &Tolerances,
    is_f64: bool,
) -> CheckResult {
    let audio = Audio { samples, sample_rate: SAMPLE_RATE };
    let FeatureStages { range, emphasized, frames, bins, power, mel, log, features } =
        front_end.stages(&audio)?;
    let features_f32 = front_end.log_mel(&audio)?;
    // The f32 path stores no logarithms: compare those of f64, rounded.
    let round = |values: &[f64]| values.iter().map(|&x| f64::from(x as f32)).collect::<Vec<f64>>();
    let (log, features) = if is_f64 {
        (log, features)
    } else {
        (round(&log), features_f32.data.iter().map(|&x| f64::from(x)).collect())
    };
    let full_name = |name: &str| format!("{prefix}{name}");
    let file = check.file;
    let has_tensor = |name: &str| file.tensors.contains_key(&full_name(name));
    // Intermediate stages.
    check.compare_integers(&full_name("trim"), &[range.start, range.len()])?;
    if is_f64 && has_tensor("preemphasized") {
        check.compare(
            &full_name("preemphasized"),
            &emphasized,
            Tolerance::RelativeToMax(STORED_F32_TOLERANCE),
        )?;
    }
    if is_f64 && has_tensor("power") {
        let frame_indices = check.input_integers(&full_name("power_frame_index"))?;
        let mut rows = Vec::new();
        for t in frame_indices {
            if t >= frames {
                let expected = format!("frames below {frames}");
                return Err(check
                    .file
                    .error(&full_name("power_frame_index"), &expected, &t.to_string())
                    .into());
            }
            rows.extend_from_slice(&power[t * bins..(t + 1) * bins]);
        }
        check.compare(&full_name("power"), &rows, Tolerance::RelativeToMax(LINEAR_STAGE_TOLERANCE))?;
    }
    if is_f64 && has_tensor("mel") {
        check.compare(&full_name("mel"), &mel, Tolerance::RelativeToMax(STORED_F32_TOLERANCE))?;
    }
    // Features, also stacked, and the features of other programs.
    if has_tensor("log_mel") {
        check.compare(&full_name("log_mel"), &log, Tolerance::Absolute(tolerances.log))?;
    }
    if has_tensor("normalized") {
        check.compare(&full_name("normalized"), &features, Tolerance::Absolute(tolerances.normalized))?;
    }
    if has_tensor("spliced") {
        compare_f32(check, &full_name("spliced"), &features_f32.stack(SPLICE, SPLICE))?;
    }
    if has_tensor("spliced_256") {
        compare_f32(
            check,
            &full_name("spliced_256"),
            &features_f32.stack_padded(SPLICE, SPLICE, PADDED_CHANNELS),
        )?;
    }
    compare_with_dali(check, prefix, &features, tolerances)?;
    compare_with_script(check, prefix, &features)
}

/// Compares features in f32.
fn compare_f32(check: &mut MlPerfCheck, name: &str, features_f32: &Features) -> CheckResult {
    Ok(check.compare(name, &to_f64(&features_f32.data), Tolerance::Absolute(STORED_F32_TOLERANCE))?)
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Compares with the output of DALI, which computes in f32.
fn compare_with_dali(
    check: &mut MlPerfCheck,
    prefix: &str,
    features: &[f64],
    tolerances: &Tolerances,
) -> CheckResult {
    let name = format!("{prefix}dali_normalized");
    if !check.file.tensors.contains_key(&name) {
        return Ok(());
    }
    let has_quiet_bins = check.file.name.ends_with("_chirp") || check.file.name.ends_with("_digital_silence");
    let tolerance = if has_quiet_bins { DALI_QUIET_BINS_TOLERANCE } else { tolerances.dali };
    Ok(check.compare(&name, features, Tolerance::Absolute(tolerance))?)
}

/// Compares with a stand-alone script that has another convention.
///
/// Over the frames that it normalizes by, the difference must be that of DALI.
fn compare_with_script(check: &mut MlPerfCheck, prefix: &str, features: &[f64]) -> CheckResult {
    let name = format!("{prefix}framework_normalized");
    if !check.file.tensors.contains_key(&name) {
        return Ok(());
    }
    let script_features = check.input::<f64>(&name)?;
    let options: serde_json::Value = check.file.field("options")?;
    let frames = options["framework_length"].as_u64().unwrap_or(0) as usize;
    let distances: Vec<f64> =
        features.iter().zip(&script_features).take(frames * MELS).map(|(a, b)| (a - b).abs()).collect();
    let max_distance = distances.iter().copied().fold(0.0, f64::max);
    let mean_distance = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
    let peers: serde_json::Value = check.file.field("peer_max_disagreement")?;
    let peer = &peers["framework convention against this answer"];
    for (measure, actual) in [("normalized_abs_max", max_distance), ("normalized_abs_mean", mean_distance)] {
        let stored = peer[measure].as_f64().unwrap_or(f64::NAN);
        let is_close =
            features.len() == script_features.len() && (actual - stored).abs() < STORED_F32_TOLERANCE;
        check.expect_equal(&format!("{name}: {measure} is {actual}, not {stored}"), &is_close, &true);
    }
    Ok(())
}

/// Compares the signal resampled to other speeds, and some features.
fn compare_resampling(
    check: &mut MlPerfCheck,
    front_end: &FrontEnd,
    tolerances: &Tolerances,
    is_f64: bool,
) -> CheckResult {
    let samples: Vec<f32> = check.input::<f64>("audio")?.into_iter().map(|x| x as f32).collect();
    let int16_samples: Vec<f64> = samples.iter().map(|&x| f64::from(x) * INT16_SCALE).collect();
    check.compare("audio_int16_as_int32", &int16_samples, Tolerance::Exact)?;
    for (i, rate) in check.input::<f64>("rates")?.into_iter().enumerate() {
        let name = format!("r{i}.resampled");
        let actual = change_speed(&samples, rate)?;
        check.compare(&name, &to_f64(&actual), Tolerance::Absolute(tolerances.resampled))?;
        if check.file.tensors.contains_key(&format!("r{i}.normalized")) {
            // The features are computed from the stored signal.
            let stored = check.input::<f64>(&name)?.into_iter().map(|x| x as f32).collect();
            compare_signal(check, front_end, &format!("r{i}."), stored, tolerances, is_f64)?;
        }
    }
    Ok(())
}

/// Compares a padded batch.
fn compare_batch(check: &mut MlPerfCheck, front_end: &FrontEnd) -> CheckResult {
    let (lengths, spliced_lengths) =
        (check.input_integers("frame_lens")?, check.input_integers("spliced_lens")?);
    let mut features = Vec::new();
    for b in 0..lengths.len() {
        let samples = check.input::<f64>(&format!("audio{b}"))?.into_iter().map(|x| x as f32).collect();
        features.push(front_end.log_mel(&Audio { samples, sample_rate: SAMPLE_RATE })?);
    }
    let stacked: Vec<Features> = features.iter().map(|features| features.stack(SPLICE, SPLICE)).collect();
    let padded: Vec<Features> =
        features.iter().map(|features| features.stack_padded(SPLICE, SPLICE, PADDED_CHANNELS)).collect();
    check.expect_equal("frame_lens", &features.iter().map(|features| features.frames).collect(), &lengths);
    check.expect_equal(
        "spliced_lens",
        &stacked.iter().map(|features| features.frames).collect(),
        &spliced_lengths,
    );
    for (name, batch) in [("normalized", features), ("spliced", stacked), ("spliced_256", padded)] {
        let longest = batch.iter().map(|features| features.data.len()).max().unwrap_or(0);
        let mut values = Vec::new();
        for (b, features) in batch.iter().enumerate() {
            values.extend(to_f64(&features.data));
            values.resize((b + 1) * longest, 0.0);
        }
        check.compare(name, &values, Tolerance::Absolute(STORED_F32_TOLERANCE))?;
    }
    Ok(())
}
