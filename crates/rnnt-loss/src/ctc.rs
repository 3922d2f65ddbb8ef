//! Connectionist temporal classification through the same tiles: the sites are frames, each of which is asked for the blank and
//! the different labels of its utterance.
use std::ops::Range;

use panda_core::{Head, Real, Selection};
use rayon::prelude::*;
use rnnt_dp::ctc::forward_backward;

use crate::{
    Error, Layout, Options, Result, RowsLoss, Targets, Workspace, columns::Columns, heads::Heads,
    objective::Objective,
};

/// CTC loss of encoder rows and a head, with all gradients of `Σ_b weights[b] loss[b]`. Graves et al. 2006.
///
/// ```text
/// z(t) = rows[t] Wᵀ + b      e(t, c) = z_c - logZ      loss = -log Σ_alignments exp Σ_t e(t, c_t)
/// ```
///
/// Frames x classes are kept as far as [`Options::budget`] allows. FastEmit, delay penalty, label smoothing, z-loss, token
/// weights and clamp are those of [`Options`] and [`Targets`]: a label's delay counts where it begins, and the z-loss is a mean
/// over frames. Topology, activation and ω play no part. Labels that do not fit into their frames (two equal ones need a blank
/// between them) give the loss +inf and no gradient.
///
/// ```
/// use rnnt_loss::{Head, Layout, Options, Targets, ctc_loss};
/// let (rows, weight) = ([1.0f32; 2 * 4], [0.1; 3 * 4]); // T = 2, H = 4, C = 3: all classes are alike
/// let targets = Targets::new(0, vec![2], vec![vec![1]])?;
/// let head = Head::new(&weight, None, 4)?;
/// let out = ctc_loss(&rows, &head, Layout::Packed, &targets, &Options::default(), &[1.0])?;
/// assert!((out.losses[0] - 3f64.ln()).abs() < 1e-6); // blank label, label blank, label label: 3 of 9
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
///
/// # Shapes
/// `rows` *rows x H* in `layout` (label positions do not matter; [`Layout::Padded`]: *B x T x H*), `weights` *B*.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, scores of a frame that are NaN or +inf; big blanks, retained sites,
/// a factored blank, σ or skipping, which CTC does not have.
///
/// # Cost
/// 6 to 8 T H C floating-point operations an utterance, T x (1 + different labels) numbers, and O(T U) for the alignments.
pub fn ctc_loss<F: Real>(
    rows: &[F],
    head: &Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<RowsLoss<F>> {
    targets.check_classes(head.classes())?;
    let (objective, layout) = (Ctc::new(targets)?, Ctc::layout(layout));
    objective.check(options)?;
    let heads = Heads::new(head, None, targets.blank(), options)?;
    Workspace::new(options)?
        .rows_loss(("rows", rows), &heads, layout, objective, weights)
        .map_err(Error::at_frame)
}

const CTC: &str = "for CTC";

/// CTC alignments.
pub(crate) struct Ctc {
    /// Frame counts, without labels: frames are the sites.
    frames: Targets,
    utterances: Vec<Utterance>,
}

#[derive(Clone)]
struct Utterance {
    labels: Vec<u32>,
    /// Of each label, or none if all are 1.
    weights: Vec<f64>,
    /// Its different labels.
    classes: Vec<u32>,
}

impl Utterance {
    fn new(labels: &[u32], weights: &[f64]) -> Self {
        let mut classes = labels.to_vec();
        classes.sort_unstable();
        classes.dedup();
        Self { labels: labels.to_vec(), weights: weights.to_vec(), classes }
    }

    /// The column of each label; blank has the first.
    fn columns(&self) -> Vec<usize> {
        let column = |label| 1 + self.classes.partition_point(|class| class < label);
        self.labels.iter().map(column).collect()
    }

    /// Loss, and adjoints of the emissions, *T x columns*, which arrive as 0.
    fn sum(&self, emissions: &[f64], width: usize, options: &Options, adjoints: &mut [f64]) -> Result<f64> {
        let columns = self.columns();
        let spread = emissions.chunks_exact(width);
        let spread = spread.flat_map(|row| std::iter::once(row[0]).chain(columns.iter().map(|&c| row[c])));
        let spread: Vec<f64> = spread.collect();
        let out = forward_backward(&self.labels, &spread, &options.regularisers())?;
        for (into, row) in adjoints.chunks_exact_mut(width).zip(out.adjoints.chunks_exact(columns.len() + 1))
        {
            into[0] = row[0];
            for (label, (&column, adjoint)) in columns.iter().zip(&row[1..]).enumerate() {
                into[column] += self.weights.get(label).unwrap_or(&1.0) * adjoint;
            }
        }
        Ok(out.loss)
    }
}

impl Ctc {
    pub fn new(targets: &Targets) -> Result<Self> {
        if targets.tokens() > 2 {
            return Err(Error::misplaced("targets.big_blanks", CTC, targets.tokens() - 2));
        }
        if !targets.lattices().full() {
            return Err(Error::misplaced("targets.retained", CTC, "bands"));
        }
        let all = 0..targets.batch();
        let frames = all.clone().map(|b| targets.frames(b)).collect();
        let frames = Targets::new(targets.blank(), frames, vec![Vec::new(); targets.batch()])?;
        let utterances = all.map(|b| Utterance::new(targets.labels(b), targets.token_weights(b))).collect();
        Ok(Self { frames, utterances })
    }

    /// A row a frame.
    pub fn layout(layout: Layout) -> Layout {
        match layout {
            Layout::Packed => Layout::Packed,
            Layout::Padded { frames, .. } => Layout::Padded { frames, positions: 1 },
        }
    }

    /// Blank, and as many labels as the richest utterance has.
    fn most(&self) -> usize {
        1 + self.utterances.iter().map(|utterance| utterance.classes.len()).max().unwrap_or(0)
    }
}

impl Objective for Ctc {
    fn sites(&self) -> &Targets {
        &self.frames
    }

    fn columns(&self) -> Columns {
        Columns::Tokens
    }

    fn width(&self, _: &Options) -> (usize, usize) {
        (self.most(), self.most())
    }

    fn bytes(&self) -> usize {
        128 + 24 * self.most()
    }

    fn part(&self, utterances: Range<usize>) -> Self {
        let frames = self.frames.part(utterances.clone());
        Self { frames, utterances: self.utterances[utterances].to_vec() }
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.factored_blank {
            return Err(Error::misplaced("factored_blank", CTC, true));
        }
        match [("sigma", options.sigma), ("skip", options.skip)].into_iter().find(|(_, value)| *value != 0.0)
        {
            Some((argument, found)) => Err(Error::misplaced(argument, CTC, found)),
            None => Ok(()),
        }
    }

    fn selections(&self) -> Result<Vec<Selection>> {
        let (blank, most) = (self.frames.blank(), self.most());
        let (mut ids, mut active) = (Vec::new(), Vec::new());
        for (b, utterance) in self.utterances.iter().enumerate() {
            let own = 1 + utterance.classes.len();
            for _ in 0..self.frames.frames(b) {
                ids.push(blank);
                ids.extend_from_slice(&utterance.classes);
                ids.extend(std::iter::repeat_n(blank, most - own));
                active.extend((0..most).map(|column| column < own));
            }
        }
        Ok(vec![Selection::new(ids, active, most)?])
    }

    fn sum(
        &self,
        emissions: &[f64],
        options: &Options,
        _: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let (width, lattices) = (self.most(), self.frames.lattices());
        let mut rest = adjoints;
        let parts = losses.iter_mut().zip(&self.utterances).enumerate().map(|(b, (loss, utterance))| {
            let Range { start, end } = lattices.range(b);
            let own = rest.split_off_mut(..(end - start) * width).expect("every utterance has its adjoints");
            (b, utterance, &emissions[start * width..end * width], loss, own)
        });
        let parts: Vec<_> = parts.collect();
        let outcomes = parts.into_par_iter().map(|(b, utterance, emissions, loss, adjoints)| {
            let outcome = utterance.sum(emissions, width, options, adjoints);
            *loss = outcome.map_err(|error| error.in_group(b))?;
            Ok(())
        });
        // In utterance order, so that the same mistake always gives the same message.
        outcomes.collect::<Vec<Result<()>>>().into_iter().collect()
    }
}
