//! Splits audio into frames for features: frame positions and window functions.

use std::f64::consts::{PI, TAU};

use serde::{Deserialize, Serialize};

/// The position of frames in a signal.
///
/// Frames have L samples, every H samples of a signal of n. There is at least one frame, except
/// with [`Framing::ZeroPadded`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Framing {
    /// Within the signal, as in Kaldi with `snip_edges = true`.
    ///
    /// Frame t begins at sample `t H`; there are `1 + floor((n - L) / H)` frames. A signal shorter
    /// than a window is padded with zeros.
    #[default]
    Inside,
    /// Centered on multiples of the hop.
    ///
    /// Frame t begins at sample `t H - floor(L / 2)`; there are `1 + floor(n / H)` frames. Beyond
    /// its ends the signal is reflected at its first and last sample, `x[-i] = x[i]`, repeatedly if
    /// needed.
    Centered,
    /// Centered on the middle of each hop, as in Kaldi with `snip_edges = false`.
    ///
    /// Frame t begins at sample `t H + floor(H / 2) - floor(L / 2)`; there are `floor((n + floor(H
    /// / 2)) / H)` frames. Beyond its ends the signal is reflected with its first and last sample
    /// repeated, `x[-i] = x[i - 1]`.
    Middle,
    /// Centered on multiples of the hop, with zeros beyond the ends.
    ///
    /// As in NeMo 2.5 and later. Frame t begins at sample `t H - floor(L / 2)`; there are `floor(n
    /// / H)` frames. A signal shorter than a hop has none, which is an error.
    ZeroPadded,
}

impl Framing {
    /// Returns the name in a recipe.
    pub(super) fn name(self) -> &'static str {
        match self {
            Framing::Inside => "inside",
            Framing::Centered => "centered",
            Framing::Middle => "middle",
            Framing::ZeroPadded => "zero-padded",
        }
    }

    /// Returns the number of frames of `num_samples` samples.
    pub(super) fn frames(self, num_samples: usize, window_length: usize, hop_length: usize) -> usize {
        match self {
            Framing::Inside => 1 + num_samples.saturating_sub(window_length) / hop_length,
            Framing::Centered => 1 + num_samples / hop_length,
            Framing::Middle => ((num_samples + hop_length / 2) / hop_length).max(1),
            Framing::ZeroPadded => num_samples / hop_length,
        }
    }

    /// Returns the number of frames that later samples cannot change.
    ///
    /// `None` if frames reach beyond the end of the signal in another way than with zeros: then
    /// they depend on where the signal ends.
    pub(super) fn complete_frames(
        self,
        num_samples: u64,
        window_length: u64,
        hop_length: u64,
    ) -> Option<u64> {
        let frames_within =
            |n: u64| n.checked_sub(window_length).map_or(0, |num_remaining| 1 + num_remaining / hop_length);
        match self {
            Framing::Inside => Some(frames_within(num_samples)),
            Framing::ZeroPadded => {
                let frames = frames_within(num_samples.saturating_add(window_length / 2));
                Some(frames.min(num_samples / hop_length))
            }
            Framing::Centered | Framing::Middle => None,
        }
    }

    /// Returns the fewest samples that have `frames` frames, at least one.
    pub(super) fn samples(self, frames: usize, window_length: usize, hop_length: usize) -> usize {
        let offset = frames.saturating_sub(1) * hop_length;
        match self {
            Framing::Inside => offset + window_length,
            Framing::Centered => offset,
            Framing::Middle => offset + hop_length - hop_length / 2,
            Framing::ZeroPadded => offset + hop_length,
        }
    }

    /// Returns the first sample of frame `t`.
    pub(super) fn start(self, t: usize, window_length: usize, hop_length: usize) -> isize {
        let start = (t * hop_length) as isize;
        match self {
            Framing::Inside => start,
            Framing::Centered | Framing::ZeroPadded => start - (window_length / 2) as isize,
            Framing::Middle => start + (hop_length / 2) as isize - (window_length / 2) as isize,
        }
    }

    /// Maps index `i` to a sample of a signal of `n`; `None` for zero padding.
    pub(super) fn fold_index(self, i: isize, n: usize) -> Option<usize> {
        if (0..n as isize).contains(&i) {
            return Some(i as usize);
        }
        match self {
            Framing::Inside | Framing::ZeroPadded => None,
            // A reflected signal is periodic.
            Framing::Centered => {
                let period = (2 * (n - 1)).max(1);
                let index = i.rem_euclid(period as isize) as usize;
                Some(index.min(period - index).min(n - 1))
            }
            Framing::Middle => {
                let index = i.rem_euclid(2 * n as isize) as usize;
                Some(index.min(2 * n - 1 - index))
            }
        }
    }
}

