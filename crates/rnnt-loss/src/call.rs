//! A call's inputs, brought together with its targets: what the sites of any group are made of, and who looks at them.
use std::ops::Range;

use kernels::Real;
use panda_core::Gradients as HeadGradients;

use crate::{
    Error, Gradients, Joint, Layout, Loss, Options, Result, Rows, Targets,
    budget::Sizes,
    ctc::Ctc,
    error::expect_rows,
    heads::{Heads, Into},
    joint_sites::{JointRows, JointSites},
    objective::Objective,
    row_sites::RowSites,
    sites::GroupSites,
};

/// Joint rows or hidden rows under heads, for a sum over paths.
pub(crate) struct Call<'a, F: Real> {
    pub objective: Objective<'a>,
    pub heads: Heads<'a, F>,
    source: Source<'a, F>,
}

enum Source<'a, F> {
    Joint(JointRows<'a, F>),
    Rows { hidden: &'a [F], width: usize, layout: Layout },
}

impl<'a, F: Real> Call<'a, F> {
    /// Rows that a joint network adds.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not fit together.
    pub fn joint(
        joint: &Joint<'a, F>,
        loss: &'a Loss,
        targets: &'a Targets,
        options: &Options,
    ) -> Result<Self> {
        let Joint { encoded, predicted, head, durations, dropout, layout } = *joint;
        if *loss == Loss::Ctc {
            return Err(Error::Inputs {
                expected: "rows or scores for CTC",
                found: "those of a joint network",
            });
        }
        options.check()?;
        targets.check_classes(head.classes())?;
        layout.check(targets)?;
        let (frames, labels, width) =
            (layout.frame_starts(targets), layout.label_starts(targets), head.hidden());
        expect_rows("encoded", frames.total(), width, encoded.len())?;
        expect_rows("predicted", labels.total(), width, predicted.len())?;
        let mask = dropout.map_or(Ok(None), |dropout| dropout.mask())?;
        let activation = options.activation;
        let source = Source::Joint(JointRows { encoded, predicted, width, frames, labels, activation, mask });
        let (objective, heads) =
            (Objective::new(loss, targets)?, Heads::new(head, durations, targets.blank(), options)?);
        Ok(Self { objective, heads, source })
    }

    /// Hidden rows, a site's or, for CTC, a frame's.
    ///
    /// # Errors
    /// As above.
    pub fn rows(rows: &Rows<'a, F>, loss: &'a Loss, targets: &'a Targets, options: &Options) -> Result<Self> {
        let Rows { hidden, head, durations, layout } = *rows;
        options.check()?;
        targets.check_classes(head.classes())?;
        let (objective, width) = (Objective::new(loss, targets)?, head.hidden());
        let layout = if *loss == Loss::Ctc { Ctc::layout(layout) } else { layout };
        layout.check(objective.sites())?;
        expect_rows("hidden", layout.score_rows(objective.sites()), width, hidden.len())?;
        let heads = Heads::new(head, durations, targets.blank(), options)?;
        Ok(Self { objective, heads, source: Source::Rows { hidden, width, layout } })
    }

    /// Sites of some utterances.
    ///
    /// # Errors
    /// A row that holds an infinite value.
    pub fn sites(&self, utterances: Range<usize>) -> Result<GroupSites<'a, F>> {
        let targets = self.objective.sites();
        Ok(match &self.source {
            Source::Joint(rows) => GroupSites::Joint(JointSites::new(rows, targets, utterances)?),
            &Source::Rows { hidden, width, layout } => {
                GroupSites::Rows(RowSites::new(hidden, width, layout, targets, utterances))
            }
        })
    }

    /// Zero gradients: of each head of the list, and of the rows with the first.
    pub fn zero(&self) -> Result<Vec<Into<F>>> {
        let rows = match &self.source {
            Source::Joint(rows) => {
                vec![kernels::zeros(rows.encoded.len()), kernels::zeros(rows.predicted.len())]
            }
            Source::Rows { hidden, .. } => vec![kernels::zeros(hidden.len())],
        };
        let list = self.heads.list()?;
        let mut into: Vec<_> = list.iter().map(|(_, head)| HeadGradients::zero(Vec::new(), head)).collect();
        into[0].sites = rows;
        Ok(into)
    }

    /// The same under the names of the inputs.
    pub fn name(&self, mut into: Vec<Into<F>>) -> Gradients<F> {
        let rows = std::mem::take(&mut into[0].sites);
        let [head, durations] = self.heads.join(into);
        let mut gradients = Gradients { head, durations, ..Gradients::default() };
        let mut rows = rows.into_iter();
        let mut next = || rows.next().unwrap_or_default();
        match &self.source {
            Source::Joint(_) => (gradients.encoded, gradients.predicted) = (next(), next()),
            Source::Rows { .. } => gradients.hidden = next(),
        }
        gradients
    }

    /// What decides how many bytes the call takes, beside those that are held on its behalf.
    pub fn sizes<'s>(&'s self, options: &'s Options, held: usize) -> Sizes<'s> {
        let listed = match &self.source {
            Source::Joint(rows) => JointSites::<F>::bytes(rows.mask.is_some()),
            Source::Rows { layout, .. } => RowSites::<F>::bytes(*layout),
        };
        let (hidden, classes) = (self.heads.hidden(), self.heads.classes());
        Sizes { objective: &self.objective, options, hidden, classes, listed, held }
    }
}
