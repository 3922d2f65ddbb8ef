//! `FrameEnergies`: the energy of a recording over its noise floor, and where it is speech.
use std::ops::Range;

/// Frames per second.
const FRAMES_PER_SECOND: usize = 100;
/// Level of digital silence below that of the loudest frame, in dB.
const SILENCE_RANGE_DB: f64 = 70.0;
/// Power of constant audio, apart from rounding.
const MIN_POWER: f64 = 1e-16;
/// Fraction of the frames that are quieter than the noise floor.
const FLOOR_QUANTILE: f64 = 0.1;
/// Fraction of the speech frames that are quieter than the speech level.
const LEVEL_QUANTILE: f64 = 0.95;
/// Frames that share a noise floor.
const FLOOR_BLOCK_FRAMES: usize = 5 * FRAMES_PER_SECOND;
/// Frames on either side of a block in its noise floor.
const FLOOR_CONTEXT_FRAMES: usize = 15 * FRAMES_PER_SECOND;
/// Fewest frames between digital silence that have a noise floor.
const MIN_NOISE_FRAMES: usize = FRAMES_PER_SECOND;
/// Smallest maximum of speech over the noise floor, in dB.
const ONSET_DB: f64 = 9.0;
/// Smallest level of a speech frame over the noise floor, in dB.
const RELEASE_DB: f64 = 5.0;
/// Longest pause within a stretch of speech.
const MAX_PAUSE_FRAMES: usize = FRAMES_PER_SECOND / 5;
/// Shortest stretch of speech.
const MIN_SPEECH_FRAMES: usize = FRAMES_PER_SECOND / 10;

/// The energies of the frames of a recording, and its noise floor.
///
/// ```text
/// e[t] = 10 log10 var(x[s_t .. s_t + w])      s_t = t hop - (w - hop) / 2,   w = 2.5 hop
/// ```
/// with 100 frames per second. The variance ignores a constant offset. Frames 70 dB below the
/// loudest one are digital silence. The noise floor of a frame is the 10 % quantile over the frames
/// within 15 to 20 s and between the same stretches of digital silence; sounds shorter than a
/// second between digital silence have no noise, and their floor is the level of silence. A gain
/// changes nothing but rounding.
///
/// ```
/// use speech::FrameEnergies;
///
/// let mut samples = vec![0.0; 16_000];
/// samples[4000..8000].iter_mut().enumerate().for_each(|(n, x)| *x = (n as f32).sin());
/// let energies = FrameEnergies::new(&samples, 8000);
/// let speech = energies.speech_ranges();
/// assert_eq!(speech.len(), 1);
/// assert!(speech[0].start.abs_diff(4000) <= 80 && speech[0].end.abs_diff(8000) <= 80);
/// ```
#[derive(Debug, Clone)]
pub struct FrameEnergies {
    samples: usize,
    hop: usize,
    /// Level of each frame in dB, at least the level of silence.
    levels: Vec<f64>,
    /// Noise floor at each frame in dB.
    floors: Vec<f64>,
    silence_level: f64,
}

impl FrameEnergies {
    /// Computes the energies of the samples.
    ///
    /// Cost: O(n) time, O(n / hop) memory.
    pub fn new(samples: &[f32], sample_rate: u32) -> Self {
        let hop = (sample_rate as usize / FRAMES_PER_SECOND).max(1);
        let margin = (hop * 3).div_ceil(4);
        let level = |t: usize| {
            let start = (t * hop).saturating_sub(margin);
            let end = ((t + 1) * hop + margin).min(samples.len());
            decibels(variance(&samples[start..end]))
        };
        let levels: Vec<f64> = (0..samples.len().div_ceil(hop)).map(level).collect();
        let loudest = levels.iter().copied().fold(decibels(0.0), f64::max);
        let silence_level = (loudest - SILENCE_RANGE_DB).max(decibels(0.0));
        let levels: Vec<f64> = levels.into_iter().map(|level| level.max(silence_level)).collect();
        let floors = noise_floors(&levels, silence_level);
        FrameEnergies { samples: samples.len(), hop, levels, floors, silence_level }
    }

    /// Returns the sample ranges of speech, in order, with silence between them.
    ///
    /// Each frame of a range is 5 dB over the noise floor and one is 9 dB over it, except for
    /// pauses of at most 0.2 s; ranges have at least 0.1 s.
    pub fn speech_ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let excesses: Vec<f64> =
            self.levels.iter().zip(&self.floors).map(|(level, floor)| level - floor).collect();
        let mut start = 0;
        for stretch in excesses.chunk_by(|a, b| (*a >= RELEASE_DB) == (*b >= RELEASE_DB)) {
            let range = start..start + stretch.len();
            start = range.end;
            if !stretch.iter().any(|excess| *excess >= ONSET_DB) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if range.start - last.end <= MAX_PAUSE_FRAMES => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges.retain(|range| range.len() >= MIN_SPEECH_FRAMES);
        let to_samples =
            |range: Range<usize>| range.start * self.hop..(range.end * self.hop).min(self.samples);
        ranges.into_iter().map(to_samples).collect()
    }

