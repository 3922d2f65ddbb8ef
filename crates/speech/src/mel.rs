//! The mel axis: where each bin lies in hertz, and the triangular filters on it.

/// Geometry of the frequency axis of a log-mel plane.
///
/// `mel(f) = 1127 ln(1 + f / 700)`; bin `m` of `M` is centred at `mel(low) + (m + 1) (mel(high) - mel(low)) / (M + 1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MelScale {
    low: f64,
    high: f64,
    bins: usize,
}

fn mel(hz: f64) -> f64 {
    1127.0 * (hz / 700.0).ln_1p()
}

fn hertz(mel: f64) -> f64 {
    700.0 * (mel / 1127.0).exp_m1()
}

impl MelScale {
    /// `bins` bins between two frequencies.
    pub(crate) fn new(low_hz: f64, high_hz: f64, bins: usize) -> Self {
        Self { low: mel(low_hz), high: mel(high_hz), bins }
    }

    /// Number of bins.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// Upper end of the axis in hertz.
    pub fn high_hz(&self) -> f64 {
        hertz(self.high)
    }

    fn step(&self) -> f64 {
        (self.high - self.low) / (self.bins + 1) as f64
    }

    /// Frequency in hertz of a (fractional) bin.
    pub fn hz(&self, bin: f64) -> f64 {
        hertz(self.low + (bin + 1.0) * self.step())
    }

    /// Fractional bin of a frequency in hertz: the inverse of [`MelScale::hz`].
    pub fn bin(&self, hz: f64) -> f64 {
        (mel(hz.max(0.0)) - self.low) / self.step() - 1.0
    }

    /// Weight of a frequency in the triangular filter of a bin: 1 at its centre, 0 from the neighbours' centres on.
    fn weight(&self, bin: usize, hz: f64) -> f64 {
        (1.0 - (self.bin(hz) - bin as f64).abs()).max(0.0)
    }
}

/// One triangular filter over the bins of a power spectrum, without its zeros.
pub(crate) struct Filter {
    first: usize,
    weights: Vec<f32>,
}

impl Filter {
    /// The filters of a scale over spectra of `size / 2 + 1` bins; `None` if one of them falls between two bins of the spectrum.
    pub(crate) fn bank(scale: &MelScale, size: usize, sample_rate: u32) -> Option<Vec<Filter>> {
        let hz = |k: usize| k as f64 * f64::from(sample_rate) / size as f64;
        let filter = |bin| {
            let weight = |k: &usize| scale.weight(bin, hz(*k)) as f32;
            let support: Vec<usize> = (0..=size / 2).filter(|k| weight(k) > 0.0).collect();
            let first = *support.first()?;
            Some(Filter { first, weights: support.iter().map(weight).collect() })
        };
        (0..scale.bins).map(filter).collect()
    }

    /// Filtered power.
    pub(crate) fn apply(&self, power: &[f32]) -> f32 {
        power[self.first..].iter().zip(&self.weights).map(|(p, w)| p * w).sum()
    }
}
