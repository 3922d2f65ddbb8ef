//! Golden test of losses and gradients of NeMo's models.
use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use model::config::LossKind;
use model::encoders::ModuleEncoder;
use model::{LabeledRows, LossSessions, Losses, Model};

use super::case::NemoCase;
use super::check::NemoCheck;
use super::model::{NemoModel, TensorPart, candle_failure};
use super::network::to_f64;
use crate::case::StoredTensor;
use crate::error::RunError;
use crate::mlperf::Tolerance;

const LOSS_TOLERANCE: Tolerance = Tolerance::Relative(1e-5);
/// Tolerance relative to the largest entry of a tensor.
///
/// The entry counts as at least [`MIN_RELATIVE_MAGNITUDE`] times the largest of all gradients.
const GRADIENT_TOLERANCE: f64 = 1e-4;
const MIN_RELATIVE_MAGNITUDE: f64 = 1e-3;
/// As [`GRADIENT_TOLERANCE`], for gradients in `f64`, which are stored in `f32`.
const F64_GRADIENT_TOLERANCE: f64 = 1e-6;

/// Compares the losses of a case, and all stored gradients.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    let (nemo, case) = (NemoModel::read(check)?, NemoCase::read(check)?);
    let gradients = check.tensors("grads.safetensors")?;
    let run = GradientRun { nemo: &nemo, case: &case };
    run.compare_loss(check, nemo.config.loss.kind.clone(), "")?;
    run.compare_gradients(check, nemo.config.loss.kind.clone(), "grad.", &gradients)?;
    for name in case.tensors.keys() {
        let sigma = name.strip_prefix("loss.transducer_sigma").and_then(|rest| rest.strip_suffix(".f64"));
        let Some(sigma) = sigma else { continue };
        let LossKind::Tdt { durations, .. } = &nemo.config.loss.kind else {
            return Err(RunError::Failed(format!("{name}: expected a loss with durations")));
        };
        let value = sigma.parse().map_err(|_| RunError::Failed(format!("{name}: expected a number")))?;
        let kind = LossKind::Tdt { durations: durations.clone(), sigma: value, omega: 0.0 };
        run.compare_loss(check, kind.clone(), &format!("_sigma{sigma}"))?;
        run.compare_gradients(check, kind, &format!("grad_sigma{sigma}."), &gradients)?;
    }
    run.compare_encoder_gradients_in_f64(check, &gradients)
}

/// A case and its model.
struct GradientRun<'a> {
    nemo: &'a NemoModel,
    case: &'a NemoCase,
}

/// Gradients by name.
type GradientTensors = BTreeMap<String, StoredTensor>;

