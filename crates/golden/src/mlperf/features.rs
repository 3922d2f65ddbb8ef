//! The front end: every stage of it in f64, and the planes in f32 that training sees.
use speech::features::FeatureStages;
use speech::wave::change_speed;
use speech::{Audio, FeatureConfig, Features, FrontEnd, Preset};

use super::check::{Bar, Check};
use crate::error::Stop;

type CheckResult = Result<(), Stop>;

/// How close a run must be.
struct Bars {
    /// Of f64 tensors.
    log: f64,
    normalised: f64,
    /// The library's own f32 output.
    library: f64,
    resampled: f64,
}

const DOUBLE: Bars = Bars { log: 1e-8, normalised: 1e-8, library: 1e-4, resampled: 1e-6 };
const SINGLE: Bars = Bars { log: 1e-3, normalised: 1e-4, library: 1e-4, resampled: 1e-5 };
/// Quiet bins beside loud ones, where the library's f32 is further off.
const LIBRARY_BESIDE_LOUD: f64 = 1e-2;
/// Where a tensor is stored in f32.
const STORED_SINGLE: f64 = 1e-6;
/// Powers, filters, their edges and windows in f64.
const LINEAR: f64 = 1e-12;
const RATE: u32 = 16_000;
const MELS: usize = 80;
/// Frames of a row, and channels of a padded one.
const SPLICE: usize = 3;
const CHANNELS: usize = 256;

/// Everything that the front end computes on its way.
pub fn stages(check: &mut Check) -> CheckResult {
    run(check, &DOUBLE, true)
}

/// What it gives.
pub fn planes(check: &mut Check) -> CheckResult {
    // What lies on the way is the same, whatever becomes of it.
    let stages = ["preemphasized", "power", "power_frame_index", "mel"];
    check.leave_out(|name| stages.iter().any(|stage| name.rsplit('.').next() == Some(stage)));
    run(check, &SINGLE, false)
}

fn run(check: &mut Check, bars: &Bars, double: bool) -> CheckResult {
    let front_end = FrontEnd::new(&FeatureConfig { dither: 0.0, ..Preset::Mlperf.config() })?;
    let names: Vec<&str> = check.file.tensors.keys().map(String::as_str).collect();
    if names.contains(&"mel_matrix") {
        return plan(check, &front_end);
    }
    if names.contains(&"rates") {
        return rates(check, &front_end, bars, double);
    }
    if names.contains(&"audio0") {
        return batch(check, &front_end);
    }
    for name in names {
        if let Some(prefix) = name.strip_suffix("audio") {
            let samples = check.input::<f64>(name)?.into_iter().map(|x| x as f32).collect();
            signal(check, &front_end, prefix, samples, bars, double)?;
        }
    }
    Ok(())
}

fn plan(check: &mut Check, front_end: &FrontEnd) -> CheckResult {
    check.compare("mel_matrix", &front_end.mel_matrix(), Bar::OfLargest(LINEAR))?;
    check.compare("window", &front_end.window_weights(), Bar::OfLargest(LINEAR))?;
    let scale = front_end.mel_scale();
    let edges: Vec<f64> = (0..scale.bins() + 2).map(|edge| scale.hz(edge as f64 - 1.0)).collect();
    Ok(check.compare("mel_edges_hz", &edges, Bar::Relative(LINEAR))?)
}

/// All tensors of a signal, under the names that begin with its prefix.
fn signal(
    check: &mut Check,
    front_end: &FrontEnd,
    prefix: &str,
    samples: Vec<f32>,
    bars: &Bars,
    double: bool,
) -> CheckResult {
    let audio = Audio { samples, sample_rate: RATE };
    let FeatureStages { range, emphasized, frames, bins, power, mel, log, features } =
        front_end.stages(&audio)?;
    let plane = front_end.log_mel(&audio)?;
    // In f32, logarithms are never stored: those of f64, rounded, are what there is.
    let single = |values: &[f64]| values.iter().map(|&x| f64::from(x as f32)).collect::<Vec<f64>>();
    let (log, features) = if double {
        (log, features)
    } else {
        (single(&log), plane.data.iter().map(|&x| f64::from(x)).collect())
    };
    let full = |name: &str| format!("{prefix}{name}");
    let file = check.file;
    let has = |name: &str| file.tensors.contains_key(&full(name));
    check.same(&full("trim"), &[range.start, range.len()])?;
    if double && has("preemphasized") {
        check.compare(&full("preemphasized"), &emphasized, Bar::OfLargest(STORED_SINGLE))?;
    }
    if double && has("power") {
        let index = check.whole(&full("power_frame_index"))?;
        let mut rows = Vec::new();
        for t in index {
            if t >= frames {
                let expected = format!("frames below {frames}");
                return Err(check.file.wrong(&full("power_frame_index"), &expected, &t.to_string()).into());
            }
            rows.extend_from_slice(&power[t * bins..(t + 1) * bins]);
        }
        check.compare(&full("power"), &rows, Bar::OfLargest(LINEAR))?;
    }
    if double && has("mel") {
        check.compare(&full("mel"), &mel, Bar::OfLargest(STORED_SINGLE))?;
    }
    if has("log_mel") {
        check.compare(&full("log_mel"), &log, Bar::Absolute(bars.log))?;
    }
    if has("normalized") {
        check.compare(&full("normalized"), &features, Bar::Absolute(bars.normalised))?;
    }
    if has("spliced") {
        compare(check, &full("spliced"), &plane.stack(SPLICE, SPLICE))?;
    }
    if has("spliced_256") {
        compare(check, &full("spliced_256"), &plane.stack_into(SPLICE, SPLICE, CHANNELS))?;
    }
    library(check, prefix, &features, bars)?;
    framework(check, prefix, &features)
}

