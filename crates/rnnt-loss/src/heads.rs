//! Heads of a transducer loss, and the classes that each selects.
//!
//! A head is an output layer: linear, over classes. A loss needs one to three, each with a softmax;
//! [`HeadSet`] derives them from the token head and the duration head of the caller, and adds up
//! their gradients. To select a class is to compute its log-probability at a site (lattice node). A
//! factored blank is separate from the softmax over labels: its probability is the sigmoid of its
//! score.
//!
//! | role | head | selects |
//! |---|---|---|
//! | tokens | all classes; a factored blank has the bias -inf | blank, next label, big blanks; with a factored blank the next label only |
//! | durations | the duration head | all of its classes |
//! | blank | the factored blank only: its score is the log-sum of this one class | none |
//! | mean | one class, the mean of all classes, for label smoothing | none |
//!
//! The order of the heads is tokens, blank, durations, mean. [`HeadSet::all_heads`],
//! [`HeadSet::join_gradients`] and [`HeadSet::roles_and_classes`] share it.
use panda_core::Real;
use panda_core::{Gradients, Head, Normalized, Selection};
use rnnt_dp::Lattices;

use crate::{
    Error, HeadGradient, Options, Result, inputs::InputValues, joint_hidden_rows::RowGradients,
    smoothing::MeanClass,
};

/// Role of a head in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadRole {
    Tokens,
    Durations,
    Blank,
    Mean,
}

impl HeadRole {
    /// Converts a normalizer error; reports the position of its site.
    pub(crate) fn convert_error(self, error: panda_core::Error, lattices: &Lattices) -> Error {
        let masked = match self {
            Self::Mean => "-inf for a class, which label smoothing excludes",
            Self::Blank => "-inf for the blank",
            Self::Tokens | Self::Durations => "-inf for every class",
        };
        Error::at_site(error, lattices).with_masked(masked)
    }
}

/// Normalized classes of one head.
pub(crate) struct HeadOutput<F> {
    pub role: HeadRole,
    pub selection: Selection,
    pub normalized: Normalized<F>,
}

/// Heads of a TDT loss with label smoothing: tokens, durations, mean.
const MAX_HEADS: usize = 3;
/// Upper bound on the bytes of lists of heads and roles.
const LIST_BYTES: usize = 1024;
/// Bytes for the bias of a one-class head, and its gradient.
const SINGLE_BIAS_BYTES: usize = 16;

/// Gradients of a head; those of the first head include the input rows.
pub(crate) type NormalizerGradients<F> = Gradients<F, RowGradients<F>>;

/// The heads of a call; their weights are among its [`InputValues`].
pub(crate) struct HeadSet<F> {
    hidden: usize,
    classes: usize,
    has_durations: bool,
    factored_blank: Option<FactoredBlank<F>>,
    mean_class: Option<MeanClass<F>>,
}

impl<F: Real> HeadSet<F> {
    /// Checks the heads; `blank` is one of the classes.
    pub(crate) fn new(
        tokens: &Head<F>,
        durations: Option<Head<F>>,
        blank: u32,
        options: &Options,
    ) -> Result<Self> {
        let num_durations = durations.map_or(0, |head| head.classes());
        if num_durations != options.loss.num_durations() {
            let expected = options.loss.num_durations();
            return Err(Error::Durations { expected, found: num_durations });
        }
        if let Some(durations) = durations
            && durations.hidden() != tokens.hidden()
        {
            let expected = format!("a width of {}", tokens.hidden());
            let width = durations.hidden().to_string();
            return Err(Error::Shape { argument: "durations", expected, found: width });
        }
        Ok(Self {
            hidden: tokens.hidden(),
            classes: tokens.classes(),
            has_durations: durations.is_some(),
            factored_blank: options.loss.factors_blank().then(|| FactoredBlank::new(tokens, blank)),
            mean_class: options.has_label_smoothing().then(|| MeanClass::new(tokens)),
        })
    }

