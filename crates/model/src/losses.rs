//! The losses of a batch, as the model's configuration wants them.
use candle_core::Tensor;
use lattice::candle::Gnat;
use rnnt_loss::{
    Dropout, MemoryPlan, Targets,
    candle::{HeadTensors, HiddenTensors, JointTensors, LossSession, LossSum, PrunedTensors, SimpleTensors},
};

use crate::heads::{JointLayers, LatticeBatch, OutputModel, TransducerNetwork};
use crate::model::{Model, Network};
use crate::training_pass::TrainingPass;
use crate::{Error, Linear, ModelConfig, Parameters, Result};

/// The losses of a run: their options, and buffers that stay from step to step and share `loss.budget`.
#[derive(Debug, Clone)]
pub struct LossSessions {
    /// None for a recognition lattice, which keeps its own.
    transducer: Option<LossSession>,
    ctc: LossSession,
}

impl LossSessions {
    /// Sessions without buffers yet.
    ///
    /// # Errors
    /// [`crate::Error::Loss`] for options that the loss refuses; [`ModelConfig::check`] finds them first.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        let transducer = match config.loss.kind.gnat() {
            Some(_) => None,
            None => Some(LossSession::new(&config.loss_options()?)?),
        };
        let ctc = match &transducer {
            Some(transducer) => transducer.with_shared_buffers(&config.ctc_options())?,
            None => LossSession::new(&config.ctc_options())?,
        };
        Ok(Self { transducer, ctc })
    }
}

/// Utterances of a padded batch: input rows and labels.
#[derive(Debug, Clone, Copy)]
pub struct LabeledRows<'a> {
    /// Input rows `[B, T, D]`.
    pub rows: &'a Tensor,
    /// Rows of each utterance.
    pub lengths: &'a [usize],
    /// Labels of each utterance.
    pub labels: &'a [Vec<u32>],
}

/// Losses of a batch.
#[derive(Debug)]
pub struct Losses {
    /// Loss of each utterance, *B*, +inf without a path; in pruned training that of the joint network.
    pub transducer: Vec<f64>,
    /// That of the trivial joiner in pruned training, *B*.
    pub simple: Option<Vec<f64>>,
    /// The batch's share of the mean over all utterances of the step, a scalar (`f64`) and part of the graph; an utterance without a
    /// path adds nothing. In pruned training the sum of both losses in their proportions at that step.
    pub mean: Tensor,
    /// CTC loss of the encoder, if the model has that head: each value, *B*, and the share of the mean.
    pub ctc: Option<(Vec<f64>, Tensor)>,
}

impl Model {
    /// Fails if the loss cannot keep to its budget with an utterance of so many input rows and labels. It is asked for less than what a
    /// step takes: a first pass and the CTC head, and what is listed of the other utterances of a batch, come on top.
    ///
    /// # Errors
    /// [`Error::LossBudget`], which names `utterance`.
    pub fn check_budget(&self, utterance: &str, rows: usize, labels: usize) -> Result<()> {
        let config = self.config();
        let shape = [1, rows.div_ceil(config.encoder.reduction()), labels];
        let plan = match self.label_side {
            OutputModel::Lattice(_) => self.lattice_plan(shape).map(drop),
            OutputModel::TransducerNetwork(_) => {
                let (options, masked) = (config.loss_options()?, config.joint.dropout > 0.0);
                MemoryPlan::for_shape::<f32>(shape, self.width(), self.classes(), &options, masked)
                    .map(drop)
                    .map_err(Error::from)
            }
        };
        match plan {
            Err(
                Error::Loss(rnnt_loss::Error::Budget { smallest, found })
                | Error::Lattice(lattice::Error::Budget { smallest, found }),
            ) => Err(Error::LossBudget { smallest, found, utterances: vec![utterance.to_owned()] }),
            // What else may be wrong is said where it is done.
            _ => Ok(()),
        }
    }

    /// How a step of training cuts its recognition lattice for some utterances of so many encoder frames and labels; none for a
    /// transducer.
    ///
    /// # Errors
    /// Those of [`Gnat::plan_for_shape`](lattice::candle::Gnat::plan_for_shape): a budget that is too small.
    pub fn lattice_plan(&self, [batch, frames, labels]: [usize; 3]) -> Result<Option<lattice::Plan>> {
        let Some(gnat) = self.lattice() else { return Ok(None) };
        Ok(Some(gnat.plan_for_shape([batch, frames, labels])?))
    }

    /// [`Self::lattice_plan`] of a model that is not allocated.
    ///
    /// # Errors
    /// As there.
    pub fn lattice_plan_for(
        config: &ModelConfig,
        labels: usize,
        shape: [usize; 3],
    ) -> Result<Option<lattice::Plan>> {
        let (_, parts) = Parameters::plan(|vb| Network::new(config, labels, &vb))?;
        let plan = |gnat: &Gnat| Ok(gnat.plan_for_shape(shape)?);
        parts.label_side.lattice().map(plan).transpose()
    }