    /// Returns the mean level over the noise floor in dB.
    ///
    /// 0 for an empty range of samples.
    pub fn mean_excess(&self, range: Range<usize>) -> f64 {
        let frames = self.frames(range);
        let sum: f64 = frames.clone().map(|t| self.levels[t] - self.floors[t]).sum();
        sum / frames.len().max(1) as f64
    }

    /// Returns the level of a range's loudest frame in dB.
    ///
    /// A frame of a sine of amplitude 1 has a level of -3 dB.
    pub fn max_level(&self, range: Range<usize>) -> f64 {
        self.frames(range).map(|t| self.levels[t]).fold(self.silence_level, f64::max)
    }

    /// Returns the level of loud speech in dB: the 95 % quantile of its frames.
    pub fn speech_level(&self) -> f64 {
        let ranges = self.speech_ranges().into_iter();
        let mut levels: Vec<f64> =
            ranges.flat_map(|range| self.frames(range).map(|t| self.levels[t])).collect();
        quantile(&mut levels, LEVEL_QUANTILE).unwrap_or(self.silence_level)
    }

    /// Returns whether a sample range contains anything but digital silence.
    pub fn has_sound(&self, range: Range<usize>) -> bool {
        self.frames(range).any(|t| self.levels[t] > self.silence_level)
    }

    /// Returns the frames that overlap a sample range.
    fn frames(&self, range: Range<usize>) -> Range<usize> {
        let end = range.end.min(self.samples).div_ceil(self.hop);
        (range.start / self.hop).min(end)..end
    }
}

/// Returns the power in dB; constant audio has -160 dB.
fn decibels(power: f64) -> f64 {
    10.0 * power.max(MIN_POWER).log10()
}

fn variance(samples: &[f32]) -> f64 {
    let count = samples.len().max(1) as f64;
    let mean = samples.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    samples.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count
}

/// Returns the noise floor of each frame.
fn noise_floors(levels: &[f64], silence_level: f64) -> Vec<f64> {
    let mut floors = Vec::with_capacity(levels.len());
    for run in levels.chunk_by(|a, b| (*a > silence_level) == (*b > silence_level)) {
        // A short sound between digital silence has no background noise.
        let has_noise = run.len() >= MIN_NOISE_FRAMES || run.len() == levels.len();
        if run[0] <= silence_level || !has_noise {
            floors.extend(vec![silence_level; run.len()]);
            continue;
        }
        for start in (0..run.len()).step_by(FLOOR_BLOCK_FRAMES) {
            let end = run.len().min(start + FLOOR_BLOCK_FRAMES);
            let context =
                start.saturating_sub(FLOOR_CONTEXT_FRAMES)..run.len().min(end + FLOOR_CONTEXT_FRAMES);
            let floor = quantile(&mut run[context].to_vec(), FLOOR_QUANTILE).unwrap_or(silence_level);
            floors.extend(vec![floor; end - start]);
        }
    }
    floors
}