/// The window function w of a frame of L samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// `w[n] = (1 - cos(2 π n / L)) / 2`
    #[default]
    Hann,
    /// Hann at the midpoints: `w[n] = (1 - cos(2 π (n + 1/2) / L)) / 2`
    HannMidpoint,
    /// Hann with zeros at both ends: `w[n] = (1 - cos(2 π n / (L - 1))) / 2`
    HannSymmetric,
    /// Kaldi's default: `w[n] = ((1 - cos(2 π n / (L - 1))) / 2)^0.85`
    Povey,
}

impl Window {
    /// Returns the weights of the samples.
    pub(super) fn weights(self, length: usize) -> Vec<f64> {
        let hann = |phase: f64| 0.5 - 0.5 * phase.cos();
        let weight = |n: usize| match self {
            Window::Hann => hann(TAU * n as f64 / length as f64),
            Window::HannMidpoint => (PI * (n as f64 + 0.5) / length as f64).sin().powi(2),
            Window::HannSymmetric => hann(TAU * n as f64 / (length.max(2) - 1) as f64),
            Window::Povey => hann(TAU * n as f64 / (length.max(2) - 1) as f64).powf(0.85),
        };
        (0..length).map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Framing;

    #[test]
    fn reflections_repeat_as_often_as_needed() {
        let folded = |framing: Framing, n: usize| {
            (-5..6).map(|i| framing.fold_index(i, n).map_or(-1, |index| index as isize)).collect::<Vec<_>>()
        };
        assert_eq!(folded(Framing::Inside, 3), [-1, -1, -1, -1, -1, 0, 1, 2, -1, -1, -1]);
        assert_eq!(folded(Framing::Centered, 3), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(folded(Framing::Middle, 3), [1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]);
        assert_eq!(folded(Framing::Centered, 1), [0; 11]);
        assert_eq!(folded(Framing::Middle, 1), [0; 11]);
        assert_eq!(folded(Framing::Centered, 2), [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn samples_and_frames_are_inverse() {
        for framing in [Framing::Inside, Framing::Centered, Framing::Middle, Framing::ZeroPadded] {
            for (length, hop) in [(320, 160), (400, 160), (3, 7), (1, 1), (5, 3)] {
                for frames in 1..9 {
                    let n = framing.samples(frames, length, hop);
                    assert_eq!(framing.frames(n, length, hop), frames, "{framing:?} {length} {hop}");
                    let fewer = framing.frames(n.saturating_sub(1), length, hop);
                    assert!(fewer < frames || frames == 1, "{framing:?} {length} {hop} {frames}");
                }
            }
        }
    }

    #[test]
    fn complete_frames_are_within_the_samples_so_far() {
        for (length, hop) in [(320, 160), (400, 160), (3, 7), (1, 1), (5, 3), (4, 4)] {
            for framing in [Framing::Inside, Framing::ZeroPadded] {
                for n in 0..1000u64 {
                    let ends_within = |t: &usize| {
                        let end = framing.start(*t, length as usize, hop as usize) + length as isize;
                        let exists = match framing {
                            Framing::Inside => true,
                            _ => *t < framing.frames(n as usize, length as usize, hop as usize),
                        };
                        end <= n as isize && exists
                    };
                    let expected = (0..).take_while(ends_within).count() as u64;
                    assert_eq!(framing.complete_frames(n, length, hop), Some(expected), "{framing:?} {n}");
                }
            }
        }
        assert_eq!(Framing::Centered.complete_frames(999, 5, 3), None);
    }
}
