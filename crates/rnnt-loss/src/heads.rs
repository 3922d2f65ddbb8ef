//! Joint sites under one head or several: a whole batch, forwards and backwards, group after group.
use std::borrow::Cow;

use panda_core::{Gradients, Head, JointGradient, JointSites, Real};

use crate::{
    Error, Layout, Result, Skipped, Targets, Workspace, columns::Columns, engine::SampleWise,
    error::expect_rows, smoothing::MeanClass,
};

/// What comes out for joint sites and some heads.
pub(crate) struct HeadsLoss<F> {
    pub losses: Vec<f64>,
    pub rows: JointGradient<F>,
    /// Weight and bias of each head.
    pub heads: Vec<(Vec<F>, Vec<F>)>,
    pub skipped: Skipped,
}

impl<F: Real> Workspace<F> {
    pub(crate) fn heads_loss(
        &mut self,
        (frames, labels): (&[F], &[F]),
        heads: &[Head<F>],
        columns: Columns,
        layout: Layout,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<HeadsLoss<F>> {
        layout.check(targets)?;
        let h = heads[0].hidden();
        expect_rows("frames", layout.frame_rows(targets).1, h, frames.len())?;
        expect_rows("labels", layout.label_rows(targets).1, h, labels.len())?;
        let activation = self.options.activation;
        if self.options.label_smoothing > 0.0 && columns == Columns::FactoredBlank {
            return Err(Error::Smoothing);
        }
        let mean = (self.options.label_smoothing > 0.0).then(|| MeanClass::new(&heads[0]));
        let mean_head = mean.as_ref().map(MeanClass::head).transpose()?;
        let heads: Vec<Head<F>> = heads.iter().copied().chain(mean_head).collect();
        let mut run = SampleWise::new(&heads, columns, targets, weights, self)?;
        let mut into: Vec<_> =
            heads.iter().map(|head| Gradients::zero(JointGradient::default(), head)).collect();
        into[0].sites = JointGradient::zero(frames.len(), labels.len());
        for group in run.groups() {
            let part = targets.part(group.clone());
            let (frame_of, label_of) = layout.joint_rows(targets, group.clone());
            let sites = JointSites::new(frames, labels, &frame_of, &label_of, h, activation)
                .map_err(|error| Error::at_site(error, part.lattices()).in_group(group.start))?;
            run.step(group, &part, &sites, &mut into)?;
        }
        let (losses, skipped) = run.finish();
        let rows = std::mem::take(&mut into[0].sites);
        let narrow = |bias: Vec<f64>| bias.into_iter().map(F::from_f64).collect();
        let mut heads: Vec<_> =
            into.into_iter().map(|Gradients { weight, bias, .. }| (weight, narrow(bias))).collect();
        if mean.is_some()
            && let Some(mean) = heads.pop()
        {
            MeanClass::spread(&mean, &mut heads[0]);
        }
        Ok(HeadsLoss { losses, rows, heads, skipped })
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
