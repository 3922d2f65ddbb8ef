//! Loss, occupancies and gradients of the trivial joiner.
use std::ops::Range;

use kernels::{Real, WorkerSlots, ensure_len, items_mut, par_for, parts_mut, reset};
use rayon::prelude::*;
use rnnt_dp::{Regularisers, Topology};

use crate::{
    Batch, Error, Options, Plan, Ranges, Result, Side, Source, TaskScratch, Workspace, backward,
    emissions::Slopes,
    error::expect,
    forward::emit,
    moves::Moves,
    plan::{GroupSizes, groups},
    source::blocks_mut,
    sums::{BatchSums, UtteranceSums},
    tiles::{self, cut, part},
    unigram::UnigramRow,
    utterance::UtteranceScores,
    workspace::reserve_slots,
};

/// What the first pass says about a batch, and what [`FirstPass::backward`] needs: a few numbers a site.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstPass<F> {
    /// `-log P` of each utterance, *B*; +inf where no path has a positive probability.
    pub losses: Vec<f64>,
    /// Posterior probability of each arc, *N x 2*: blank, next label; sites packed as `rnnt_dp::Lattices` says. 0 for
    /// arcs that do not exist and for impossible utterances.
    pub occupancies: Vec<f64>,
    pub(crate) sums: BatchSums<F>,
    /// None, one for all, or one for each utterance.
    pub(crate) unigrams: Vec<UnigramRow<F>>,
    batch: Batch,
    options: Options,
    moves: Moves,
    plan: Plan,
    classes: usize,
}

/// Transducer loss of the trivial joiner, `softmax(am[t] + lm[u])`, without any frames x labels x classes tensor.
///
/// The formulas are at the top of the crate.
///
/// # Shapes
/// `source`: scores `am` and `lm` of C classes, in rows where `batch` says.
///
/// # Errors
/// Options out of range, labels outside the classes, too few rows; a score that is NaN or +inf in a row of an
/// utterance, a site without any finite score. An utterance without a path is not an error: its loss is +inf and
/// its gradients are 0.
///
/// # Cost
/// Σ T (U+1) C multiply-adds and Σ (T+U+1) C exponentials, and what `source` takes for its scores; with an am-only
/// term those of the labels thrice. In parallel over utterances and blocks of frames; memory as [`Plan::scratch`] of the default plan
/// says. Bits of an utterance do not depend on the others, unless [`Unigram::AllRows`](crate::Unigram::AllRows) mixes them.
pub fn first_pass<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    options: &Options,
) -> Result<FirstPass<F>> {
    first_pass_with(source, batch, options, Plan::default(), &mut Workspace::default())
}

/// The same in a given cut, and so in so many bytes, which stay in the workspace; [`Workspace::recycle`] takes back the rest.
///
/// # Errors
/// As there.
pub fn first_pass_with<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    options: &Options,
    plan: Plan,
    workspace: &mut Workspace<F>,
) -> Result<FirstPass<F>> {
    let moves = options.check()?;
    batch.check(source.rows(Side::Frames), source.rows(Side::Labels), source.classes())?;
    let (sums, unigrams) = emit(source, batch, (options, moves), plan, workspace)?;
    // Emissions are those of arcs already, whatever they are the sum of.
    let arcs = Topology::new(options.topology.arcs().to_vec())?;
    let (shapes, regularisers) = (batch.lattices(), Regularisers::default());
    let Workspace { lattices, wide, spare, .. } = workspace;
    let values = &wide[..2 * shapes.sites()];
    let mut losses = vec![0.0; batch.len()];
    let mut occupancies = reset(std::mem::take(&mut spare.occupancies), values.len(), 0.0);
    // Lanes by the shapes alone, so that memory does not depend on the number of threads.
    let bytes = rnnt_dp::Workspace::scratch(shapes, &arcs, &regularisers, plan.lanes(batch)).bytes();
    lattices.keep_within(bytes.max(lattices.held()));
    lattices.forward_backward(shapes, &arcs, values, &regularisers, &mut losses, &mut occupancies)?;
    par_for(parts_mut(&mut occupancies, 1 << 12), |_, some| some.iter_mut().for_each(|o| *o = 0.0 - *o));
    let (batch, options) = (batch.clone(), options.clone());
    let classes = source.classes();
    Ok(FirstPass { losses, occupancies, sums, unigrams, batch, options, moves, plan, classes })
}

