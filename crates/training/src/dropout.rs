//! Dropout with masks that depend on nothing but their names.
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use kernels::Real;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::Result;
use crate::random::{Purpose, stream};
use crate::tensors::{self, with_slice};

/// Where the masks of one training step come from: each use takes the next stream of `(seed, epoch, batch)`.
#[derive(Debug, Clone)]
pub struct Masks {
    seed: u64,
    epoch: u64,
    batch: u64,
    used: u64,
}

impl Masks {
    /// The masks of one batch of one epoch.
    pub fn new(seed: u64, epoch: u64, batch: u64) -> Self {
        Masks { seed, epoch, batch, used: 0 }
    }

    /// A seed for masks that are made elsewhere: the first 64 bits of the next stream.
    pub fn seed(&mut self) -> u64 {
        self.next().next_u64()
    }

    fn next(&mut self) -> ChaCha8Rng {
        let rng = stream(self.seed, Purpose::Dropout, self.epoch, (self.batch << 16) | self.used);
        self.used += 1;
        rng
    }

    /// Zeroes each element with probability `rate` and scales the others by `1 / (1 - rate)`.
    ///
    /// The rate is rounded to a multiple of 1/256; one of 1 or more drops everything.
    ///
    /// # Errors
    /// Candle's own errors, for instance for a tensor that is not f32.
    pub fn apply(&mut self, x: &Tensor, rate: f32) -> Result<Tensor> {
        match self.mask(x.elem_count(), rate) {
            Some(mask) => Ok(x.contiguous()?.apply_op1(mask)?),
            None => Ok(x.clone()),
        }
    }

    /// The mask that [`Self::apply`] would use, for operations that have one inside; none where nothing is dropped.
    pub(crate) fn mask(&mut self, count: usize, rate: f32) -> Option<Mask> {
        let threshold = (rate * 256.0).round().min(256.0) as u16;
        if threshold == 0 {
            return None;
        }
        let mut bytes = vec![0; count];
        self.next().fill_bytes(&mut bytes);
        Some(Mask { bytes, threshold, scale: 256.0 / f32::from((256 - threshold).max(1)) })
    }
}

/// Which elements survive: those whose byte is at least the threshold.
pub(crate) struct Mask {
    bytes: Vec<u8>,
    threshold: u16,
    scale: f32,
}

impl Mask {
    fn run(&self, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        self.multiply(0, &mut out);
        out
    }

    /// Multiplies elements, of which the first has the number `first`, by 0 or the scale.
    pub fn multiply<F: Real>(&self, first: usize, values: &mut [F]) {
        let scale = F::from_f64(f64::from(self.scale));
        for (x, &byte) in values.iter_mut().zip(&self.bytes[first..]) {
            *x *= if u16::from(byte) < self.threshold { F::ZERO } else { scale };
        }
    }
}

impl CustomOp1 for Mask {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.run(tensors::slice(x, layout)?)), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, above: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let above = with_slice(&above.contiguous()?, |above| Ok(self.run(above)))?;
        Ok(Some(tensors::from_vec(above, x.shape().clone())?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;

    #[test]
    fn the_gradient_is_the_mask_and_a_name_gives_the_same_mask_again() {
        let x = Var::ones(10_000, DType::F32, &Device::Cpu).unwrap();
        let mask = |batch| {
            let out = Masks::new(7, 1, batch).apply(&x, 0.25).unwrap();
            let grads = out.sum_all().unwrap().backward().unwrap();
            let (out, grad): (Vec<f32>, Vec<f32>) =
                (out.to_vec1().unwrap(), grads.get(&x).unwrap().to_vec1().unwrap());
            assert_eq!(out, grad);
            out
        };
        assert_eq!(mask(3), mask(3));
        assert_ne!(mask(3), mask(4));
        let mean = mask(3).iter().sum::<f32>() / 1e4;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        assert!(mask(3).iter().all(|&v| v == 0.0 || v == 256.0 / 192.0));
    }

    #[test]
    fn seeds_are_those_of_their_batch_and_place() {
        let seeds = |batch| {
            let mut masks = Masks::new(7, 1, batch);
            [masks.seed(), masks.seed()]
        };
        assert_eq!(seeds(3), seeds(3));
        let [[a, b], [c, d]] = [seeds(3), seeds(4)];
        assert!(a != b && a != c && b != d);
        // A mask in between takes a stream of its own.
        let mut masks = Masks::new(7, 1, 3);
        masks.apply(&Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap(), 0.5).unwrap();
        assert_eq!(masks.seed(), b);
    }

    #[test]
    fn rate_zero_leaves_the_tensor_alone() {
        let x = Tensor::arange(0f32, 5.0, &Device::Cpu).unwrap();
        let out = Masks::new(1, 1, 1).apply(&x, 0.0).unwrap();
        assert_eq!(out.to_vec1::<f32>().unwrap(), x.to_vec1::<f32>().unwrap());
    }
}
