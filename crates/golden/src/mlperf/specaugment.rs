//! Golden test of SpecAugment: given masks, and the distribution of random masks.
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use speech::{Features, MaskForm, Masks, SpecAugment};

use super::check::{MlPerfCheck, Tolerance};
use crate::error::RunError;

type CheckResult = Result<(), RunError>;

/// Random masks per distribution.
const DRAWS_PER_DISTRIBUTION: usize = 20_000;
/// Maximum deviation of a frequency from its probability, in standard deviations.
const MAX_SIGMAS: f64 = 5.0;
const SEED: u64 = 7203;
/// Bins per frame.
const BINS_PER_FRAME: usize = 80;
/// Adjacent frames that are joined ("spliced") into one encoder input row.
const SPLICE: usize = 3;
const FORMS: [(MaskForm, &str); 2] = [(MaskForm::Reference, "reference"), (MaskForm::Nvidia, "nvidia")];

/// Compares one of two kinds of cases, by its tensors.
pub(super) fn compare(check: &mut MlPerfCheck) -> CheckResult {
    if check.file.tensors.contains_key("input") {
        compare_given_masks(check)
    } else {
        compare_mask_frequencies(check)
    }
}

/// Compares the masked cells of given masks, which must be equal.
fn compare_given_masks(check: &mut MlPerfCheck) -> CheckResult {
    let lengths = check.input_integers("lens")?;
    let rows = check.input_rows::<f64>("input", lengths.len())?;
    let frames = rows.first().map_or(0, Vec::len) / BINS_PER_FRAME;
    for (form, name) in [(MaskForm::Reference, "output"), (MaskForm::Nvidia, "output_inclusive")] {
        let mut utterance_masks = vec![Masks::default(); lengths.len()];
        for (tensor, size) in [("freq_masks", BINS_PER_FRAME), ("time_masks", frames)] {
            // A stored mask has utterance, start and width.
            for mask in check.input_integers(tensor)?.chunks_exact(3) {
                let &[utterance, start, width] = mask else { continue };
                let Some(masks) = utterance_masks.get_mut(utterance) else {
                    let expected = format!("utterances below {}", lengths.len());
                    return Err(check.file.error(tensor, &expected, &utterance.to_string()).into());
                };
                let ranges = if tensor == "freq_masks" { &mut masks.bins } else { &mut masks.frames };
                ranges.push(form.masked_range(start, width, size));
            }
        }
        // Mask and splice each utterance; padding stays zero.
        let (mut outputs, mut spliced) = (Vec::new(), Vec::new());
        for ((row, &length), masks) in rows.iter().zip(&lengths).zip(&utterance_masks) {
            let data = row.iter().map(|&x| x as f32).collect();
            let mut features = Features { frames, dim: BINS_PER_FRAME, data };
            masks.apply(&mut features, 0.0);
            outputs.extend(features.data.iter().map(|&x| f64::from(x)));
            features.frames = length.min(frames);
            features.data.truncate(features.frames * BINS_PER_FRAME);
            spliced.extend(features.stack(SPLICE, SPLICE).data.iter().map(|&x| f64::from(x)));
            let padded_size = frames.div_ceil(SPLICE) * SPLICE * BINS_PER_FRAME;
            spliced.resize(spliced.len().next_multiple_of(padded_size.max(1)), 0.0);
        }
        check.compare(name, &outputs, Tolerance::Exact)?;
        if name == "output" {
            check.compare("spliced", &spliced, Tolerance::Exact)?;
        }
    }
    Ok(())
}

/// Settings of SpecAugment in the sidecar.
#[derive(Deserialize)]
struct Options {
    freq_masks: usize,
    freq_width: [usize; 2],
    time_masks: usize,
    time_fraction: f32,
}

/// Lengths of an utterance without and with padding, and its widest masks.
#[derive(Deserialize)]
struct LengthPair {
    len: usize,
    padded: usize,
    max_width_reference: usize,
    max_width_drawn_nvidia: usize,
}

#[derive(Deserialize)]
struct MaxWidth {
    len: usize,
    max_width: usize,
}