impl<F: Real> FirstPass<F> {
    /// Gradients of `Σ_b weights[b] losses[b]`, from the same source; impossible utterances have none.
    ///
    /// # Shapes
    /// `weights` *B*.
    ///
    /// # Errors
    /// A weight that is not finite, a source of another shape.
    ///
    /// # Cost
    /// Two products of the size that forward has one of, the exponentials again, and what `source` takes for
    /// scores and their gradients; memory as the plan says.
    pub fn backward<S: Source<F>>(&self, source: &S, weights: &[f64]) -> Result<S::Gradient> {
        let mut gradient = source.zero_gradient();
        self.backward_into(source, weights, &mut gradient, &mut Workspace::default())?;
        Ok(gradient)
    }

    /// The same into a gradient that is still zero in the rows of the batch.
    ///
    /// # Errors
    /// As there.
    pub fn backward_into<S: Source<F>>(
        &self,
        source: &S,
        weights: &[f64],
        gradient: &mut S::Gradient,
        workspace: &mut Workspace<F>,
    ) -> Result<()> {
        expect("weights", self.batch.len(), weights.len())?;
        let possible = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(&self.losses).map(possible).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::UtteranceWeight { utterance, found: weights[utterance] });
        }
        self.batch.check(source.rows(Side::Frames), source.rows(Side::Labels), source.classes())?;
        let (classes, most) = (source.classes(), self.plan.classes);
        expect("source.classes", self.classes, classes)?;
        let Workspace { slots, narrow, wide, .. } = workspace;
        let shared = self.options.shares_unigram();
        let sizes = GroupSizes::new(classes, &self.batch, &self.options, self.plan);
        reserve_slots(slots, self.plan.tasks, sizes.of_task::<F, S>(source));
        let sums = self.sums.cut(&sizes.of_utterances);
        let groups = groups(&self.batch, self.plan.rows);
        let [of_narrow, of_wide] = sizes.most(&groups, |b| sizes.backward::<F>(b, Slopes::rare(&sums[b])));
        ensure_len(narrow, of_narrow, F::ZERO);
        let of_total = if shared { classes } else { 0 };
        ensure_len(wide, of_total + of_wide, 0.0);
        let (total, wide) = wide.split_at_mut(of_total);
        total.fill(0.0);
        for group in groups {
            let (of, room) =
                ((group.clone(), &weights[group.clone()]), (&sizes, &mut narrow[..], &mut *wide));
            let of_unigrams = self.group(source, of, gradient, &sums, room, slots);
            for (found, b) in of_unigrams.chunks_exact(classes).zip(group) {
                match shared {
                    true => total.iter_mut().zip(found).for_each(|(total, found)| *total += found),
                    false => self.unigrams[b].pull_back(source, found, gradient, (most, narrow), slots),
                }
            }
        }
        if let (true, Some(row)) = (shared, self.unigrams.first()) {
            row.pull_back(source, total, gradient, (most, narrow), slots);
        }
        Ok(())
    }

    /// The bands of label positions that keep the most of the occupancies, `s_range` wide.
    ///
    /// # Errors
    /// As [`Ranges::new`].
    pub fn ranges(&self, s_range: usize) -> Result<Ranges> {
        Ranges::new(&self.occupancies, self.batch.lattices(), &self.options.topology, s_range)
    }

    /// The batch that this is about.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Adds the gradient of a group of utterances; returns that of their unigrams' probabilities, *group x C*.
    fn group<'r, S: Source<F>>(
        &self,
        source: &S,
        (group, weights): (Range<usize>, &[f64]),
        gradient: &mut S::Gradient,
        sums: &[UtteranceSums<F>],
        (sizes, mut narrow, mut wide): (&GroupSizes, &mut [F], &'r mut [f64]),
        slots: &WorkerSlots<TaskScratch<F>>,
    ) -> &'r [f64] {
        let classes = if self.unigrams.is_empty() { 0 } else { source.classes() };
        let of_unigrams = part(&mut wide, group.len() * classes);
        of_unigrams.fill(0.0);
        let rooms_of = group.clone().map(|b| {
            let slopes = part(&mut narrow, Slopes::<F>::count(sizes.of_utterances[b]));
            let tiles = part(&mut narrow, sizes.contexts(b));
            (slopes, part(&mut wide, Slopes::rare(&sums[b])), tiles)
        });
        let rooms_of: Vec<_> = rooms_of.collect();
        let slopes = |(b, (mut room, rare, tiles)): (usize, (_, _, _))| {
            let utterance = UtteranceScores::new(source, &self.batch, b, unigram(&self.unigrams, b));
            let Range { start, end } = self.batch.lattices().range(b);
            let of = (&self.occupancies[2 * start..2 * end], weights[b - group.start]);
            let options = (&self.options, self.moves.forced);
            let slopes = Slopes::new(&utterance, &sums[b], options, of, (&mut room, rare));
            (utterance, slopes, tiles)
        };
        let mut work: Vec<_> = group.clone().into_par_iter().zip(rooms_of).map(slopes).collect();
        let runs = |side| group.clone().map(|b| self.batch.rows(side, b)).collect::<Vec<_>>();
        let (frames, labels) = (runs(Side::Frames), runs(Side::Labels));
        let rows = |runs: &[Range<usize>]| runs.iter().map(Range::len).sum::<usize>();
        let most = tiles::even(source.classes(), self.plan.classes);
        let mut run = |tile: &Range<usize>, mut of_frames: Vec<&mut [F]>, mut of_labels: Vec<&mut [F]>| {
            let mut unigrams: Vec<&mut [f64]> =
                of_unigrams.chunks_exact_mut(classes.max(1)).map(|row| &mut row[tile.clone()]).collect();
            unigrams.resize_with(group.len(), Default::default);
            let into = (items_mut(&mut of_frames), items_mut(&mut of_labels), items_mut(&mut unigrams));
            par_for((items_mut(&mut work), into), |_, ((utterance, slopes, room), into)| {
                let (frames, labels, unigram) = into;
                let of = (&*utterance, &sums[utterance.index]);
                backward::tile(of, slopes, tile, (frames, labels, unigram), room, slots);
            });
        };
        if most == source.classes()
            && let Some([of_frames, of_labels]) = S::whole(gradient)
        {
            let whole = |matrix, runs| blocks_mut(matrix, most, runs, usize::MAX);
            run(&(0..most), whole(of_frames, &frames), whole(of_labels, &labels));
            return of_unigrams;
        }
        let of_frames = part(&mut narrow, rows(&frames) * most);
        let of_labels = part(&mut narrow, rows(&labels) * most);
        for tile in tiles::tiles(source.classes(), most) {
            let width = tile.len();
            let of_frames = &mut of_frames[..rows(&frames) * width];
            let of_labels = &mut of_labels[..rows(&labels) * width];
            let counts = |runs: &[Range<usize>]| runs.iter().map(|run| run.len() * width).collect::<Vec<_>>();
            run(&tile, cut(of_frames, counts(&frames)), cut(of_labels, counts(&labels)));
            source.pull_back(Side::Frames, &frames, tile.clone(), of_frames, gradient, slots);
            source.pull_back(Side::Labels, &labels, tile, of_labels, gradient, slots);
        }
        of_unigrams
    }
}

/// That of an utterance, if there is one.
fn unigram<F>(unigrams: &[UnigramRow<F>], utterance: usize) -> Option<&UnigramRow<F>> {
    unigrams.get(utterance).or(unigrams.first())
}
