//! `ModelConfig::check`: ranges and supported combinations of recipe values.
use rnnt_loss::Topology;
use speech::FrontEnd;

use super::ModelConfig;
use crate::Result;
use crate::config::values::{
    MAX_SMALL_COUNT, MAX_WIDTH, check_count, check_dropout, check_factor, check_fraction, check_non_negative,
    ensure, setting_error,
};
use crate::config::{
    ActivationKind, AlignmentKind, GnatConfig, LossKind, LossOptions, LossTerms, PrecisionKind,
};
use crate::encoders::EncoderKind;

/// Largest number of encoder frames of a token or a blank: minutes at any frame rate.
const MAX_DURATION: usize = 1000;

impl ModelConfig {
    /// Checks every value, under its key in a recipe.
    ///
    /// # Errors
    /// [`crate::Error::RecipeValue`] for the first one outside its range.
    pub fn check(&self) -> Result<()> {
        FrontEnd::new(&self.input.features).map_err(|error| setting_error("features", error))?;
        self.check_parts()?;
        // `check_loss` combines keys of `[training]` with keys of `[loss]`. The ranges of the
        // former are checked before, so that an error names the key that is out of range.
        self.check_training_terms()?;
        self.check_loss()?;
        self.check_adapter()?;
        self.init.check()
    }

    /// Checks the keys of `[adapter]`, and that the encoder supports adapters.
    fn check_adapter(&self) -> Result<()> {
        let Some(adapter) = &self.adapter else { return Ok(()) };
        adapter.check()?;
        let is_supported = !matches!(self.encoder, EncoderKind::Lstm(_));
        let expected = "none with encoder.kind = \"lstm\"; conformer and fastconformer support it";
        ensure("adapter", expected, is_supported, "a table")
    }

    /// Checks the keys of `[loss]`, and that the topology supports them.
    fn check_loss(&self) -> Result<()> {
        let topology = &self.terms.topology;
        let topology_names = || Topology::names().collect::<Vec<_>>().join(", ");
        // Big blanks and durations are not part of `training.topology`, but keys of `[loss]`.
        let has_blank_and_label_only = topology.num_columns() == 2;
        ensure(
            "training.topology",
            &format!("one of {}", topology_names()),
            has_blank_and_label_only,
            topology,
        )?;
        self.check_loss_options()?;
        match &self.loss.kind {
            LossKind::Rnnt { .. } => return Ok(()),
            LossKind::Ctc {} => return self.check_ctc(),
            LossKind::Gnat(config) => return self.check_gnat(config),
            &LossKind::Pruned { s_range, simple_scale, lm_only_scale, am_only_scale, .. } => {
                ensure("loss.s_range", "at least 2", s_range >= 2, s_range)?;
                check_non_negative("loss.simple_scale", simple_scale)?;
                check_fraction("loss.lm_only_scale", lm_only_scale)?;
                check_fraction("loss.am_only_scale", am_only_scale)?;
                return check_fraction("loss.lm_only_scale + am_only_scale", lm_only_scale + am_only_scale);
            }
            LossKind::Tdt { durations, sigma, omega } => {
                check_fraction("loss.omega", *omega)?;
                check_factor("loss.sigma", *sigma)?;
                let is_valid = durations.iter().any(|&frames| frames > 0);
                ensure("loss.durations", "one of at least 1", is_valid, format!("{durations:?}"))?;
            }
            LossKind::MultiBlank { durations, sigma } => {
                check_factor("loss.sigma", *sigma)?;
                let is_valid = !durations.is_empty() && durations.iter().all(|&frames| frames >= 2);
                ensure("loss.durations", "one or more of at least 2", is_valid, format!("{durations:?}"))?;
            }
        }
        // Durations of tokens (TDT) or of big blanks (multi-blank); the other list is empty.
        let durations = [self.loss.kind.durations(), self.loss.kind.big_blanks()].concat();
        for (index, &frames) in durations.iter().enumerate() {
            ensure("loss.durations", &format!("at most {MAX_DURATION}"), frames <= MAX_DURATION, frames)?;
            ensure("loss.durations", "each once", !durations[..index].contains(&frames), frames)?;
        }
        let topology = &self.terms.topology;
        let (expected, is_valid) = match self.loss.kind {
            LossKind::Tdt { .. } => ("regular, with durations", *topology == Topology::rnnt()),
            _ => ("regular or modified, with big blanks", topology.is_plain()),
        };
        ensure("training.topology", expected, is_valid, topology)
    }

    /// Checks the keys of `[loss]` that all kinds share.
    fn check_loss_options(&self) -> Result<()> {
        let LossOptions { skip, clamp, .. } = self.loss.options;
        let terms = &self.terms;
        ensure("loss.skip", "a number of at least 0, below 1", (0.0..1.0).contains(&skip), skip)?;
        let is_valid = skip == 0.0 || terms.z_loss == 0.0;
        ensure("loss.skip", "0 with a z_loss, which applies to all sites", is_valid, skip)?;
        let Some(clamp) = clamp else { return Ok(()) };
        check_non_negative("loss.clamp", clamp)?;
        ensure("loss.clamp", "none with label smoothing", terms.label_smoothing == 0.0, clamp)
    }

