//! The training loss of a model: transducer, pruned, TDT, CTC or lattice, and auxiliary CTC.
use candle_core::Tensor;
use lattice::candle::Gnat;
use rnnt_loss::{
    Dropout, MemoryPlan, Targets,
    candle::{HeadTensors, HiddenTensors, JointTensors, LossSession, LossSum, PrunedTensors, SimpleTensors},
};

use crate::config::LossKind;
use crate::model::{Model, Network};
use crate::output::{JointLayers, LatticeBatch, OutputModel, TransducerNetwork};
use crate::{Error, Linear, ModelConfig, Parameters, Result};
use layers::training_pass::TrainingPass;

/// The loss sessions of a run: options, and buffers within the memory budget `loss.budget`.
#[derive(Debug, Clone)]
pub struct LossSessions {
    /// None for a CTC model and for a recognition lattice.
    ///
    /// A lattice has its own session.
    transducer: Option<LossSession>,
    /// The loss of a CTC model, or the auxiliary loss.
    ctc: LossSession,
}

impl LossSessions {
    /// Creates sessions without buffers.
    ///
    /// # Errors
    /// [`crate::Error::Loss`] for options that the loss rejects, which [`ModelConfig::check`]
    /// reports first.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        let transducer = match config.loss.kind {
            LossKind::Gnat(_) => None,
            LossKind::Ctc {} => {
                return Ok(Self { transducer: None, ctc: LossSession::new(&config.loss_options()?)? });
            }
            _ => Some(LossSession::new(&config.loss_options()?)?),
        };
        let ctc = match &transducer {
            Some(transducer) => transducer.with_shared_buffers(&config.ctc_options())?,
            None => LossSession::new(&config.ctc_options())?,
        };
        Ok(Self { transducer, ctc })
    }
}

/// Input rows and labels of a padded batch.
///
/// B: utterances; T: rows of the longest one; D: width of an input row.
#[derive(Debug, Clone, Copy)]
pub struct LabeledRows<'a> {
    /// Input rows `[B, T, D]`.
    pub rows: &'a Tensor,
    /// Rows of each utterance.
    pub lengths: &'a [usize],
    /// Labels of each utterance.
    pub labels: &'a [Vec<u32>],
}

/// The losses of a batch.
#[derive(Debug)]
pub struct Losses {
    /// Loss of each utterance, *B*; +inf for an utterance without a path.
    ///
    /// In pruned training it is the loss of the joint network; in a lattice model that of the
    /// lattice; in a CTC model the CTC loss.
    pub transducer: Vec<f64>,
    /// Loss of each utterance by the simple joiner, *B*, in pruned training.
    pub simple: Option<Vec<f64>>,
    /// The batch's part of the mean over all utterances of the step.
    ///
    /// A scalar (`f64`) in the graph; an utterance without a path adds nothing. In pruned training
    /// it is the sum of both losses with their scales at that step.
    pub mean: Tensor,
    /// Auxiliary CTC loss of the encoder, if the model has its head.
    ///
    /// The loss of each utterance, *B*, and the batch's part of the mean, as in `mean`.
    pub ctc: Option<(Vec<f64>, Tensor)>,
}

impl Model {
    /// Checks that the budget of the loss allows an utterance.
    ///
    /// The check is a lower bound of a step's memory: it does not include the first pass of pruned
    /// training, the CTC head, and the other utterances of a batch.
    ///
    /// # Errors
    /// [`Error::LossBudget`] with `utterance`.
    pub fn check_budget(&self, utterance: &str, rows: usize, labels: usize) -> Result<()> {
        let config = self.config();
        let shape = [1, config.encoder.output_rows(rows), labels];
        let plan = match self.output {
            OutputModel::Lattice(_) => self.lattice_plan(shape).map(drop),
            OutputModel::Transducer(_) | OutputModel::Ctc(_) => {
                let options = config.loss_options()?;
                let hidden = if self.is_ctc() { self.encoder.width() } else { self.width() };
                let has_dropout = config.joint.as_ref().is_some_and(|joint| joint.dropout > 0.0);
                MemoryPlan::for_shape::<f32>(shape, hidden, self.classes(), &options, has_dropout)
                    .map(drop)
                    .map_err(Error::from)
            }
        };
        match plan {
            Err(
                Error::Loss(rnnt_loss::Error::Budget { smallest, found })
                | Error::Lattice(lattice::Error::Budget { smallest, found }),
            ) => Err(Error::LossBudget { smallest, found, utterances: vec![utterance.to_owned()] }),
            // Other errors are reported by the loss itself.
            _ => Ok(()),
        }
    }

