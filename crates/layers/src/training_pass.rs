//! `TrainingPass`: dropout masks and gradient hooks of a model's forward pass.
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use kernels::{Real, items_mut, par_for};
use rand::Rng;

use crate::batch_statistics::BatchStatistics;
use crate::gradient_hooks::GradientHooks;
use crate::ragged::Ragged;
use crate::random::{Purpose, stream};
use crate::tensors;
use crate::tensors::with_slice;
use crate::{Error, Result};

/// Number of values of a random byte.
///
/// A dropout rate is rounded to a multiple of its inverse.
const BYTE_VALUES: u16 = 256;

/// Low bits of a random stream's counter: uses of dropout.
///
/// The high bits are the index of the utterance.
const USE_BITS: u32 = 16;

/// The state of a forward pass in training: its dropout masks, and hooks for gradients.
///
/// The hooks send gradients to an all-reduce as soon as they are final.
///
/// Each use of dropout takes, for each utterance, the next stream of `(seed, epoch, utterance)`.
/// The mask of an utterance depends neither on its position in the batch nor on the other
/// utterances.
#[derive(Debug, Clone)]
pub struct TrainingPass {
    seed: u64,
    epoch: u64,
    /// Indices of the utterances in the training set.
    utterances: Vec<u64>,
    /// Number of random streams that each utterance has used.
    used_streams: u64,
    hooks: Option<GradientHooks>,
    /// True if layers save only their input for the backward pass.
    recomputes: bool,
    /// Statistics of trained batch norms.
    statistics: Vec<BatchStatistics>,
}

impl TrainingPass {
    /// Creates a pass over utterances, by index in the training set.
    pub fn new(seed: u64, epoch: u64, utterances: &[u64]) -> Self {
        let utterances = utterances.to_vec();
        let (hooks, statistics) = (None, Vec::new());
        TrainingPass { seed, epoch, utterances, used_streams: 0, hooks, recomputes: false, statistics }
    }

    /// Sets hooks, to which the backward pass sends final gradients.
    #[must_use]
    pub fn with_gradient_hooks(mut self, hooks: Option<GradientHooks>) -> Self {
        self.hooks = hooks;
        self
    }

    /// Makes layers with recomputation save only their input.
    ///
    /// The backward pass computes them again, with the same dropout masks: memory of a layer at a
    /// time, for the time of another forward pass.
    ///
    /// ```
    /// use layers::training_pass::TrainingPass;
    ///
    /// let pass = TrainingPass::new(7, 0, &[0, 1]).with_recomputation(true);
    /// assert_eq!(pass.utterances(), [0, 1]);
    /// ```
    #[must_use]
    pub fn with_recomputation(mut self, recomputes: bool) -> Self {
        self.recomputes = recomputes;
        self
    }

    /// Returns true if layers save only their input for the backward pass.
    pub fn recomputes(&self) -> bool {
        self.recomputes
    }

    /// Adds the statistics of a batch norm.
    pub(crate) fn add_statistics(&mut self, statistics: BatchStatistics) {
        self.statistics.push(statistics);
    }

    /// Removes and returns the statistics of trained batch norms.
    ///
    /// `Parameters::update_statistics` of crate `model` adds them to the running statistics after a
    /// step.
    pub fn take_statistics(&mut self) -> Vec<BatchStatistics> {
        std::mem::take(&mut self.statistics)
    }

    /// Returns the hooks, for operations that send gradients in their backward pass.
    pub fn gradient_hooks(&self) -> Option<&GradientHooks> {
        self.hooks.as_ref()
    }

    /// Returns the indices of the utterances.
    pub fn utterances(&self) -> &[u64] {
        &self.utterances
    }

    /// Returns a seed for dropout masks that another crate computes by utterance.
    pub fn seed(&mut self) -> u64 {
        self.used_streams += 1;
        stream(self.seed, Purpose::Joint, self.epoch, self.used_streams).next_u64()
    }

