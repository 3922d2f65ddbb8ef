//! Mel frequency scales of log-mel features and their triangular filters.

use serde::{Deserialize, Serialize};

use crate::feature_float::FeatureFloat;

/// A mel scale and the shape of its filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MelKind {
    /// `mel(f) = 1127 ln(1 + f / 700)` (O'Shaughnessy 1987), as in HTK and Kaldi.
    ///
    /// Filters are triangles over mels, 1 at their centers.
    #[default]
    Htk,
    /// Slaney's Auditory Toolbox (1998), linear below 1 kHz.
    ///
    /// `mel(f) = 3 f / 200` up to 1 kHz and `15 + 27 ln(f / 1000) / ln 6.4` above. Filters are
    /// triangles over hertz, of area 1.
    Slaney,
}

impl MelKind {
    fn hz_to_mel(self, hz: f64) -> f64 {
        match self {
            MelKind::Htk => 1127.0 * (hz / 700.0).ln_1p(),
            MelKind::Slaney if hz < BREAK_HZ => hz / HZ_PER_MEL,
            MelKind::Slaney => BREAK_HZ / HZ_PER_MEL + (hz / BREAK_HZ).ln() / log_step(),
        }
    }

    fn mel_to_hz(self, mel: f64) -> f64 {
        match self {
            MelKind::Htk => 700.0 * (mel / 1127.0).exp_m1(),
            MelKind::Slaney if mel < BREAK_HZ / HZ_PER_MEL => mel * HZ_PER_MEL,
            MelKind::Slaney => BREAK_HZ * ((mel - BREAK_HZ / HZ_PER_MEL) * log_step()).exp(),
        }
    }
}

/// Frequency above which Slaney's scale is logarithmic.
const BREAK_HZ: f64 = 1000.0;
/// Hertz per mel below [`BREAK_HZ`].
const HZ_PER_MEL: f64 = 200.0 / 3.0;

/// Logarithm of the frequency ratio of one mel above [`BREAK_HZ`].
fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

/// The frequency axis of log-mel features.
///
/// Bin `m` of `M` is centered at `mel(low) + (m + 1) (mel(high) - mel(low)) / (M + 1)`, in mels of
/// a [`MelKind`]; its filter extends from the center of the previous bin to that of the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MelScale {
    kind: MelKind,
    /// Ends of the axis in mels.
    low_mel: f64,
    high_mel: f64,
    bins: usize,
}

impl MelScale {
    /// A scale of `bins` bins between two frequencies.
    pub(crate) fn new(kind: MelKind, low_hz: f64, high_hz: f64, bins: usize) -> Self {
        Self { kind, low_mel: kind.hz_to_mel(low_hz), high_mel: kind.hz_to_mel(high_hz), bins }
    }

    /// Returns the number of bins.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// Returns the upper end of the axis in hertz.
    pub fn high_hz(&self) -> f64 {
        self.kind.mel_to_hz(self.high_mel)
    }

    /// Returns the distance of adjacent bins in mels.
    fn step(&self) -> f64 {
        (self.high_mel - self.low_mel) / (self.bins + 1) as f64
    }

    /// Returns the frequency of a (fractional) bin in hertz.
    ///
    /// Bins -1 and M are the ends of the axis.
    pub fn hz(&self, bin: f64) -> f64 {
        self.kind.mel_to_hz(self.low_mel + (bin + 1.0) * self.step())
    }

    /// Returns the fractional bin of a frequency; the inverse of [`MelScale::hz`].
    pub fn bin(&self, hz: f64) -> f64 {
        (self.kind.hz_to_mel(hz.max(0.0)) - self.low_mel) / self.step() - 1.0
    }

    /// Returns the weight of a frequency in a bin's filter.
    ///
    /// It is 0 from the centers of the adjacent bins.
    pub(super) fn weight(&self, bin: usize, hz: f64) -> f64 {
        match self.kind {
            MelKind::Htk => (1.0 - (self.bin(hz) - bin as f64).abs()).max(0.0),
            MelKind::Slaney => {
                let [left, center, right] = [-1.0, 0.0, 1.0].map(|offset| self.hz(bin as f64 + offset));
                let height = ((hz - left) / (center - left)).min((right - hz) / (right - center));
                height.max(0.0) * 2.0 / (right - left)
            }
        }
    }
}

/// A triangular filter over the bins of a power spectrum, without zeros.
pub(crate) struct MelFilter<F> {
    /// First spectral bin of the weights.
    first_bin: usize,
    weights: Vec<F>,
}

impl<F: FeatureFloat> MelFilter<F> {
    /// Returns the filters of a scale over spectra of `size / 2 + 1` bins.
    ///
    /// `None` if a filter falls between two bins of the spectrum.
    pub(crate) fn filter_bank(scale: &MelScale, size: usize, sample_rate: u32) -> Option<Vec<Self>> {
        let hz = |k: usize| k as f64 * f64::from(sample_rate) / size as f64;
        let filter = |bin| {
            let weight = |k: &usize| F::cast(scale.weight(bin, hz(*k)));
            let nonzero_bins: Vec<usize> = (0..=size / 2).filter(|k| weight(k) > F::zero()).collect();
            let first_bin = *nonzero_bins.first()?;
            Some(MelFilter { first_bin, weights: nonzero_bins.iter().map(weight).collect() })
        };
        (0..scale.bins()).map(filter).collect()
    }

    /// Returns the filtered power.
    pub(crate) fn apply(&self, power: &[F]) -> F {
        power[self.first_bin..].iter().zip(&self.weights).fold(F::zero(), |sum, (&p, &w)| sum + p * w)
    }

    /// Returns the weights over a spectrum of `bins` bins.
    pub(crate) fn row(&self, bins: usize) -> impl Iterator<Item = f64> {
        let weight = |k: usize| Some(self.weights.get(k.checked_sub(self.first_bin)?)?.to_f64());
        (0..bins).map(move |k| weight(k).unwrap_or(0.0))
    }
}
