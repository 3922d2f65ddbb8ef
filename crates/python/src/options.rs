//! Options of a loss, as JSON text: an operation of torch takes numbers and text only.
use pyo3::{PyResult, exceptions::PyValueError};
use rnnt_loss::{Activation, Loss, Options, Precision, TokenNormalization, Topology};
use serde::Deserialize;

/// Options of a loss, with the names of `panda_rnnt.LossOptions`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossOptions {
    loss: String,
    /// Class of the blank.
    pub blank: u32,
    /// Classes of the big blanks, one for each duration.
    pub big_blanks: Vec<u32>,
    durations: Vec<usize>,
    activation: String,
    sigma: f64,
    omega: f64,
    fastemit: f64,
    delay_penalty: f64,
    label_smoothing: f64,
    z_loss: f64,
    clamp: Option<f64>,
    skip: f64,
    budget: Option<usize>,
    precision: String,
}

/// Converts an error of a loss.
pub fn value_error(error: rnnt_loss::Error) -> pyo3::PyErr {
    PyValueError::new_err(error.to_string())
}

impl LossOptions {
    /// Reads options.
    ///
    /// # Errors
    /// Text of another form; a negative blank.
    pub fn parse(text: &str) -> PyResult<Self> {
        serde_json::from_str(text).map_err(|error| PyValueError::new_err(format!("options: {error}")))
    }

    /// Number of durations of a TDT loss; 0 for other losses.
    pub fn duration_classes(&self) -> usize {
        if self.loss == "tdt" { self.durations.len() } else { 0 }
    }

    /// Returns whether the loss is that of CTC.
    pub fn is_ctc(&self) -> bool {
        self.loss == "ctc"
    }

    /// Fails unless `predicted` is absent exactly for CTC.
    pub fn expect_ctc(&self, is_ctc: bool) -> PyResult<()> {
        if self.is_ctc() == is_ctc {
            return Ok(());
        }
        let (expected, found) = if is_ctc { ("an array", "None") } else { ("None", "an array") };
        let loss = &self.loss;
        Err(PyValueError::new_err(format!("predicted: expected {expected} for loss '{loss}', found {found}")))
    }

    /// Returns the options of a session.
    ///
    /// # Errors
    /// An unknown name; durations without a loss that has them, or the reverse.
    pub fn session_options(&self) -> PyResult<Options> {
        let loss = self.session_loss()?;
        let activation = match self.activation.as_str() {
            "tanh" => Activation::Tanh,
            "relu" => Activation::Relu,
            found => return Err(unknown_name("activation", "'tanh' or 'relu'", found)),
        };
        let precision = match self.precision.as_str() {
            "full" => Precision::Full,
            "bf16" => Precision::Bf16,
            found => return Err(unknown_name("precision", "'full' or 'bf16'", found)),
        };
        let defaults = Options::default();
        Ok(Options {
            loss,
            activation,
            fastemit: self.fastemit,
            delay_penalty: self.delay_penalty,
            label_smoothing: self.label_smoothing,
            z_loss: self.z_loss,
            clamp: self.clamp,
            skip: self.skip,
            budget: self.budget.unwrap_or(defaults.budget),
            precision,
            ..defaults
        })
    }

    fn session_loss(&self) -> PyResult<Loss> {
        let has_durations = matches!(self.loss.as_str(), "tdt" | "multi_blank");
        if has_durations == self.durations.is_empty() {
            let expected = if has_durations { "at least one duration" } else { "none" };
            let (loss, found) = (&self.loss, &self.durations);
            return Err(PyValueError::new_err(format!(
                "durations: expected {expected} for loss '{loss}', found {found:?}"
            )));
        }
        let loss = match self.loss.as_str() {
            "rnnt" => Loss::rnnt(),
            "modified" => Loss::with_topology(Topology::modified()),
            "constrained" => Loss::with_topology(Topology::constrained()),
            "hat" => Loss::hat(),
            "ctc" => Loss::Ctc,
            "tdt" => Loss::tdt(&self.durations).map_err(value_error)?,
            "multi_blank" => Loss::multi_blank(&self.durations).map_err(value_error)?,
            found => {
                let expected = "'rnnt', 'modified', 'constrained', 'tdt', 'multi_blank', 'hat' or 'ctc'";
                return Err(unknown_name("loss", expected, found));
            }
        };
        let expected_blanks = if self.loss == "multi_blank" { self.durations.len() } else { 0 };
        if self.big_blanks.len() != expected_blanks {
            return Err(PyValueError::new_err(format!(
                "big_blanks: expected {expected_blanks} classes for loss '{}', found {:?}",
                self.loss, self.big_blanks
            )));
        }
        self.with_sigma_and_omega(loss)
    }

    fn with_sigma_and_omega(&self, mut loss: Loss) -> PyResult<Loss> {
        let is_softmax = |tokens: &TokenNormalization| *tokens == TokenNormalization::Softmax;
        match &mut loss {
            Loss::Tdt { sigma, omega, .. } => (*sigma, *omega) = (self.sigma, self.omega),
            Loss::Transducer { tokens, sigma, .. } if self.omega == 0.0 && is_softmax(tokens) => {
                *sigma = self.sigma;
            }
            _ if self.sigma == 0.0 && self.omega == 0.0 => {}
            _ => {
                let (argument, found) =
                    if self.omega == 0.0 { ("sigma", self.sigma) } else { ("omega", self.omega) };
                let loss = &self.loss;
                return Err(PyValueError::new_err(format!(
                    "{argument}: expected 0 for loss '{loss}', found {found}"
                )));
            }
        }
        Ok(loss)
    }
}

fn unknown_name(argument: &str, expected: &str, found: &str) -> pyo3::PyErr {
    PyValueError::new_err(format!("{argument}: expected {expected}, found '{found}'"))
}