    /// Checks input rows, encoder, predictor and joint network.
    fn check_parts(&self) -> Result<()> {
        let ModelConfig { input, encoder, .. } = self;
        check_count("encoder.stack", input.rows.stack, MAX_SMALL_COUNT)?;
        check_count("encoder.stride", input.rows.stride, MAX_SMALL_COUNT)?;
        let channels = input.rows.channels;
        ensure("encoder.channels", &format!("0 to {MAX_WIDTH}"), channels <= MAX_WIDTH, channels)?;
        encoder.check()?;
        if encoder.subsamples() {
            let expected = "1, given in the recipe, with encoder.subsampling";
            ensure("encoder.stack", expected, input.rows.stack == 1, input.rows.stack)?;
            ensure("encoder.stride", expected, input.rows.stride == 1, input.rows.stride)?;
        }
        let kind = &self.loss.kind;
        match &self.predictor {
            Some(predictor) => predictor.check()?,
            None if kind.gnat().is_some() || kind.is_ctc() => {}
            None => ensure("predictor", "a table, with a kind", false, "none")?,
        }
        if kind.is_ctc() && self.joint.is_none() {
            return Ok(());
        }
        let joint = self.joint_network()?;
        check_count("joint.width", joint.width, MAX_WIDTH)?;
        check_dropout("joint.dropout", joint.dropout)
    }

    /// Checks the keys of `[training]` that are terms of the objective.
    fn check_training_terms(&self) -> Result<()> {
        let terms = &self.terms;
        check_non_negative("training.ctc_weight", terms.ctc_weight)?;
        check_non_negative("training.ctc_weight_end", terms.ctc_weight_end.unwrap_or(0.0))?;
        check_factor("training.fastemit", terms.fastemit)?;
        check_factor("training.delay_penalty", terms.delay_penalty)?;
        check_non_negative("training.z_loss", terms.z_loss)?;
        let smoothing = terms.label_smoothing;
        check_fraction("training.label_smoothing", smoothing)?;
        let is_factored = matches!(self.loss.kind, LossKind::Rnnt { factored_blank: true });
        let expected = "0 with a factored blank";
        ensure("training.label_smoothing", expected, smoothing == 0.0 || !is_factored, smoothing)
    }

    /// Checks that the keys that a CTC model has not are absent.
    fn check_ctc(&self) -> Result<()> {
        let expect_none = |key: &str, is_none: bool, found: String| {
            ensure(key, "none with loss.kind = \"ctc\"", is_none, found)
        };
        let LossOptions { skip, activation, .. } = self.loss.options;
        let LossTerms { topology, ctc_weight, ctc_weight_end, .. } = &self.terms;
        expect_none("predictor", self.predictor.is_none(), "a predictor".into())?;
        expect_none("joint", self.joint.is_none(), "a joint network".into())?;
        expect_none("loss.skip", skip == 0.0, skip.to_string())?;
        expect_none("loss.activation", activation == ActivationKind::Tanh, "another than tanh".into())?;
        expect_none("training.topology", *topology == Topology::rnnt(), topology.to_string())?;
        expect_none("training.ctc_weight", *ctc_weight == 0.0, ctc_weight.to_string())?;
        let end = ctc_weight_end.unwrap_or(0.0);
        expect_none("training.ctc_weight_end", end == 0.0, end.to_string())
    }

    /// Checks the keys of a recognition lattice, and those that it excludes.
    fn check_gnat(&self, gnat: &GnatConfig) -> Result<()> {
        let range = format!("0 to {MAX_SMALL_COUNT}");
        ensure("loss.context", &range, gnat.context <= MAX_SMALL_COUNT, gnat.context)?;
        check_count("loss.embedding", gnat.embedding, MAX_WIDTH)?;
        if let AlignmentKind::LabelsPerFrame(labels) = gnat.alignment {
            check_count("loss.alignment.labels_per_frame", labels, MAX_SMALL_COUNT)?;
        }
        let expect_none = |key: &str, is_none: bool, found: String| {
            ensure(key, "none with loss.kind = \"gnat\"", is_none, found)
        };
        let predictor = if self.predictor.is_some() { "a predictor" } else { "none" };
        expect_none("predictor", self.predictor.is_none(), predictor.into())?;
        let dropout = self.joint_network()?.dropout;
        let LossOptions { skip, clamp, activation, .. } = self.loss.options;
        let LossTerms { topology, precision, fastemit, delay_penalty, label_smoothing, z_loss, .. } =
            &self.terms;
        expect_none("joint.dropout", dropout == 0.0, dropout.to_string())?;
        expect_none("loss.skip", skip == 0.0, skip.to_string())?;
        expect_none("loss.clamp", clamp.is_none(), format!("{clamp:?}"))?;
        expect_none("loss.activation", activation == ActivationKind::Tanh, "another than tanh".into())?;
        expect_none("training.topology", *topology == Topology::rnnt(), topology.to_string())?;
        expect_none(
            "training.precision",
            *precision == PrecisionKind::Full,
            format!("{precision:?}").to_lowercase(),
        )?;
        expect_none("training.fastemit", *fastemit == 0.0, fastemit.to_string())?;
        expect_none("training.delay_penalty", *delay_penalty == 0.0, delay_penalty.to_string())?;
        expect_none("training.label_smoothing", *label_smoothing == 0.0, label_smoothing.to_string())?;
        expect_none("training.z_loss", *z_loss == 0.0, z_loss.to_string())
    }
}