    /// Plans the recognition lattice of a batch; none for a transducer.
    ///
    /// # Errors
    /// Those of [`Gnat::plan_for_shape`](lattice::candle::Gnat::plan_for_shape): a budget that is
    /// too small.
    pub fn lattice_plan(&self, [batch, frames, labels]: [usize; 3]) -> Result<Option<lattice::Plan>> {
        let Some(gnat) = self.lattice() else { return Ok(None) };
        Ok(Some(gnat.plan_for_shape([batch, frames, labels])?))
    }

    /// Plans the recognition lattice of a batch, without allocating a model.
    ///
    /// # Errors
    /// Those of [`Self::lattice_plan`].
    pub fn lattice_plan_for(
        config: &ModelConfig,
        labels: usize,
        shape: [usize; 3],
    ) -> Result<Option<lattice::Plan>> {
        let (_, network) = Parameters::plan(|vb| Network::new(config, labels, &vb))?;
        let plan = |gnat: &Gnat| Ok(gnat.plan_for_shape(shape)?);
        network.output.lattice().map(plan).transpose()
    }

    /// Computes the losses of a batch.
    ///
    /// The batch is a part of the `step_utterances` utterances of an optimizer step, or all of
    /// them. `step` determines the scales of pruned training. With a training pass, dropout is on.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Loss`] if the batch does not match the model.
    pub fn losses(
        &self,
        sessions: &LossSessions,
        batch: LabeledRows,
        step_utterances: usize,
        step: u64,
        mut pass: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        let LabeledRows { rows, lengths, labels } = batch;
        let (encoded, lengths) = self.encoder.forward(rows, lengths, pass.as_deref_mut())?;
        let encoded = LabeledRows { rows: &encoded, lengths: &lengths, labels };
        self.losses_from_encoder_rows(sessions, encoded, step_utterances, step, pass)
    }