    /// Losses of a batch that is all or a part of the `of` utterances of an optimiser step. With masks, dropout is on.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] or [`crate::Error::Loss`] if the batch does not fit.
    pub fn losses(
        &self,
        sessions: &LossSessions,
        batch: LabeledRows,
        of: usize,
        step: u64,
        mut masks: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        let LabeledRows { rows, lengths, labels } = batch;
        let (encoded, lengths) = self.encoder.forward(rows, lengths, masks.as_deref_mut())?;
        let shares = vec![1.0 / of as f64; labels.len()];
        let ctc = match &self.ctc {
            Some(ctc) => {
                let plain = Targets::new(self.blank(), lengths.clone(), labels.to_vec())?;
                let rows = HiddenTensors { hidden: &encoded, head: head(ctc) };
                let LossSum { sum, losses, .. } = sessions.ctc.sum(rows, &plain, &shares)?;
                Some((losses, sum))
            }
            None => None,
        };
        let TransducerNetwork { predictor, heads } = match &self.label_side {
            OutputModel::TransducerNetwork(transducer) => transducer,
            OutputModel::Lattice(gnat) => {
                let batch = LatticeBatch::new(&lengths, labels)?;
                let found = gnat.loss_sum(batch.with(&encoded), &shares)?;
                return Ok(Losses { transducer: found.losses, simple: None, mean: found.sum, ctc });
            }
        };
        let session = sessions.transducer.as_ref();
        let session =
            session.ok_or_else(|| Error::shape("sessions", "those of a transducer's recipe", "none"))?;
        let predicted = predictor.forward(labels, masks.as_deref_mut())?;
        let (frames, rows) = (heads.encoder.apply(&encoded)?, heads.predictor.apply(&predicted)?);
        let mut targets = self.targets(lengths, labels)?;
        let JointLayers { trivial, .. } = heads;
        let rate = f64::from(self.config().joint.dropout);
        let dropout = match masks.filter(|_| rate > 0.0) {
            Some(masks) => {
                targets = targets.with_ids(masks.utterances().to_vec())?;
                Some(Dropout { rate, seed: masks.seed() })
            }
            None => None,
        };
        let joint = JointTensors {
            encoded: &frames,
            predicted: &rows,
            head: head(&heads.head),
            durations: heads.durations.as_ref().map(head),
            dropout,
        };
        let LossSum { sum: mean, losses: transducer, first_pass, .. } = match trivial {
            None => session.sum(joint, &targets, &shares)?,
            Some((am, lm)) => {
                let simple =
                    SimpleTensors { frames: &encoded, labels: &predicted, am: head(am), lm: head(lm) };
                let pruned = PrunedTensors { simple, joint, scales: self.config().scales(step) };
                session.sum(pruned, &targets, &shares)?
            }
        };
        Ok(Losses { transducer, simple: first_pass.map(|found| found.losses), mean, ctc })
    }
}

fn head(layer: &Linear) -> HeadTensors<'_> {
    HeadTensors { weight: layer.weight(), bias: Some(layer.bias()) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::Device;

    use super::*;

    /// Losses of one utterance under the recipe of the digits without any dropout but the joint's.
    fn losses(kind: &str, dropout: f32, masks: Option<&mut TrainingPass>) -> Vec<f64> {
        let text = std::fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../recipes/{kind}.toml")),
        );
        let text = text.unwrap().replace("dropout = 0.1", "dropout = 0.0");
        let mut config = ModelConfig::from_recipe(&text, Path::new(kind)).unwrap();
        config.joint.dropout = dropout;
        let model = Model::new(&config, 10).unwrap();
        let x = Tensor::full(0.3f32, (1, 12, config.input.width()), &Device::Cpu).unwrap();
        let sessions = LossSessions::new(&config).unwrap();
        let batch = LabeledRows { rows: &x, lengths: &[12], labels: &[vec![3, 1, 4]] };
        model.losses(&sessions, batch, 1, 0, masks).unwrap().transducer
    }

    #[test]
    fn dropout_of_the_joint_has_the_name_of_its_utterance() {
        for kind in ["digits", "digits-tdt", "digits-pruned"] {
            let dropped = |utterance| losses(kind, 0.5, Some(&mut TrainingPass::new(7, 1, &[utterance])));
            assert_eq!(dropped(3), dropped(3));
            assert_ne!(dropped(3), dropped(4));
            let none = losses(kind, 0.5, None);
            assert_ne!(dropped(3), none);
            assert_eq!(losses(kind, 0.0, Some(&mut TrainingPass::new(7, 1, &[3]))), none);
        }
    }
}
