//! Masks that are given, and the distribution of those that are drawn.
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use speech::{Features, MaskForm, Masks, SpecAugment};

use super::check::{Bar, Check};
use crate::error::Stop;

type CheckResult = Result<(), Stop>;

/// Draws of each distribution; a share of masked cells may be so many deviations from its probability.
const DRAWS: usize = 20_000;
const SIGMAS: f64 = 5.0;
const SEED: u64 = 7203;
/// Bins of a frame.
const BINS: usize = 80;
const FORMS: [(MaskForm, &str); 2] = [(MaskForm::Reference, "reference"), (MaskForm::Nvidia, "nvidia")];

pub fn run(check: &mut Check) -> CheckResult {
    if check.file.tensors.contains_key("input") { masks(check) } else { distribution(check) }
}

/// Exactly the same cells.
fn masks(check: &mut Check) -> CheckResult {
    let lengths = check.whole("lens")?;
    let rows = check.rows::<f64>("input", lengths.len())?;
    let frames = rows.first().map_or(0, Vec::len) / BINS;
    for (form, name) in [(MaskForm::Reference, "output"), (MaskForm::Nvidia, "output_inclusive")] {
        let mut of = vec![Masks::default(); lengths.len()];
        for (masks, most) in [("freq_masks", BINS), ("time_masks", frames)] {
            for mask in check.whole(masks)?.chunks_exact(3) {
                let &[utterance, start, width] = mask else { continue };
                let Some(found) = of.get_mut(utterance) else {
                    let expected = format!("utterances below {}", lengths.len());
                    return Err(check.file.wrong(masks, &expected, &utterance.to_string()).into());
                };
                let stretches = if masks == "freq_masks" { &mut found.bins } else { &mut found.frames };
                stretches.push(form.masked_range(start, width, most));
            }
        }
        let (mut all, mut spliced) = (Vec::new(), Vec::new());
        for ((row, &own), masks) in rows.iter().zip(&lengths).zip(&of) {
            let data = row.iter().map(|&x| x as f32).collect();
            let mut plane = Features { frames, dim: BINS, data };
            masks.apply(&mut plane, 0.0);
            all.extend(plane.data.iter().map(|&x| f64::from(x)));
            plane.frames = own.min(frames);
            plane.data.truncate(plane.frames * BINS);
            spliced.extend(plane.stack(3, 3).data.iter().map(|&x| f64::from(x)));
            let padded = frames.div_ceil(3) * 3 * BINS;
            spliced.resize(spliced.len().next_multiple_of(padded.max(1)), 0.0);
        }
        check.compare(name, &all, Bar::Same)?;
        if name == "output" {
            check.compare("spliced", &spliced, Bar::Same)?;
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Options {
    freq_masks: usize,
    freq_width: [usize; 2],
    time_masks: usize,
    time_fraction: f32,
}

#[derive(Deserialize)]
struct MaskPair {
    len: usize,
    padded: usize,
    max_width_reference: usize,
    max_width_drawn_nvidia: usize,
}

#[derive(Deserialize)]
struct Widest {
    len: usize,
    max_width: usize,
}

/// Cells are masked as often as they should be.
fn distribution(check: &mut Check) -> CheckResult {
    let options: Options = check.file.field("options")?;
    let settings = |form| SpecAugment {
        freq_masks: options.freq_masks,
        freq_width: options.freq_width[1],
        time_masks: options.time_masks,
        time_width: options.time_fraction,
        form,
        ..SpecAugment::default()
    };
    for Widest { len, max_width } in check.file.field::<Vec<Widest>>("max_width_of_length")? {
        let found = settings(MaskForm::Reference).max_time_width(len);
        check.equal(&format!("widest mask of {len} frames"), &found, &max_width);
    }
    settings(MaskForm::Reference).check()?;
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    for (i, pair) in check.file.field::<Vec<MaskPair>>("pairs")?.into_iter().enumerate() {
        let widest = [pair.max_width_reference, pair.max_width_drawn_nvidia];
        for ((form, name), widest) in FORMS.into_iter().zip(widest) {
            let settings = settings(form);
            let frames = format!("p{i}.frame_masked_{name}");
            let stored = check.input::<f64>(&frames)?.len();
            if stored != pair.padded || pair.len > pair.padded {
                let expected = format!("{} numbers, for {} frames of an utterance", pair.padded, pair.len);
                return Err(check.file.wrong(&frames, &expected, &stored.to_string()).into());
            }
            check.equal(&format!("p{i}: widest mask, {name}"), &settings.max_time_width(pair.len), &widest);
            let [mut of_bins, mut of_frames] = [BINS, pair.padded].map(|places| Counts(vec![(0, 0); places]));
            for draw in 1..=DRAWS {
                let masks = settings.masks((pair.len, BINS), pair.padded, &mut rng);
                of_bins.add(draw, &masks.bins);
                of_frames.add(draw, &masks.frames);
            }
            likely(check, &format!("freq_bin_masked_{name}"), &of_bins)?;
            likely(check, &frames, &of_frames)?;
        }
    }
    Ok(())
}

/// How often each place was masked, and in which draw it was last.
struct Counts(Vec<(usize, usize)>);

impl Counts {
    /// Counts each place that is masked in a draw, once.
    fn add(&mut self, draw: usize, masks: &[std::ops::Range<usize>]) {
        for place in masks.iter().cloned().flatten() {
            let (count, last) = &mut self.0[place];
            *count += usize::from(*last != draw);
            *last = draw;
        }
    }
}

/// Compares shares of the draws with probabilities.
fn likely(check: &mut Check, name: &str, Counts(counts): &Counts) -> CheckResult {
    let expected = check.input::<f64>(name)?;
    check.equal(&format!("{name}: places"), &expected.len(), &counts.len());
    check.compared += 1;
    for (place, (&(count, _), p)) in counts.iter().zip(expected).enumerate() {
        let (found, deviation) = (count as f64 / DRAWS as f64, (p * (1.0 - p) / DRAWS as f64).sqrt());
        let share = if found == p { 0.0 } else { (found - p).abs() / (SIGMAS * deviation) };
        check.share = check.share.max(if share.is_nan() { f64::INFINITY } else { share });
        if share.is_nan() || share > 1.0 {
            check.failures.push(format!("{name}[{place}]: expected {p}, found {found}"));
        }
    }
    Ok(())
}