    /// Computes the losses of a batch as [`Self::losses`], from encoder rows.
    ///
    /// The encoder does not run. `batch.rows` are encoder rows `[B, T', W]` and `batch.lengths`
    /// their numbers, as [`Encoder::forward`](crate::encoders::Encoder::forward) returns them.
    ///
    /// # Errors
    /// Those of [`Self::losses`].
    pub fn losses_from_encoder_rows(
        &self,
        sessions: &LossSessions,
        batch: LabeledRows,
        step_utterances: usize,
        step: u64,
        mut pass: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        let LabeledRows { rows: encoded, lengths, labels } = batch;
        let (width, found) = (self.encoder.width(), encoded.dims().last().copied().unwrap_or(0));
        if found != width {
            return Err(Error::shape("rows", format!("encoder rows of width {width}"), found.to_string()));
        }
        let lengths = lengths.to_vec();
        // The loss of a CTC head.
        let weights = vec![1.0 / step_utterances as f64; labels.len()];
        let ctc = match self.ctc_head() {
            Some(ctc) => {
                let ctc_targets = Targets::new(self.blank(), lengths.clone(), labels.to_vec())?;
                let ctc_input = HiddenTensors { hidden: encoded, head: head_tensors(ctc) };
                let LossSum { sum, losses, .. } = sessions.ctc.sum(ctc_input, &ctc_targets, &weights)?;
                Some((losses, sum))
            }
            None => None,
        };

        // CTC models have no other loss; a recognition lattice has its own.
        let TransducerNetwork { predictor, layers } = match &self.output {
            OutputModel::Transducer(transducer) => transducer,
            OutputModel::Ctc(_) => {
                let (losses, mean) = ctc.ok_or_else(|| Error::shape("model", "a CTC head", "none"))?;
                return Ok(Losses { transducer: losses, simple: None, mean, ctc: None });
            }
            OutputModel::Lattice(gnat) => {
                let batch = LatticeBatch::new(&lengths, labels)?;
                let loss = gnat.loss_sum(batch.with_frames(encoded), &weights)?;
                return Ok(Losses { transducer: loss.losses, simple: None, mean: loss.sum, ctc });
            }
        };

        // Predictor, projections to the joint width, dropout.
        let session = sessions.transducer.as_ref();
        let session = session.ok_or_else(|| Error::shape("sessions", "those of a transducer", "none"))?;
        let predicted = predictor.forward(labels, pass.as_deref_mut())?;
        let (joint_frames, joint_labels) =
            (layers.encoder.apply(encoded)?, layers.predictor.apply(&predicted)?);
        let mut targets = self.targets(lengths, labels)?;
        let JointLayers { simple, .. } = layers;
        let rate = f64::from(self.config().joint_network()?.dropout);
        let dropout = match pass.filter(|_| rate > 0.0) {
            Some(pass) => {
                targets = targets.with_ids(pass.utterances().to_vec())?;
                Some(Dropout { rate, seed: pass.seed() })
            }
            None => None,
        };

        // The transducer loss, with the first pass of pruned training.
        let joint = JointTensors {
            encoded: &joint_frames,
            predicted: &joint_labels,
            head: head_tensors(&layers.head),
            durations: layers.durations.as_ref().map(head_tensors),
            dropout,
        };
        let LossSum { sum: mean, losses: transducer, first_pass, .. } = match simple {
            None => session.sum(joint, &targets, &weights)?,
            // The simple joiner's layers for encoder rows (am) and for predictor rows (lm).
            Some((am, lm)) => {
                let simple = SimpleTensors {
                    frames: encoded,
                    labels: &predicted,
                    am: head_tensors(am),
                    lm: head_tensors(lm),
                };
                let pruned = PrunedTensors { simple, joint, scales: self.config().pass_scales(step) };
                session.sum(pruned, &targets, &weights)?
            }
        };
        Ok(Losses { transducer, simple: first_pass.map(|first_pass| first_pass.losses), mean, ctc })
    }
}

/// Returns weight and bias of a layer for the loss.
fn head_tensors(layer: &Linear) -> HeadTensors<'_> {
    HeadTensors { weight: layer.weight(), bias: Some(layer.bias()) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::Device;

    use super::*;

    /// Computes the loss of one utterance with a recipe of the digits.
    ///
    /// The only dropout is that of the joint network.
    fn digits_loss(recipe: &str, dropout: f32, pass: Option<&mut TrainingPass>) -> Vec<f64> {
        let text = std::fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../recipes/{recipe}.toml")),
        );
        let text = text.unwrap().replace("dropout = 0.1", "dropout = 0.0");
        let mut config = ModelConfig::from_recipe(&text, Path::new(recipe)).unwrap();
        config.joint.as_mut().unwrap().dropout = dropout;
        let model = Model::new(&config, 10).unwrap();
        let x = Tensor::full(0.3f32, (1, 12, config.input.width()), &Device::Cpu).unwrap();
        let sessions = LossSessions::new(&config).unwrap();
        let batch = LabeledRows { rows: &x, lengths: &[12], labels: &[vec![3, 1, 4]] };
        model.losses(&sessions, batch, 1, 0, pass).unwrap().transducer
    }

    #[test]
    fn dropout_of_the_joint_network_is_a_function_of_the_utterance() {
        for recipe in ["digits", "digits-tdt", "digits-pruned"] {
            let with_dropout =
                |utterance| digits_loss(recipe, 0.5, Some(&mut TrainingPass::new(7, 1, &[utterance])));
            assert_eq!(with_dropout(3), with_dropout(3));
            assert_ne!(with_dropout(3), with_dropout(4));
            let without_pass = digits_loss(recipe, 0.5, None);
            assert_ne!(with_dropout(3), without_pass);
            assert_eq!(digits_loss(recipe, 0.0, Some(&mut TrainingPass::new(7, 1, &[3]))), without_pass);
        }
    }
}
