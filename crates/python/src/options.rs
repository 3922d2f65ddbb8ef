//! Options of a loss, as JSON text: an operation of torch takes numbers and text only.
use pyo3::{PyResult, exceptions::PyValueError};
use rnnt_loss::{Activation, Loss, Options, PassScales, Precision, Pruning, TokenNormalization, Topology};
use serde::Deserialize;

/// Options of a loss, with the names of `panda_rnnt.LossOptions`.
#[derive(Debug, Clone, Deserialize)]
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
    topology: String,
    prune_range: usize,
    simple_loss_scale: f64,
    pruned_loss_scale: f64,
    lm_only_scale: f64,
    am_only_scale: f64,
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

    /// Returns whether a simple joiner selects the sites.
    pub fn is_pruned(&self) -> bool {
        self.loss == "pruned"
    }

    /// Name of the loss.
    pub fn name(&self) -> &str {
        &self.loss
    }

    /// Factors of the losses of a pruned transducer.
    pub fn pass_scales(&self) -> PassScales {
        PassScales { simple: self.simple_loss_scale, pruned: self.pruned_loss_scale }
    }

    /// Returns the options without regularization.
    ///
    /// Probabilities are then those of the model.
    pub fn without_regularization(&self) -> Self {
        Self {
            sigma: 0.0,
            omega: 0.0,
            fastemit: 0.0,
            delay_penalty: 0.0,
            label_smoothing: 0.0,
            z_loss: 0.0,
            clamp: None,
            skip: 0.0,
            ..self.clone()
        }
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
            "bf16x3" => Precision::Bf16x3,
            found => return Err(unknown_name("precision", "'full', 'bf16' or 'bf16x3'", found)),
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
            "pruned" => self.pruned_loss()?,
            found => {
                let expected =
                    "'rnnt', 'modified', 'constrained', 'tdt', 'multi_blank', 'hat', 'ctc' or 'pruned'";
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

    fn pruned_loss(&self) -> PyResult<Loss> {
        let topology = match self.topology.as_str() {
            "regular" => Topology::rnnt(),
            "modified" => Topology::modified(),
            "constrained" => Topology::constrained(),
            found => {
                return Err(unknown_name("topology", "'regular', 'modified' or 'constrained'", found));
            }
        };
        let smallest = if self.topology == "modified" { 1 } else { 2 };
        if self.prune_range < smallest {
            return Err(PyValueError::new_err(format!(
                "prune_range: expected at least {smallest} label positions, found {}",
                self.prune_range
            )));
        }
        let (lm_only_scale, am_only_scale) = (self.lm_only_scale, self.am_only_scale);
        for (argument, value, max) in [
            ("simple_loss_scale", self.simple_loss_scale, f64::INFINITY),
            ("pruned_loss_scale", self.pruned_loss_scale, f64::INFINITY),
            ("lm_only_scale", lm_only_scale, 1.0),
            ("am_only_scale", am_only_scale, 1.0),
            ("lm_only_scale + am_only_scale", lm_only_scale + am_only_scale, 1.0),
        ] {
            if !(0.0..=max).contains(&value) {
                let expected = if max == 1.0 { "from 0 to 1" } else { "of at least 0" };
                return Err(PyValueError::new_err(format!(
                    "{argument}: expected a number {expected}, found {value}"
                )));
            }
        }
        let pruning =
            Pruning { s_range: self.prune_range, lm_only_scale, am_only_scale, ..Pruning::default() };
        Ok(Loss::Pruned { topology, tokens: TokenNormalization::Softmax, pruning })
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