    /// Zeroes each element with probability `rate` and scales the others by `1 / (1 - rate)`.
    ///
    /// The rate is rounded to a multiple of 1/256; one of 1 or more drops everything.
    ///
    /// # Shapes
    /// `x [B, ...]`
    ///
    /// # Errors
    /// [`Error::Shape`] if B is not the number of the utterances; errors of candle, for instance
    /// for a tensor that is not f32.
    pub fn apply(&mut self, x: &Tensor, rate: f32) -> Result<Tensor> {
        let (expected, found) = (self.utterances.len(), x.dims().first().copied().unwrap_or(0));
        if found != expected {
            return Err(Error::shape(
                "x",
                format!("a first axis of {expected} utterances"),
                found.to_string(),
            ));
        }
        self.apply_by_utterance(x, &vec![x.elem_count() / expected.max(1); expected], rate)
    }

    /// Applies dropout to ragged rows `[Σ T_b, W]`.
    pub fn apply_ragged(&mut self, x: &Tensor, ragged: &Ragged, rate: f32) -> Result<Tensor> {
        let width = x.elem_count() / ragged.rows().max(1);
        self.apply_by_utterance(
            x,
            &ragged.lengths().iter().map(|rows| rows * width).collect::<Vec<_>>(),
            rate,
        )
    }

    /// Applies dropout to a tensor with `value_counts[b]` values for utterance b.
    fn apply_by_utterance(&mut self, x: &Tensor, value_counts: &[usize], rate: f32) -> Result<Tensor> {
        match self.mask(value_counts, rate) {
            Some(mask) => Ok(x.contiguous()?.apply_op1(mask)?),
            None => Ok(x.clone()),
        }
    }

    /// Returns a mask of `value_counts[b]` values for utterance b.
    ///
    /// None if nothing is dropped.
    ///
    /// It is for operations that apply dropout themselves.
    pub fn mask(&mut self, value_counts: &[usize], rate: f32) -> Option<DropoutMask> {
        let threshold = (rate * f32::from(BYTE_VALUES)).round().min(f32::from(BYTE_VALUES)) as u16;
        if threshold == 0 {
            return None;
        }
        debug_assert_eq!(value_counts.len(), self.utterances.len());
        let mut bytes = vec![0; value_counts.iter().sum()];
        let mut remaining_bytes = &mut bytes[..];
        let mut utterance_bytes: Vec<(u64, &mut [u8])> = (self.utterances.iter().zip(value_counts))
            .map(|(&utterance, &count)| {
                (utterance, remaining_bytes.split_off_mut(..count).expect("values of all utterances"))
            })
            .collect();
        par_for(items_mut(&mut utterance_bytes), |_, (utterance, bytes)| {
            let counter = (*utterance << USE_BITS) | self.used_streams;
            stream(self.seed, Purpose::Dropout, self.epoch, counter).fill_bytes(bytes);
        });
        self.used_streams += 1;
        let kept_values = (BYTE_VALUES - threshold).max(1);
        Some(DropoutMask { bytes, threshold, scale: f32::from(BYTE_VALUES) / f32::from(kept_values) })
    }
}

/// A dropout mask with a random byte for each value.
///
/// A value is dropped if its byte is below the threshold, 256 times the dropout rate.
pub struct DropoutMask {
    bytes: Vec<u8>,
    /// 256 times the dropout rate.
    threshold: u16,
    /// The factor of values that are not dropped.
    scale: f32,
}

impl DropoutMask {
    /// Applies the mask to a copy of all values.
    fn apply_to(&self, x: &[f32]) -> Vec<f32> {
        let mut out = x.to_vec();
        self.multiply(0, &mut out);
        out
    }

