//! The heads of a loss: one list of who looks at a site, with what, and what it is asked.
//!
//! | role | head | asked for |
//! |---|---|---|
//! | tokens | all classes (a factored blank masked) | blank, next label, big blanks (the label alone) |
//! | durations | the duration head | all of its classes |
//! | blank | the factored blank alone: the log-sum of one class is its score | nothing |
//! | mean | the mean of all classes, for label smoothing | nothing |
use panda_core::Real;
use panda_core::{Gradients, Head, Normalized, Selection};

use crate::{Error, HeadGradient, Options, Result, smoothing::MeanClass};

/// What a head stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Tokens,
    Durations,
    Blank,
    Mean,
}

/// A head's answer to what was asked of it.
pub(crate) struct Answer<F> {
    pub role: Role,
    pub selection: Selection,
    pub normalized: Normalized<F>,
}

/// The heads of a call as the options want them.
pub(crate) struct Heads<'a, F: Real> {
    tokens: Head<'a, F>,
    factored: Option<FactoredBlank<'a, F>>,
    durations: Option<Head<'a, F>>,
    mean: Option<MeanClass<F>>,
}

/// Gradients of a head, and of the sites' rows where it is the first.
pub(crate) type Into<F> = Gradients<F, Vec<Vec<F>>>;

impl<'a, F: Real> Heads<'a, F> {
    /// `blank` is one of the classes.
    pub fn new(
        tokens: Head<'a, F>,
        durations: Option<Head<'a, F>>,
        blank: u32,
        options: &Options,
    ) -> Result<Self> {
        let found = durations.map_or(0, |head| head.classes());
        if found != options.loss.durations() {
            let expected = options.loss.durations();
            return Err(Error::Durations { expected, found });
        }
        if let Some(durations) = durations
            && durations.hidden() != tokens.hidden()
        {
            let expected = format!("a width of {}", tokens.hidden());
            let found = durations.hidden().to_string();
            return Err(Error::Shape { argument: "durations", expected, found });
        }
        Ok(Self {
            tokens,
            factored: options.loss.factors_blank().then(|| FactoredBlank::new(tokens, blank)),
            durations,
            mean: options.smooths().then(|| MeanClass::new(&tokens)),
        })
    }

    /// All of them; the tokens first, the mean last.
    pub fn list(&self) -> Result<Vec<(Role, Head<'_, F>)>> {
        let mut list = Vec::with_capacity(3);
        match &self.factored {
            None => list.push((Role::Tokens, self.tokens)),
            Some(factored) => {
                list.push((Role::Tokens, factored.labels()?));
                list.push((Role::Blank, factored.blank));
            }
        }
        list.extend(self.durations.map(|head| (Role::Durations, head)));
        if let Some(mean) = &self.mean {
            list.push((Role::Mean, mean.head()?));
        }
        Ok(list)
    }

    /// Gradients of the token head and of the duration head, from those of the list.
    pub fn join(&self, list: Vec<Into<F>>) -> [HeadGradient<F>; 2] {
        let narrow = |bias: Vec<f64>| bias.into_iter().map(F::from_f64).collect();
        let mut list = list
            .into_iter()
            .map(|Gradients { weight, bias, .. }| HeadGradient { weight, bias: narrow(bias) });
        let mut tokens = list.next().unwrap_or_default();
        if let Some(factored) = &self.factored {
            factored.add_blank(&mut tokens, &list.next().unwrap_or_default());
        }
        let durations = self.durations.and_then(|_| list.next()).unwrap_or_default();
        if self.mean.is_some() {
            MeanClass::spread(&list.next().unwrap_or_default(), &mut tokens);
        }
        [tokens, durations]
    }

    /// Roles of the list and how many classes each has.
    pub fn roles(classes: usize, options: &Options) -> Vec<(Role, usize)> {
        let mut roles = vec![(Role::Tokens, classes)];
        if options.loss.factors_blank() {
            roles.push((Role::Blank, 1));
        }
        if options.loss.durations() > 0 {
            roles.push((Role::Durations, options.loss.durations()));
        }
        if options.smooths() {
            roles.push((Role::Mean, 1));
        }
        roles
    }

    /// H
    pub fn hidden(&self) -> usize {
        self.tokens.hidden()
    }

    /// C
    pub fn classes(&self) -> usize {
        self.tokens.classes()
    }

    /// Bytes beside the caller's heads and their gradients.
    pub fn bytes(classes: usize, hidden: usize, options: &Options) -> usize {
        // Biases are summed in f64 and then narrowed; a masked bias; a mean class in both widths, and its gradient.
        let factored =
            if options.loss.factors_blank() { size_of::<F>() * (classes + hidden) + 16 } else { 0 };
        let mean = if options.smooths() { (8 + 2 * size_of::<F>()) * hidden + 16 } else { 0 };
        let durations = 8 * options.loss.durations();
        8 * classes + durations + factored + mean + 1024
    }
}

/// A head whose blank is apart: the softmax over the others has it masked, so that no weight is copied.
struct FactoredBlank<'a, F> {
    tokens: Head<'a, F>,
    masked: Vec<F>,
    blank: Head<'a, F>,
    class: usize,
}

impl<'a, F: Real> FactoredBlank<'a, F> {
    fn new(tokens: Head<'a, F>, blank: u32) -> Self {
        let (class, hidden) = (blank as usize, tokens.hidden());
        let mut masked = tokens.bias().map_or_else(|| vec![F::ZERO; tokens.classes()], <[F]>::to_vec);
        masked[class] = F::NEG_INFINITY;
        let bias = tokens.bias().map(|bias| &bias[class..=class]);
        let blank = Head::new(&tokens.weight()[class * hidden..][..hidden], bias, hidden);
        let blank = blank.expect("a row of a head is a head of one class");
        Self { tokens, masked, blank, class }
    }

    fn labels(&self) -> Result<Head<'_, F>> {
        Ok(Head::new(self.tokens.weight(), Some(&self.masked), self.tokens.hidden())?)
    }

    fn add_blank(&self, tokens: &mut HeadGradient<F>, blank: &HeadGradient<F>) {
        let row = &mut tokens.weight[self.class * self.tokens.hidden()..];
        row.iter_mut().zip(&blank.weight).for_each(|(sum, g)| *sum += *g);
        tokens.bias[self.class] += blank.bias[0];
    }
}

/// Log-sums of labels without the blank, for the internal language model.
pub(crate) fn without_blank<F: Real, T>(
    head: Head<F>,
    blank: u32,
    use_it: impl FnOnce(&Head<F>) -> Result<T>,
) -> Result<T> {
    use_it(&FactoredBlank::new(head, blank).labels()?)
}