/// Compares the frequencies of masked cells with their probabilities.
fn compare_mask_frequencies(check: &mut MlPerfCheck) -> CheckResult {
    let options: Options = check.file.field("options")?;
    let settings = |form| SpecAugment {
        freq_masks: options.freq_masks,
        freq_width: options.freq_width[1],
        time_masks: options.time_masks,
        time_width: options.time_fraction,
        form,
        ..SpecAugment::default()
    };
    for MaxWidth { len, max_width } in check.file.field::<Vec<MaxWidth>>("max_width_of_length")? {
        let width = settings(MaskForm::Reference).max_time_width(len);
        check.expect_equal(&format!("widest mask of {len} frames"), &width, &max_width);
    }
    settings(MaskForm::Reference).check()?;
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    for (i, pair) in check.file.field::<Vec<LengthPair>>("pairs")?.into_iter().enumerate() {
        let widest = [pair.max_width_reference, pair.max_width_drawn_nvidia];
        for ((form, name), widest) in FORMS.into_iter().zip(widest) {
            let settings = settings(form);
            let tensor = format!("p{i}.frame_masked_{name}");
            let stored = check.input::<f64>(&tensor)?.len();
            if stored != pair.padded || pair.len > pair.padded {
                let expected = format!("{} numbers, for {} frames of an utterance", pair.padded, pair.len);
                return Err(check.file.error(&tensor, &expected, &stored.to_string()).into());
            }
            check.expect_equal(
                &format!("p{i}: widest mask, {name}"),
                &settings.max_time_width(pair.len),
                &widest,
            );
            let zero_counts = |size| MaskCounts(vec![CellCount::default(); size]);
            let (mut bin_counts, mut frame_counts) = (zero_counts(BINS_PER_FRAME), zero_counts(pair.padded));
            for draw in 1..=DRAWS_PER_DISTRIBUTION {
                let masks = settings.draw_masks((pair.len, BINS_PER_FRAME), pair.padded, &mut rng);
                bin_counts.add(draw, &masks.bins);
                frame_counts.add(draw, &masks.frames);
            }
            compare_frequencies(check, &format!("freq_bin_masked_{name}"), &bin_counts)?;
            compare_frequencies(check, &tensor, &frame_counts)?;
        }
    }
    Ok(())
}

/// How often a cell was masked.
#[derive(Clone, Default)]
struct CellCount {
    /// Number of draws that mask the cell.
    draws: usize,
    /// The last of these draws; 0 for none.
    last_draw: usize,
}

/// Counts of all cells of an axis: bins or frames.
struct MaskCounts(Vec<CellCount>);

impl MaskCounts {
    /// Counts each cell that is masked in a draw once; draws are numbered from 1.
    fn add(&mut self, draw: usize, masks: &[std::ops::Range<usize>]) {
        for cell in masks.iter().cloned().flatten() {
            let count = &mut self.0[cell];
            count.draws += usize::from(count.last_draw != draw);
            count.last_draw = draw;
        }
    }
}

/// Compares frequencies over the draws with probabilities.
fn compare_frequencies(check: &mut MlPerfCheck, name: &str, MaskCounts(counts): &MaskCounts) -> CheckResult {
    let expected = check.input::<f64>(name)?;
    check.expect_equal(&format!("{name}: cells"), &expected.len(), &counts.len());
    check.compared_quantities += 1;
    for (cell, (count, p)) in counts.iter().zip(expected).enumerate() {
        let (frequency, deviation) = (
            count.draws as f64 / DRAWS_PER_DISTRIBUTION as f64,
            (p * (1.0 - p) / DRAWS_PER_DISTRIBUTION as f64).sqrt(),
        );
        let ratio = if frequency == p { 0.0 } else { (frequency - p).abs() / (MAX_SIGMAS * deviation) };
        check.ratio = check.ratio.max(if ratio.is_nan() { f64::INFINITY } else { ratio });
        if ratio.is_nan() || ratio > 1.0 {
            check.failures.push(format!("{name}[{cell}]: expected {p}, found {frequency}"));
        }
    }
    Ok(())
}
