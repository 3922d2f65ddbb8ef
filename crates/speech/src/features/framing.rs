//! Frames of a signal: where they begin, and the window that weights their samples.

use std::f64::consts::{PI, TAU};

use serde::{Deserialize, Serialize};

/// Where windows lie, of L samples every H samples of a signal of n. There is one frame at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// Inside the signal: frame t begins with sample `t H`; `1 + floor((n - L) / H)` frames, and zeros after the end of a signal that
    /// is shorter than a window.
    #[default]
    Inside,
    /// Centred on multiples of the hop: frame t begins with sample `t H - floor(L / 2)`; `1 + floor(n / H)` frames. Beyond its ends
    /// the signal is mirrored at its first and last sample, `x[-i] = x[i]`, as often as is needed.
    Centred,
    /// Centred on the middles of the hops: frame t begins with sample `t H + floor(H / 2) - floor(L / 2)`; `floor((n + floor(H / 2)) / H)`
    /// frames. Beyond its ends the signal is mirrored beside its first and last sample, `x[-i] = x[i - 1]`. Kaldi's `snip_edges = false`.
    Middle,
}

impl Framing {
    /// The name in a recipe.
    pub(super) fn name(self) -> &'static str {
        match self {
            Framing::Inside => "inside",
            Framing::Centred => "centred",
            Framing::Middle => "middle",
        }
    }

    /// Frames of `n` samples.
    pub(super) fn frames(self, n: usize, length: usize, hop: usize) -> usize {
        match self {
            Framing::Inside => 1 + n.saturating_sub(length) / hop,
            Framing::Centred => 1 + n / hop,
            Framing::Middle => ((n + hop / 2) / hop).max(1),
        }
    }

    /// Fewest samples that have so many frames, at least one.
    pub(super) fn samples(self, frames: usize, length: usize, hop: usize) -> usize {
        let before = frames.saturating_sub(1) * hop;
        match self {
            Framing::Inside => before + length,
            Framing::Centred => before,
            Framing::Middle => before + hop - hop / 2,
        }
    }

    /// First sample of frame `t`.
    pub(super) fn start(self, t: usize, length: usize, hop: usize) -> isize {
        let start = (t * hop) as isize;
        match self {
            Framing::Inside => start,
            Framing::Centred => start - (length / 2) as isize,
            Framing::Middle => start + (hop / 2) as isize - (length / 2) as isize,
        }
    }

    /// The sample of a signal of `n`, at least one, that stands at place `i`; none where there are zeros.
    pub(super) fn fold(self, i: isize, n: usize) -> Option<usize> {
        if (0..n as isize).contains(&i) {
            return Some(i as usize);
        }
        match self {
            Framing::Inside => None,
            Framing::Centred => {
                let period = (2 * (n - 1)).max(1);
                let at = i.rem_euclid(period as isize) as usize;
                Some(at.min(period - at).min(n - 1))
            }
            Framing::Middle => {
                let at = i.rem_euclid(2 * n as isize) as usize;
                Some(at.min(2 * n - 1 - at))
            }
        }
    }
}

/// Weights w of the L samples of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Window {
    /// `w[n] = (1 - cos(2 π n / L)) / 2`
    #[default]
    Hann,
    /// The same, sampled in the middle between its points: `w[n] = (1 - cos(2 π (n + 1/2) / L)) / 2`
    HannMidpoint,
    /// Kaldi's: `w[n] = ((1 - cos(2 π n / (L - 1))) / 2)^0.85`
    Povey,
}

impl Window {
    /// The weights, in order.
    pub(super) fn weights(self, length: usize) -> Vec<f64> {
        let hann = |phase: f64| 0.5 - 0.5 * phase.cos();
        let weight = |n: usize| match self {
            Window::Hann => hann(TAU * n as f64 / length as f64),
            Window::HannMidpoint => (PI * (n as f64 + 0.5) / length as f64).sin().powi(2),
            Window::Povey => hann(TAU * n as f64 / (length.max(2) - 1) as f64).powf(0.85),
        };
        (0..length).map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Framing;

    #[test]
    fn mirrors_fold_as_often_as_needed() {
        let folded = |framing: Framing, n: usize| {
            (-5..6).map(|i| framing.fold(i, n).map_or(-1, |at| at as isize)).collect::<Vec<_>>()
        };
        assert_eq!(folded(Framing::Inside, 3), [-1, -1, -1, -1, -1, 0, 1, 2, -1, -1, -1]);
        assert_eq!(folded(Framing::Centred, 3), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(folded(Framing::Middle, 3), [1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]);
        assert_eq!(folded(Framing::Centred, 1), [0; 11]);
        assert_eq!(folded(Framing::Middle, 1), [0; 11]);
        assert_eq!(folded(Framing::Centred, 2), [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn so_many_samples_have_so_many_frames() {
        for framing in [Framing::Inside, Framing::Centred, Framing::Middle] {
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
}