    /// Multiplies each value by 0 or the scale.
    ///
    /// Value i has the mask's element `mask_offset + i`.
    pub(crate) fn multiply<F: Real>(&self, mask_offset: usize, values: &mut [F]) {
        let scale = F::from_f64(f64::from(self.scale));
        for (x, &byte) in values.iter_mut().zip(&self.bytes[mask_offset..]) {
            *x *= if u16::from(byte) < self.threshold { F::ZERO } else { scale };
        }
    }
}

impl CustomOp1 for DropoutMask {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.apply_to(tensors::storage_slice(x, layout)?)), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, d_out: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let dx = with_slice(&d_out.contiguous()?, |d_out| Ok(self.apply_to(d_out)))?;
        Ok(Some(tensors::from_vec(dx, x.shape().clone())?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;

    #[test]
    fn the_gradient_is_the_mask_and_masks_are_reproducible() {
        let x = Var::ones((1, 10_000), DType::F32, &Device::Cpu).unwrap();
        let mask = |utterance| {
            let out = TrainingPass::new(7, 1, &[utterance]).apply(&x, 0.25).unwrap();
            let grads = out.sum_all().unwrap().backward().unwrap();
            let [out, grad] = [&out, grads.get(&x).unwrap()].map(|x| x.to_vec2::<f32>().unwrap().concat());
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
    fn the_mask_of_an_utterance_does_not_depend_on_its_batch() {
        let tensor = |rows| Tensor::ones((rows, 50, 4), DType::F32, &Device::Cpu).unwrap();
        let masks = |utterances: &[u64]| {
            let mut pass = TrainingPass::new(7, 1, utterances);
            let [first, second] = [0.5, 0.25]
                .map(|rate| pass.apply(&tensor(utterances.len()), rate).unwrap().to_vec3::<f32>().unwrap());
            (first, second, pass.seed())
        };
        let (all, all_second, seed) = masks(&[3, 9, 4]);
        let (single, single_second, single_seed) = masks(&[9]);
        assert!(single[0] == all[1] && single_second[0] == all_second[1] && seed == single_seed);
        assert!(all[0] != all[1] && all[0] != all[2]);
        // Shorter rows have the beginning of the mask of longer rows, as padding is at the end.
        let short = Tensor::ones((1, 20, 4), DType::F32, &Device::Cpu).unwrap();
        let short = TrainingPass::new(7, 1, &[9]).apply(&short, 0.5).unwrap().to_vec3::<f32>().unwrap();
        assert_eq!(short[0], all[1][..20]);
        let ragged = Ragged::new(&[20, 0, 50]);
        let rows = Tensor::ones((70, 4), DType::F32, &Device::Cpu).unwrap();
        let rows = TrainingPass::new(7, 1, &[9, 2, 4]).apply_ragged(&rows, &ragged, 0.5).unwrap();
        assert_eq!(rows.to_vec2::<f32>().unwrap(), [&all[1][..20], &all[2]].concat());
        let error = TrainingPass::new(7, 1, &[1, 2]).apply(&tensor(3), 0.5).unwrap_err().to_string();
        assert!(error.contains("a first axis of 2 utterances") && error.contains('3'), "{error}");
    }

    #[test]
    fn seeds_depend_on_the_number_of_earlier_uses() {
        let mut pass = TrainingPass::new(7, 1, &[3]);
        let [a, b] = [pass.seed(), pass.seed()];
        let mut pass = TrainingPass::new(7, 1, &[3]);
        pass.apply(&Tensor::zeros((1, 4), DType::F32, &Device::Cpu).unwrap(), 0.5).unwrap();
        assert!(pass.seed() == b && a != b && TrainingPass::new(7, 2, &[3]).seed() != a);
    }

    #[test]
    fn a_rate_of_0_does_not_change_the_tensor() {
        let x = Tensor::arange(0f32, 5.0, &Device::Cpu).unwrap();
        let out = TrainingPass::new(1, 1, &[0, 1, 2, 3, 4]).apply(&x, 0.0).unwrap();
        assert_eq!(out.to_vec1::<f32>().unwrap(), x.to_vec1::<f32>().unwrap());
    }
}