/// Returns the value below which a fraction of the values is; `None` without values.
fn quantile(values: &mut [f64], fraction: f64) -> Option<f64> {
    let index = (fraction * values.len() as f64) as usize;
    let index = index.min(values.len().checked_sub(1)?);
    Some(*values.select_nth_unstable_by(index, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const RATE: usize = 8000;

    /// A tone of an amplitude, or silence of amplitude 0.
    fn tone(seconds: f64, amplitude: f32) -> Vec<f32> {
        (0..(seconds * RATE as f64) as usize).map(|n| amplitude * (n as f32 * 0.7).sin()).collect()
    }

    fn add_noise(samples: &mut [f32], amplitude: f32, seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        samples.iter_mut().for_each(|x| *x += amplitude * rng.random_range(-1.0..1.0));
    }

    /// Seconds of speech.
    fn speech_seconds(samples: &[f32]) -> Vec<(f64, f64)> {
        let seconds = |sample: usize| sample as f64 / RATE as f64;
        let ranges = FrameEnergies::new(samples, RATE as u32).speech_ranges();
        ranges.into_iter().map(|range| (seconds(range.start), seconds(range.end))).collect()
    }

    fn expect_seconds(samples: &[f32], expected: &[(f64, f64)]) {
        let ranges = speech_seconds(samples);
        let is_near = |a: &(f64, f64), b: &(f64, f64)| (a.0 - b.0).abs() < 0.03 && (a.1 - b.1).abs() < 0.03;
        let are_near = ranges.iter().zip(expected).all(|(a, b)| is_near(a, b));
        assert!(ranges.len() == expected.len() && are_near, "{ranges:?} {expected:?}");
    }

    #[test]
    fn bursts_are_speech_in_silence_and_in_noise() {
        // Leading silence of 0.5 s, a burst, a pause of 10 s, a quieter one (-30 dB), the end.
        let parts = [(0.5, 0.0), (0.4, 0.3), (10.0, 0.0), (0.6, 0.3), (0.5, 0.0), (0.4, 0.0095), (0.5, 0.0)];
        let parts: Vec<Vec<f32>> =
            parts.iter().map(|&(seconds, amplitude)| tone(seconds, amplitude)).collect();
        let samples = parts.concat();
        let expected = [(0.5, 0.9), (10.9, 11.5), (12.0, 12.4)];
        expect_seconds(&samples, &expected);
        for amplitude in [1e-4, 5e-4, 2e-3] {
            let mut noisy = samples.clone();
            add_noise(&mut noisy, amplitude, 3);
            expect_seconds(&noisy, &expected);
        }
        // A gain and an offset change nothing.
        for (gain, offset) in [(1.0 / 1024.0, 0.0), (64.0, 0.0), (1.0, 0.25)] {
            let changed: Vec<f32> = samples.iter().map(|x| x * gain + offset).collect();
            expect_seconds(&changed, &expected);
        }
        let energies = FrameEnergies::new(&samples, RATE as u32);
        let [loud, quiet] = [4400..7000, 96_200..99_000].map(|range| energies.max_level(range));
        assert!((loud - quiet - 30.0).abs() < 0.1 && (energies.speech_level() - loud).abs() < 0.1);
        assert!((loud - 10.0 * (0.3f64.powi(2) / 2.0).log10()).abs() < 0.1, "{loud}");
        assert!((energies.mean_excess(4400..7000) - 70.0).abs() < 0.1);
        assert!(energies.has_sound(0..4100) && !energies.has_sound(0..3800));
        assert_eq!((energies.mean_excess(10..10), energies.has_sound(10..10)), (0.0, false));
    }

    #[test]
    fn constant_noise_and_constant_audio_are_silence() {
        for (seconds, seed) in [(0.4, 1), (1.5, 2), (60.0, 3)] {
            for amplitude in [1e-5, 0.1, 1.0] {
                let mut samples = tone(seconds, 0.0);
                add_noise(&mut samples, amplitude, seed);
                assert_eq!(speech_seconds(&samples), [], "{seconds} s, {amplitude}");
                // Between digital silence.
                if seconds > 1.0 {
                    let padded = [tone(2.0, 0.0), samples, tone(3.0, 0.0)].concat();
                    assert_eq!(speech_seconds(&padded), [], "{seconds} s, {amplitude}, padded");
                }
            }
        }
        for samples in [vec![], vec![0.0; 7], vec![0.0; 9000], vec![-0.3; 9000]] {
            assert_eq!(speech_seconds(&samples), []);
        }
    }

    #[test]
    fn the_noise_floor_follows_the_noise() {
        let mut samples = tone(120.0, 0.0);
        let middle = samples.len() / 2;
        add_noise(&mut samples[..middle], 1e-3, 1);
        add_noise(&mut samples[middle..], 0.05, 2);
        for (start, amplitude) in [(20.0, 0.01), (100.0, 0.5)] {
            let start = (start * RATE as f64) as usize;
            samples[start..].iter_mut().zip(tone(0.5, amplitude)).for_each(|(x, y)| *x += y);
        }
        let ranges = speech_seconds(&samples);
        assert!(
            ranges.iter().any(|(start, end)| (start - 20.0).abs() < 0.03 && (end - 20.5).abs() < 0.03),
            "{ranges:?}"
        );
        assert!(
            ranges.iter().any(|(start, end)| (start - 100.0).abs() < 0.03 && (end - 100.5).abs() < 0.03),
            "{ranges:?}"
        );
        // New noise counts as speech until it fills a tenth of the context.
        let new_noise: Vec<_> =
            ranges.iter().filter(|(start, _)| ![20, 100].contains(&(start.round() as i32))).collect();
        assert!(new_noise.iter().all(|(start, end)| *start > 59.9 && *end < 80.1), "{ranges:?}");
    }

    #[test]
    fn short_pauses_are_bridged_and_clicks_ignored() {
        let parts = [(1.0, 0.0), (0.2, 0.3), (0.15, 0.0), (0.2, 0.3), (0.4, 0.0), (0.005, 0.5), (1.0, 0.0)];
        let parts: Vec<Vec<f32>> =
            parts.iter().map(|&(seconds, amplitude)| tone(seconds, amplitude)).collect();
        expect_seconds(&parts.concat(), &[(1.0, 1.55)]);
    }
}
