//! Loss, occupancies and gradients of the trivial joiner.
use std::ops::Range;

use kernels::Real;
use rayon::prelude::*;
use rnnt_dp::{Regularisers, Topology, Workspace};

use crate::{
    Batch, Error, Options, Plan, Ranges, Result, Scratches, Side, Source, Unigram, backward,
    emissions::Slopes,
    error::expect,
    forward::emit,
    moves::Moves,
    plan::groups,
    source::blocks_mut,
    sums::Sums,
    tiles::{self, cut},
    unigram::Row,
    utterance::Utterance,
};

/// What the first pass says about a batch, and what [`FirstPass::backward`] needs: a few numbers a site.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstPass<F> {
    /// `-log P` of each utterance, *B*; +inf where no path has a positive probability.
    pub losses: Vec<f64>,
    /// Posterior probability of each arc, *N x 2*: blank, next label; sites packed as `rnnt_dp::Lattices` says. 0 for
    /// arcs that do not exist and for impossible utterances.
    pub occupancies: Vec<f64>,
    batch: Batch,
    options: Options,
    moves: Moves,
    plan: Plan,
    classes: usize,
    sums: Vec<Sums<F>>,
    /// None, one for all, or one for each utterance.
    unigrams: Vec<Row<F>>,
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
/// term those of the labels thrice. In parallel over utterances and blocks of frames; memory as [`Plan::bytes`] of the default plan
/// says. Bits of an utterance do not depend on the others, unless [`Unigram::AllRows`] mixes them.
pub fn first_pass<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    options: &Options,
) -> Result<FirstPass<F>> {
    first_pass_with(source, batch, options, Plan::default())
}

/// The same in a given cut, and so in so many bytes.
///
/// # Errors
/// As there.
pub fn first_pass_with<F: Real, S: Source<F>>(
    source: &S,
    batch: &Batch,
    options: &Options,
    plan: Plan,
) -> Result<FirstPass<F>> {
    let moves = options.check()?;
    batch.check(source.rows(Side::Frames), source.rows(Side::Labels), source.classes())?;
    let mut values = vec![0.0; 2 * batch.lattices().sites()];
    let (sums, unigrams) = emit(source, batch, (options, moves), plan, &mut values)?;
    // Emissions are those of arcs already, whatever they are the sum of.
    let arcs = Topology::new(options.topology.arcs().to_vec())?;
    let (lattices, regularisers) = (batch.lattices(), Regularisers::default());
    let (mut losses, mut occupancies) = (vec![0.0; batch.len()], vec![0.0; values.len()]);
    // Lanes by the shapes alone, so that memory does not depend on the number of threads.
    let bytes = Workspace::bytes(lattices, &arcs, &regularisers, plan.lanes(batch));
    let mut workspace = Workspace::within(bytes);
    workspace.forward_backward(lattices, &arcs, &values, &regularisers, &mut losses, &mut occupancies)?;
    occupancies.par_iter_mut().with_min_len(1 << 12).for_each(|o| *o = 0.0 - *o);
    let (batch, options) = (batch.clone(), options.clone());
    let classes = source.classes();
    Ok(FirstPass { losses, occupancies, batch, options, moves, plan, classes, sums, unigrams })
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
        self.backward_into(source, weights, &mut gradient)?;
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
        let scratches = Scratches::new(self.plan.tasks);
        let shared = self.options.unigram == Unigram::AllRows;
        let mut total = vec![0.0; if shared && !self.unigrams.is_empty() { classes } else { 0 }];
        for group in groups(&self.batch, self.plan.rows) {
            let of_unigrams = self.group(source, &weights, group.clone(), gradient, &scratches);
            for (found, b) in of_unigrams.chunks_exact(classes).zip(group) {
                match shared {
                    true => total.iter_mut().zip(found).for_each(|(total, found)| *total += found),
                    false => self.unigrams[b].pull_back(source, found, gradient, most, &scratches),
                }
            }
        }
        if let (true, Some(row)) = (shared, self.unigrams.first()) {
            row.pull_back(source, &total, gradient, most, &scratches);
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
    fn group<S: Source<F>>(
        &self,
        source: &S,
        weights: &[f64],
        group: Range<usize>,
        gradient: &mut S::Gradient,
        scratches: &Scratches<F>,
    ) -> Vec<f64> {
        let slopes = |b: usize| {
            let utterance = Utterance::new(source, &self.batch, b, unigram(&self.unigrams, b));
            let occupancies = &self.occupancies[2 * self.batch.lattices().range(b).start..];
            let occupancies = &occupancies[..2 * self.batch.lattices().range(b).len()];
            let slopes = Slopes::new(
                &utterance,
                &self.sums[b],
                &self.options,
                self.moves.forced,
                occupancies,
                weights[b],
            );
            (utterance, slopes)
        };
        let work: Vec<_> = group.clone().into_par_iter().map(slopes).collect();
        let runs = |side| group.clone().map(|b| self.batch.rows(side, b)).collect::<Vec<_>>();
        let (frames, labels) = (runs(Side::Frames), runs(Side::Labels));
        let rows = |runs: &[Range<usize>]| runs.iter().map(Range::len).sum::<usize>();
        let classes = if self.unigrams.is_empty() { 0 } else { source.classes() };
        let mut of_unigrams = vec![0.0; group.len() * classes];
        let most = tiles::even(source.classes(), self.plan.classes);
        let mut run = |tile: &Range<usize>, of_frames: Vec<&mut [F]>, of_labels: Vec<&mut [F]>| {
            let mut unigrams: Vec<&mut [f64]> =
                of_unigrams.chunks_exact_mut(classes.max(1)).map(|row| &mut row[tile.clone()]).collect();
            unigrams.resize_with(group.len(), Default::default);
            let into = of_frames.into_par_iter().zip(of_labels).zip(unigrams);
            work.par_iter().zip(into).for_each(|((utterance, slopes), ((frames, labels), unigram))| {
                let of = (utterance, &self.sums[utterance.index]);
                backward::tile(of, slopes, tile, (frames, labels, unigram), scratches);
            });
        };
        if most == source.classes()
            && let Some([of_frames, of_labels]) = S::whole(gradient)
        {
            let whole = |matrix, runs| blocks_mut(matrix, most, runs, usize::MAX);
            run(&(0..most), whole(of_frames, &frames), whole(of_labels, &labels));
            return of_unigrams;
        }
        let mut of_frames = vec![F::ZERO; rows(&frames) * most];
        let mut of_labels = vec![F::ZERO; rows(&labels) * most];
        for tile in tiles::tiles(source.classes(), most) {
            let width = tile.len();
            let of_frames = &mut of_frames[..rows(&frames) * width];
            let of_labels = &mut of_labels[..rows(&labels) * width];
            let counts = |runs: &[Range<usize>]| runs.iter().map(|run| run.len() * width).collect::<Vec<_>>();
            run(&tile, cut(of_frames, counts(&frames)), cut(of_labels, counts(&labels)));
            source.pull_back(Side::Frames, &frames, tile.clone(), of_frames, gradient, scratches);
            source.pull_back(Side::Labels, &labels, tile, of_labels, gradient, scratches);
        }
        of_unigrams
    }
}

/// That of an utterance, if there is one.
fn unigram<F>(unigrams: &[Row<F>], utterance: usize) -> Option<&Row<F>> {
    unigrams.get(utterance).or(unigrams.first())
}
