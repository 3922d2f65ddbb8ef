//! Joint sites under one head or several: a whole batch, forwards and backwards, group after group.
use std::borrow::Cow;

use panda_core::{Gradients, Head, JointGradient, JointSites, Real};

use crate::{
    Error, Layout, Options, Result, Skipped, Targets, Workspace,
    columns::Columns,
    engine::SampleWise,
    error::expect_rows,
    objective::{Objective, Transducer},
    smoothing::MeanClass,
};

/// What comes out for joint sites and some heads.
pub(crate) struct HeadsLoss<F> {
    pub losses: Vec<f64>,
    pub rows: JointGradient<F>,
    /// Weight and bias of the token head, and of durations.
    pub heads: Vec<(Vec<F>, Vec<F>)>,
    pub skipped: Skipped,
}

/// The heads of a loss as the options want them: the blank apart, durations, the mean of all classes.
pub(crate) struct Heads<'a, F: Real> {
    tokens: Head<'a, F>,
    factored: Option<Factored<'a, F>>,
    durations: Option<Head<'a, F>>,
    mean: Option<MeanClass<F>>,
}

impl<'a, F: Real> Heads<'a, F> {
    /// `blank` is one of the classes.
    pub fn new(
        tokens: &Head<'a, F>,
        durations: Option<&Head<'a, F>>,
        blank: u32,
        options: &Options,
    ) -> Result<Self> {
        let smooths = options.label_smoothing > 0.0;
        match durations {
            Some(_) if options.factored_blank => return Err(Error::FactoredBlank),
            Some(durations) if durations.hidden() != tokens.hidden() => {
                let expected = format!("a width of {}", tokens.hidden());
                let found = durations.hidden().to_string();
                return Err(Error::Shape { argument: "durations", expected, found });
            }
            _ if smooths && options.factored_blank => return Err(Error::Smoothing),
            _ => {}
        }
        Ok(Self {
            tokens: *tokens,
            factored: options.factored_blank.then(|| Factored::new(tokens, blank)),
            durations: durations.copied(),
            mean: smooths.then(|| MeanClass::new(tokens)),
        })
    }

    pub fn columns(&self) -> Columns {
        match (&self.factored, &self.durations) {
            (Some(_), _) => Columns::FactoredBlank,
            (None, Some(durations)) => Columns::TokensAndDurations(durations.classes()),
            (None, None) => Columns::Tokens,
        }
    }

    /// All of them, in the order of [`Columns::selections`], and the mean.
    pub fn list(&self) -> Result<Vec<Head<'_, F>>> {
        let mut list = match &self.factored {
            Some(factored) => factored.heads()?.to_vec(),
            None => vec![self.tokens],
        };
        list.extend(self.durations);
        list.extend(self.mean.as_ref().map(MeanClass::head).transpose()?);
        Ok(list)
    }

    /// Weights' and biases' gradients of the token head and, if there is one, of the duration head, from those of the list.
    pub fn join<G>(&self, list: Vec<Gradients<F, G>>) -> Vec<(Vec<F>, Vec<F>)> {
        let narrow = |bias: Vec<f64>| bias.into_iter().map(F::from_f64).collect();
        let mut list: Vec<_> =
            list.into_iter().map(|Gradients { weight, bias, .. }| (weight, narrow(bias))).collect();
        if self.mean.is_some()
            && let Some(mean) = list.pop()
        {
            MeanClass::spread(&mean, &mut list[0]);
        }
        match &self.factored {
            Some(factored) => vec![factored.join(list)],
            None => list,
        }
    }
}

impl<F: Real> Workspace<F> {
    pub(crate) fn heads_loss(
        &mut self,
        (frames, labels): (&[F], &[F]),
        heads: &Heads<F>,
        layout: Layout,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<HeadsLoss<F>> {
        layout.check(targets)?;
        let list = heads.list()?;
        let (h, activation) = (list[0].hidden(), self.options.activation);
        expect_rows("frames", layout.frame_rows(targets).1, h, frames.len())?;
        expect_rows("labels", layout.label_rows(targets).1, h, labels.len())?;
        let mut run = SampleWise::new(&list, Transducer::new(targets, heads.columns()), weights, self)?;
        let mut into: Vec<_> =
            list.iter().map(|head| Gradients::zero(JointGradient::default(), head)).collect();
        into[0].sites = JointGradient::zero(frames.len(), labels.len());
        for group in run.groups() {
            let part = run.objective.part(group.clone());
            let (frame_of, label_of) = layout.joint_rows(targets, group.clone());
            let sites = JointSites::new(frames, labels, &frame_of, &label_of, h, activation)
                .map_err(|error| Error::at_site(error, part.sites().lattices()).in_group(group.start))?;
            run.step(group, &part, &sites, &mut into)?;
        }
        let (losses, skipped) = run.finish();
        let rows = std::mem::take(&mut into[0].sites);
        Ok(HeadsLoss { losses, rows, heads: heads.join(into), skipped })
    }
}

/// A head as two: all classes but the blank, and the blank.
pub(crate) struct Factored<'a, F: Real> {
    blank: usize,
    hidden: usize,
    labels: (Cow<'a, [F]>, Option<Cow<'a, [F]>>),
    alone: (&'a [F], Option<&'a [F]>),
}

impl<'a, F: Real> Factored<'a, F> {
    /// Copies nothing if the blank is the first class or the last.
    pub fn new(head: &Head<'a, F>, blank: u32) -> Self {
        let (blank, hidden) = (blank as usize, head.hidden());
        let (row, value) =
            (&head.weight()[blank * hidden..][..hidden], head.bias().map(|b| &b[blank..][..1]));
        let labels = (without(head.weight(), blank, hidden), head.bias().map(|b| without(b, blank, 1)));
        Self { blank, hidden, labels, alone: (row, value) }
    }

    /// Labels, blank.
    pub fn heads(&self) -> Result<[Head<'_, F>; 2]> {
        let (weight, bias) = &self.labels;
        let labels = Head::new(weight, bias.as_deref(), self.hidden)?;
        Ok([labels, Head::new(self.alone.0, self.alone.1, self.hidden)?])
    }

    /// The gradient of the head from those of the two.
    pub fn join(&self, heads: Vec<(Vec<F>, Vec<F>)>) -> (Vec<F>, Vec<F>) {
        let [(mut weight, mut bias), (row, value)]: [_; 2] =
            heads.try_into().unwrap_or_else(|_| unreachable!("two heads have two gradients"));
        let at = self.blank * self.hidden;
        weight.splice(at..at, row);
        bias.splice(self.blank..self.blank, value);
        (weight, bias)
    }
}

/// Rows of `width` without one.
fn without<F: Copy>(rows: &[F], row: usize, width: usize) -> Cow<'_, [F]> {
    let (before, after) = (&rows[..row * width], &rows[(row + 1) * width..]);
    match (before.is_empty(), after.is_empty()) {
        (true, _) => Cow::Borrowed(after),
        (_, true) => Cow::Borrowed(before),
        _ => Cow::Owned([before, after].concat()),
    }
}
