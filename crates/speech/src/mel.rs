//! The mel axis: the frequency of each bin, and the triangular filters on it.

use serde::{Deserialize, Serialize};

use crate::fft_float::FftFloat;

/// Which mel scale, and what the filters on it look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MelKind {
    /// `mel(f) = 1127 ln(1 + f / 700)` (O'Shaughnessy 1987), with filters that are triangles over mels, 1 at their centres: that of
    /// HTK and Kaldi.
    #[default]
    Htk,
    /// `mel(f) = 3 f / 200` up to 1 kHz and `15 + 27 ln(f / 1000) / ln 6.4` above (Slaney's Auditory Toolbox, 1998), with filters
    /// that are triangles over hertz, of area 1.
    Slaney,
}

impl MelKind {
    fn mel(self, hz: f64) -> f64 {
        match self {
            MelKind::Htk => 1127.0 * (hz / 700.0).ln_1p(),
            MelKind::Slaney if hz < BREAK_HZ => hz / LINEAR_HZ,
            MelKind::Slaney => BREAK_HZ / LINEAR_HZ + (hz / BREAK_HZ).ln() / log_step(),
        }
    }

    fn hertz(self, mel: f64) -> f64 {
        match self {
            MelKind::Htk => 700.0 * (mel / 1127.0).exp_m1(),
            MelKind::Slaney if mel < BREAK_HZ / LINEAR_HZ => mel * LINEAR_HZ,
            MelKind::Slaney => BREAK_HZ * ((mel - BREAK_HZ / LINEAR_HZ) * log_step()).exp(),
        }
    }
}

/// Where Slaney's scale becomes logarithmic.
const BREAK_HZ: f64 = 1000.0;
/// A mel below that.
const LINEAR_HZ: f64 = 200.0 / 3.0;

/// Logarithm of the ratio of two frequencies that lie a mel apart above it.
fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

/// Geometry of the frequency axis of a log-mel plane.
///
/// Bin `m` of `M` is centred at `mel(low) + (m + 1) (mel(high) - mel(low)) / (M + 1)`, in mels of a [`MelKind`]; its filter reaches
/// from the centre of the bin before to that of the one behind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MelScale {
    kind: MelKind,
    low: f64,
    high: f64,
    bins: usize,
}

impl MelScale {
    /// `bins` bins between two frequencies.
    pub(crate) fn new(kind: MelKind, low_hz: f64, high_hz: f64, bins: usize) -> Self {
        Self { kind, low: kind.mel(low_hz), high: kind.mel(high_hz), bins }
    }

    /// Number of bins.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// Upper end of the axis in hertz.
    pub fn high_hz(&self) -> f64 {
        self.kind.hertz(self.high)
    }

    fn step(&self) -> f64 {
        (self.high - self.low) / (self.bins + 1) as f64
    }

    /// Frequency in hertz of a (fractional) bin; bins -1 and M are the ends of the axis.
    pub fn hz(&self, bin: f64) -> f64 {
        self.kind.hertz(self.low + (bin + 1.0) * self.step())
    }

    /// Fractional bin of a frequency in hertz: the inverse of [`MelScale::hz`].
    pub fn bin(&self, hz: f64) -> f64 {
        (self.kind.mel(hz.max(0.0)) - self.low) / self.step() - 1.0
    }

    /// Weight of a frequency in the filter of a bin, 0 from the neighbours' centres on.
    pub(super) fn weight(&self, bin: usize, hz: f64) -> f64 {
        match self.kind {
            MelKind::Htk => (1.0 - (self.bin(hz) - bin as f64).abs()).max(0.0),
            MelKind::Slaney => {
                let [left, centre, right] = [-1.0, 0.0, 1.0].map(|by| self.hz(bin as f64 + by));
                let side = ((hz - left) / (centre - left)).min((right - hz) / (right - centre));
                side.max(0.0) * 2.0 / (right - left)
            }
        }
    }
}

/// One triangular filter over the bins of a power spectrum, without its zeros.
pub(crate) struct Filter<F> {
    first: usize,
    weights: Vec<F>,
}

impl<F: FftFloat> Filter<F> {
    /// The filters of a scale over spectra of `size / 2 + 1` bins; `None` if one of them falls between two bins of the spectrum.
    pub(crate) fn bank(scale: &MelScale, size: usize, sample_rate: u32) -> Option<Vec<Self>> {
        let hz = |k: usize| k as f64 * f64::from(sample_rate) / size as f64;
        let filter = |bin| {
            let weight = |k: &usize| F::of(scale.weight(bin, hz(*k)));
            let support: Vec<usize> = (0..=size / 2).filter(|k| weight(k) > F::zero()).collect();
            let first = *support.first()?;
            Some(Filter { first, weights: support.iter().map(weight).collect() })
        };
        (0..scale.bins()).map(filter).collect()
    }

    /// Filtered power.
    pub(crate) fn apply(&self, power: &[F]) -> F {
        power[self.first..].iter().zip(&self.weights).fold(F::zero(), |sum, (&p, &w)| sum + p * w)
    }

    /// Its weights over a spectrum of so many bins.
    pub(crate) fn row(&self, bins: usize) -> impl Iterator<Item = f64> {
        let weight = |k: usize| Some(self.weights.get(k.checked_sub(self.first)?)?.wide());
        (0..bins).map(move |k| weight(k).unwrap_or(0.0))
    }
}
