//! The losses of a batch, as the recipe wants them.
use candle_core::Tensor;
use rnnt_loss::{
    Targets,
    candle::{
        LossSum, PrunedSum, TrivialJoiner, ctc_loss_sum, pruned_loss_sum, tdt_loss_sum, transducer_loss_sum,
    },
};

use crate::dropout::Masks;
use crate::model::{Heads, Model};
use crate::{Linear, Result};

/// Losses of a batch.
#[derive(Debug)]
pub struct Losses {
    /// Transducer loss of each utterance, *B*, +inf without a path; in pruned training that of the joint network.
    pub transducer: Vec<f64>,
    /// That of the trivial joiner in pruned training, *B*.
    pub simple: Option<Vec<f64>>,
    /// Mean over the batch of what is to be minimised, a scalar (`f64`) and part of the graph; an utterance without a path adds
    /// nothing. In pruned training the sum of both losses in their proportions at that step.
    pub mean: Tensor,
    /// CTC loss of the encoder, if the model has that head: each value, *B*, and the mean.
    pub ctc: Option<(Vec<f64>, Tensor)>,
}

impl Model {
    /// Losses of a padded batch of utterances with these lengths and labels at an optimiser step. With masks, dropout is on.
    ///
    /// # Shapes
    /// `x [B, T, D]`, D = mels · stack; `lengths` has B entries of at most T; `labels` has B sequences.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Loss`] if the input does not fit.
    pub fn losses(
        &self,
        x: &Tensor,
        lengths: &[usize],
        labels: &[Vec<u32>],
        step: u64,
        mut masks: Option<&mut Masks>,
    ) -> Result<Losses> {
        let (encoded, lengths) = self.encoder.forward(x, lengths, masks.as_deref_mut())?;
        let predicted = self.predictor.forward(labels, masks.as_deref_mut())?;
        let Heads { head, durations, trivial, ctc, .. } = &self.heads;
        let mut frames = self.heads.encoder.apply(&encoded)?;
        let mut rows = self.heads.predictor.apply(&predicted)?;
        if let Some(masks) = masks {
            let rate = self.recipe.joint.dropout;
            frames = masks.apply(&frames, rate)?;
            rows = masks.apply(&rows, rate)?;
        }
        let targets = self.targets(lengths, labels)?;
        let batch = targets.batch();
        let shares = vec![1.0 / batch as f64; batch];
        let ctc = match ctc {
            Some(head) => {
                let plain = Targets::new(self.blank(), lengths_of(&targets), labels.to_vec())?;
                let options = self.recipe.ctc_options();
                let out = ctc_loss_sum(&encoded, head.weight(), head.bias(), &plain, &options, &shares)?;
                Some((out.losses, out.sum))
            }
            None => None,
        };
        let (head, options) = (tensors(head), self.recipe.loss_options()?);
        let mut simple = None;
        let (transducer, mean) = if let Some(durations) = durations {
            let durations = tensors(durations);
            let LossSum { sum, losses, .. } =
                tdt_loss_sum(&frames, &rows, head, durations, &targets, &options, &shares)?;
            (losses, sum)
        } else if let (Some((am, lm)), Some(pruning)) = (trivial, self.recipe.pruning(step)) {
            let (am, lm) = (tensors(am), tensors(lm));
            let joiner = TrivialJoiner { frames: &encoded, labels: &predicted, am, lm };
            let PrunedSum { sum, simple: first, pruned, .. } =
                pruned_loss_sum(&joiner, &frames, &rows, head, &targets, &options, &pruning, &shares)?;
            simple = Some(first);
            (pruned, sum)
        } else {
            let LossSum { sum, losses, .. } =
                transducer_loss_sum(&frames, &rows, head.0, head.1, &targets, &options, &shares)?;
            (losses, sum)
        };
        Ok(Losses { transducer, simple, mean, ctc })
    }
}

fn tensors(layer: &Linear) -> (&Tensor, &Tensor) {
    (layer.weight(), layer.bias())
}

fn lengths_of(targets: &Targets) -> Vec<usize> {
    (0..targets.batch()).map(|b| targets.frames(b)).collect()
}