impl GradientRun<'_> {
    /// Computes the losses of a model on some rows.
    fn losses(&self, model: &Model, rows: &Tensor, lengths: &[usize]) -> Result<Losses, RunError> {
        let sessions = LossSessions::new(model.config())?;
        let batch = LabeledRows { rows, lengths, labels: &self.case.labels };
        Ok(model.losses(&sessions, batch, lengths.len(), 0, None)?)
    }

    /// Returns the total loss, with that of the CTC head.
    fn total(&self, losses: &Losses) -> Result<Tensor, RunError> {
        let weight = self.nemo.ctc_weight();
        let total = match &losses.ctc {
            Some((_, ctc)) => (&losses.mean * (1.0 - weight)).and_then(|mean| mean + (ctc * weight)?),
            None => Ok(losses.mean.clone()),
        };
        total.map_err(candle_failure)
    }

    /// Returns the features in `f32`.
    fn features(&self) -> Result<Tensor, RunError> {
        self.case.exact_features.to_dtype(DType::F32).map_err(candle_failure)
    }

    /// Compares the losses of each utterance.
    fn compare_loss(&self, check: &mut NemoCheck, kind: LossKind, suffix: &str) -> Result<(), RunError> {
        let model = self.nemo.model(kind)?;
        let losses = self.losses(&model, &self.features()?, &self.case.feature_lengths)?;
        let name = match self.nemo.is_ctc_only() {
            true => "loss.ctc.f64".to_owned(),
            false => format!("loss.transducer{suffix}.f64"),
        };
        check.compare(&name, &losses.transducer, &self.case.tensor(&name)?.values, LOSS_TOLERANCE);
        if !suffix.is_empty() {
            return Ok(());
        }
        if let Some((ctc, _)) = &losses.ctc {
            check.compare("loss.ctc.f64", ctc, &self.case.tensor("loss.ctc.f64")?.values, LOSS_TOLERANCE);
        }
        let total = to_f64(&self.total(&losses)?)?;
        check.compare("loss.total.f64", &total, &self.case.tensor("loss.total.f64")?.values, LOSS_TOLERANCE);
        Ok(())
    }

    /// Compares the gradients of encoder rows and of all parameters.
    fn compare_gradients(
        &self,
        check: &mut NemoCheck,
        kind: LossKind,
        prefix: &str,
        gradients: &GradientTensors,
    ) -> Result<(), RunError> {
        let model = self.nemo.model(kind.clone())?;
        let losses = self.losses(&model, &self.features()?, &self.case.feature_lengths)?;
        let computed = self.total(&losses)?.backward().map_err(candle_failure)?;
        let largest = largest_magnitude(gradients.values());
        let mut compared = 0;
        for (stored_name, stored) in gradients {
            let Some(name) = stored_name.strip_prefix(prefix) else { continue };
            compared += 1;
            let computed = match name {
                "enc" => self.row_gradient(kind.clone())?,
                name => self.gradient(name, |parameter| model.parameters().get(parameter), &computed)?,
            };
            let tolerance =
                GRADIENT_TOLERANCE * largest_magnitude([stored]).max(MIN_RELATIVE_MAGNITUDE * largest);
            check.compare(stored_name, &computed, &stored.values, Tolerance::Absolute(tolerance));
        }
        if compared == 0 {
            return Err(RunError::Failed(format!("grads.safetensors: expected names with {prefix}")));
        }
        Ok(())
    }

    /// Computes the gradient of encoder rows `[B, T', d]`, which are 0 in padding.
    ///
    /// Encoder rows of the case are the input of a model without an encoder.
    fn row_gradient(&self, kind: LossKind) -> Result<Vec<f64>, RunError> {
        let mut config = self.nemo.config.clone();
        config.loss.kind = kind;
        let width = self.nemo.encoder_config().width;
        let model = Model::with_encoder(&config, self.nemo.labels, |_| {
            let identity = candle_nn::func(|rows: &Tensor| Ok(rows.clone()));
            Ok(Arc::new(ModuleEncoder::new(identity, width, 1)?))
        })?;
        self.nemo.set_weights(&model)?;
        let stored = self.case.tensor("enc")?;
        let rows: Vec<f32> = stored.values.iter().map(|&value| value as f32).collect();
        let rows = Tensor::from_vec(rows, &stored.shape[..], &Device::Cpu)
            .and_then(|rows| Var::from_tensor(&rows))
            .map_err(candle_failure)?;
        let losses = self.losses(&model, &rows, &self.case.row_counts)?;
        let gradients = self.total(&losses)?.backward().map_err(candle_failure)?;
        to_f64(gradients.get(&rows).ok_or_else(|| RunError::Failed("no gradient of rows".into()))?)
    }

    /// Returns the gradient of a NeMo tensor, from those of its parts.
    fn gradient<'b>(
        &self,
        name: &str,
        find_parameter: impl Fn(&str) -> Option<&'b Var>,
        gradients: &GradStore,
    ) -> Result<Vec<f64>, RunError> {
        let mut values = Vec::new();
        for part in self.nemo.parts(name)? {
            match part {
                TensorPart::Zeros(count) => values.extend(std::iter::repeat_n(0.0, count)),
                TensorPart::Parameter(parameter) => {
                    let gradient = find_parameter(&parameter).and_then(|variable| gradients.get(variable));
                    let missing = || RunError::Failed(format!("{parameter}: no gradient"));
                    values.extend(to_f64(gradient.ok_or_else(missing)?)?);
                }
            }
        }
        Ok(values)
    }

    /// Compares the gradients of encoder weights.
    ///
    /// They are computed from the stored gradient of encoder rows.
    fn compare_encoder_gradients_in_f64(
        &self,
        check: &mut NemoCheck,
        gradients: &GradientTensors,
    ) -> Result<(), RunError> {
        let names: Vec<&String> = gradients.keys().filter(|name| name.starts_with("grad.encoder.")).collect();
        if names.is_empty() {
            return Ok(());
        }
        let variables = self.nemo.variables(DType::F64)?;
        let encoder = self.nemo.encoder(&self.nemo.encoder_config(), &variables)?;
        let (rows, _) = encoder.forward(&self.case.exact_features, &self.case.feature_lengths, None)?;
        let d_rows = gradients.get("grad.enc");
        let d_rows = d_rows.ok_or_else(|| RunError::Failed("grads.safetensors: expected grad.enc".into()))?;
        let computed = Tensor::from_slice(&d_rows.values, &d_rows.shape[..], &Device::Cpu)
            // NeMo has rows of padding after the longest utterance.
            .and_then(|d_rows| d_rows.narrow(1, 0, rows.dim(1)?)?.contiguous())
            .and_then(|d_rows| (rows * d_rows)?.sum_all()?.backward())
            .map_err(candle_failure)?;
        let largest = largest_magnitude(gradients.values());
        for stored_name in names {
            let stored = &gradients[stored_name];
            let name = stored_name.trim_start_matches("grad.");
            let computed = self.gradient(name, |parameter| variables.get(parameter), &computed)?;
            let tolerance =
                F64_GRADIENT_TOLERANCE * largest_magnitude([stored]).max(MIN_RELATIVE_MAGNITUDE * largest);
            check.compare(
                &format!("{stored_name} in f64"),
                &computed,
                &stored.values,
                Tolerance::Absolute(tolerance),
            );
        }
        Ok(())
    }
}

/// Returns the largest absolute value of some tensors.
fn largest_magnitude<'a>(tensors: impl IntoIterator<Item = &'a StoredTensor>) -> f64 {
    tensors.into_iter().flat_map(|tensor| &tensor.values).fold(0.0, |max, value| value.abs().max(max))
}