fn compare(check: &mut Check, name: &str, plane: &Features) -> CheckResult {
    Ok(check.compare(name, &wide(&plane.data), Bar::Absolute(STORED_SINGLE))?)
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// The output of the data-loading library, which computes in f32.
fn library(check: &mut Check, prefix: &str, features: &[f64], bars: &Bars) -> CheckResult {
    let name = format!("{prefix}dali_normalized");
    if !check.file.tensors.contains_key(&name) {
        return Ok(());
    }
    let beside_loud = check.file.name.ends_with("_chirp") || check.file.name.ends_with("_digital_silence");
    let bar = if beside_loud { LIBRARY_BESIDE_LOUD } else { bars.library };
    Ok(check.compare(&name, features, Bar::Absolute(bar))?)
}

/// The path of a stand-alone script, which is not ours: over the frames that it normalises by, we must be as far from it as the
/// library's convention is.
fn framework(check: &mut Check, prefix: &str, features: &[f64]) -> CheckResult {
    let name = format!("{prefix}framework_normalized");
    if !check.file.tensors.contains_key(&name) {
        return Ok(());
    }
    let other = check.input::<f64>(&name)?;
    let options: serde_json::Value = check.file.field("options")?;
    let frames = options["framework_length"].as_u64().unwrap_or(0) as usize;
    let distances: Vec<f64> =
        features.iter().zip(&other).take(frames * MELS).map(|(a, b)| (a - b).abs()).collect();
    let largest = distances.iter().copied().fold(0.0, f64::max);
    let mean = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
    let peers: serde_json::Value = check.file.field("peer_max_disagreement")?;
    let peer = &peers["framework convention against this answer"];
    for (what, found) in [("normalized_abs_max", largest), ("normalized_abs_mean", mean)] {
        let stored = peer[what].as_f64().unwrap_or(f64::NAN);
        let near = features.len() == other.len() && (found - stored).abs() < STORED_SINGLE;
        check.equal(&format!("{name}: {what} is {found}, not {stored}"), &near, &true);
    }
    Ok(())
}

/// Other speeds of a signal, and the planes of two of them.
fn rates(check: &mut Check, front_end: &FrontEnd, bars: &Bars, double: bool) -> CheckResult {
    let samples: Vec<f32> = check.input::<f64>("audio")?.into_iter().map(|x| x as f32).collect();
    let integers: Vec<f64> = samples.iter().map(|&x| f64::from(x) * 32_768.0).collect();
    check.compare("audio_int16_as_int32", &integers, Bar::Same)?;
    for (i, rate) in check.input::<f64>("rates")?.into_iter().enumerate() {
        let name = format!("r{i}.resampled");
        let found = change_speed(&samples, rate)?;
        check.compare(&name, &wide(&found), Bar::Absolute(bars.resampled))?;
        if check.file.tensors.contains_key(&format!("r{i}.normalized")) {
            // Their planes are made from what is stored.
            let stored = check.input::<f64>(&name)?.into_iter().map(|x| x as f32).collect();
            signal(check, front_end, &format!("r{i}."), stored, bars, double)?;
        }
    }
    Ok(())
}

/// A padded batch.
fn batch(check: &mut Check, front_end: &FrontEnd) -> CheckResult {
    let (lengths, rows) = (check.whole("frame_lens")?, check.whole("spliced_lens")?);
    let mut planes = Vec::new();
    for b in 0..lengths.len() {
        let samples = check.input::<f64>(&format!("audio{b}"))?.into_iter().map(|x| x as f32).collect();
        planes.push(front_end.log_mel(&Audio { samples, sample_rate: RATE })?);
    }
    let stacked: Vec<Features> = planes.iter().map(|plane| plane.stack(SPLICE, SPLICE)).collect();
    let padded: Vec<Features> =
        planes.iter().map(|plane| plane.stack_into(SPLICE, SPLICE, CHANNELS)).collect();
    check.equal("frame_lens", &planes.iter().map(|plane| plane.frames).collect(), &lengths);
    check.equal("spliced_lens", &stacked.iter().map(|plane| plane.frames).collect(), &rows);
    for (name, planes) in [("normalized", planes), ("spliced", stacked), ("spliced_256", padded)] {
        let longest = planes.iter().map(|plane| plane.data.len()).max().unwrap_or(0);
        let mut all = Vec::new();
        for (b, plane) in planes.iter().enumerate() {
            all.extend(wide(&plane.data));
            all.resize((b + 1) * longest, 0.0);
        }
        check.compare(name, &all, Bar::Absolute(STORED_SINGLE))?;
    }
    Ok(())
}