    /// All heads, in the order of the roles.
    pub(crate) fn all_heads<'h>(
        &'h self,
        values: &InputValues<'h, F>,
    ) -> Result<Vec<(HeadRole, Head<'h, F>)>> {
        let tokens = values.head.ok_or(Error::Inputs { expected: "a head", found: "none" })?;
        let mut heads = Vec::with_capacity(MAX_HEADS);
        match &self.factored_blank {
            None => heads.push((HeadRole::Tokens, tokens)),
            Some(factored) => {
                heads.push((HeadRole::Tokens, factored.masked_token_head(&tokens)?));
                heads.push((HeadRole::Blank, factored.blank_head(&tokens)?));
            }
        }
        heads.extend(values.durations.map(|head| (HeadRole::Durations, head)));
        if let Some(mean) = &self.mean_class {
            heads.push((HeadRole::Mean, mean.head()?));
        }
        Ok(heads)
    }

    /// Combines the gradients of all heads: returns those of token head and duration head.
    pub(crate) fn join_gradients(&self, gradients: Vec<NormalizerGradients<F>>) -> [HeadGradient<F>; 2] {
        let round = |bias: Vec<f64>| bias.into_iter().map(F::from_f64).collect();
        let mut gradients = gradients
            .into_iter()
            .map(|Gradients { weight, bias, .. }| HeadGradient { weight, bias: round(bias) });
        let mut tokens = gradients.next().unwrap_or_default();
        if let Some(factored) = &self.factored_blank {
            factored.add_blank(self.hidden, &mut tokens, &gradients.next().unwrap_or_default());
        }
        let durations =
            if self.has_durations { gradients.next().unwrap_or_default() } else { HeadGradient::default() };
        if self.mean_class.is_some() {
            MeanClass::distribute(&gradients.next().unwrap_or_default(), &mut tokens);
        }
        [tokens, durations]
    }

    /// Roles of the heads in order, with their numbers of classes.
    pub(crate) fn roles_and_classes(classes: usize, options: &Options) -> Vec<(HeadRole, usize)> {
        let mut roles = vec![(HeadRole::Tokens, classes)];
        if options.loss.factors_blank() {
            roles.push((HeadRole::Blank, 1));
        }
        if options.loss.num_durations() > 0 {
            roles.push((HeadRole::Durations, options.loss.num_durations()));
        }
        if options.has_label_smoothing() {
            roles.push((HeadRole::Mean, 1));
        }
        roles
    }

    /// Joint width H.
    pub(crate) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Number of classes C.
    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    /// Bytes in addition to heads and gradients of the caller.
    pub(crate) fn bytes(classes: usize, hidden: usize, options: &Options) -> usize {
        // Gradients of the biases in `f64`.
        let bias_bytes = size_of::<f64>() * (classes + options.loss.num_durations());
        // The masked bias; the gradient of the blank's weight.
        let blank_bytes = if options.loss.factors_blank() {
            size_of::<F>() * (classes + hidden) + SINGLE_BIAS_BYTES
        } else {
            0
        };
        // The mean weight in `f64` and in `F`, and its gradient.
        let mean_bytes = if options.has_label_smoothing() {
            (size_of::<f64>() + 2 * size_of::<F>()) * hidden + SINGLE_BIAS_BYTES
        } else {
            0
        };
        bias_bytes + blank_bytes + mean_bytes + LIST_BYTES
    }
}

/// A factored blank: a bias of -inf excludes it from the softmax, so that no weight is copied.
struct FactoredBlank<F> {
    /// Bias of all classes, -inf for the blank.
    masked_bias: Vec<F>,
    /// Class id of the blank.
    blank: usize,
}

impl<F: Real> FactoredBlank<F> {
    fn new(tokens: &Head<F>, blank: u32) -> Self {
        let blank = blank as usize;
        let mut masked_bias = tokens.bias().map_or_else(|| vec![F::ZERO; tokens.classes()], <[F]>::to_vec);
        masked_bias[blank] = F::NEG_INFINITY;
        Self { masked_bias, blank }
    }

    /// The token head, with all classes but a masked blank.
    fn masked_token_head<'h>(&'h self, tokens: &Head<'h, F>) -> Result<Head<'h, F>> {
        Ok(Head::new(tokens.weight(), Some(&self.masked_bias), tokens.hidden())?)
    }

    /// The head of the blank only.
    fn blank_head<'h>(&self, tokens: &Head<'h, F>) -> Result<Head<'h, F>> {
        let hidden = tokens.hidden();
        let bias = tokens.bias().map(|bias| &bias[self.blank..=self.blank]);
        Ok(Head::new(&tokens.weight()[self.blank * hidden..][..hidden], bias, hidden)?)
    }

    /// Adds the gradient of the blank's head to its class.
    fn add_blank(&self, hidden: usize, tokens: &mut HeadGradient<F>, blank: &HeadGradient<F>) {
        let row = &mut tokens.weight[self.blank * hidden..];
        row.iter_mut().zip(&blank.weight).for_each(|(sum, gradient)| *sum += *gradient);
        tokens.bias[self.blank] += blank.bias[0];
    }
}

/// Calls `run` with a head whose blank is masked.
pub(crate) fn with_masked_blank<F: Real, T>(
    head: Head<F>,
    blank: u32,
    run: impl FnOnce(&Head<F>) -> Result<T>,
) -> Result<T> {
    run(&FactoredBlank::new(&head, blank).masked_token_head(&head)?)
}
