//! Sizes of the parts that a plan's waves and tiles fall into, for a kernel: what tasks own, and the bytes of all buffers.
use std::sync::Mutex;

use kernels::packed::{
    Full, Operand, OperandFormat,
    half::{DEPTH, Half},
};

use crate::{Plan, Precision, Real, Shape};

/// Rows of a task that makes hidden rows, pulls gradients back or merges statistics.
pub(crate) const FEW: usize = 4;
/// Sites of a task that looks at a few numbers of each.
pub(crate) const MANY: usize = 1 << 10;
/// Steps of a sum that a task packs of a weight: the less for more tasks where a flight has few.
const STEPS: [usize; 2] = [64, 32];
/// Tasks of a step that are enough: two for each of 64 threads.
pub(crate) const TASKS: usize = 128;
/// Scores that pass have room for so many threads at once; more wait for each other.
const SLOTS: usize = 64;
/// What the queues of the thread pool take meanwhile, however large the call.
const QUEUES: usize = 16 << 10;

/// How the engine cuts a wave for a kernel, and words of the parts of its panels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Rows of a left micro-panel, columns of a right one.
    pub mr: usize,
    pub nr: usize,
    /// Rows of a task's scores.
    pub strip: usize,
    /// Rows or classes of a task's products.
    pub leaf: usize,
    /// Rows or classes whose products read the same operand one after the other.
    pub piece: usize,
    /// Steps of a weight's micro-panel that a task packs.
    pub steps: usize,
    /// Strips of a block.
    pub strips: usize,
    /// Of a block.
    pub h_left: usize,
    pub h_right: usize,
    /// Of a tile.
    pub wt_right: usize,
    pub w_right: usize,
    /// Of a block in a tile.
    pub gt_left: usize,
    pub g_left: usize,
}

impl Cut {
    pub fn new<F: Real, N: OperandFormat<F>>(plan: &Plan<F>, h: usize) -> Self {
        let Plan { block, tile_classes: tile, .. } = *plan;
        let (mr, nr) = (N::side(Operand::Left), N::side(Operand::Right));
        let strip = mr;
        let weights = plan.tiles.saturating_mul(tile).saturating_mul(h);
        // The average flight is shorter than the longest.
        let few = weights / (nr * STEPS[0]) < 3 * TASKS / 2;
        Self {
            mr,
            nr,
            strip,
            leaf: mr,
            piece: 8 * N::strip(),
            steps: if N::STEPWISE { STEPS[usize::from(few)] } else { DEPTH },
            strips: block.div_ceil(strip),
            h_left: N::words(Operand::Left, block, h),
            h_right: N::words(Operand::Right, h, block),
            wt_right: N::words(Operand::Right, tile, h),
            w_right: N::words(Operand::Right, h, tile),
            gt_left: N::words(Operand::Left, tile, block),
            g_left: N::words(Operand::Left, block, tile),
        }
    }

    /// The same for a precision.
    pub fn of<F: Real>(plan: &Plan<F>, h: usize, precision: Precision) -> Self {
        match precision {
            Precision::Full => Self::new::<F, Full>(plan, h),
            Precision::Bf16 => Self::new::<F, Half>(plan, h),
        }
    }

    /// Tasks that pack a weight on the right, NR columns and some steps of the sum each.
    pub fn packing(&self, columns: usize, depth: usize) -> usize {
        columns.div_ceil(self.nr).saturating_mul(depth.div_ceil(self.steps))
    }

    /// How many tasks may have scores that pass at the same time.
    pub fn slots<F>(&self, plan: &Plan<F>) -> usize {
        plan.tiles.saturating_mul(plan.wave.div_ceil(plan.block)).saturating_mul(self.strips).min(SLOTS)
    }
}

/// Bytes of everything that a call allocates beside its arguments and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Site list, which sites count, rows, gradient, scores that pass, column sums, statistics, selected scores, six panels.
    pub buffers: [usize; 14],
    /// What outlives a forward, and what the workspace holds for the next one when nobody needs it any more: scores, rows,
    /// largest score, log-sum and emissions of each site.
    pub between: [usize; 5],
    /// What lives inside of a step.
    pub passing: usize,
}

impl Parts {
    /// Those of a plan that fits the shape.
    pub fn new<F: Real>(plan: &Plan<F>, shape: Shape, precision: Precision) -> Self {
        let Shape { sites, hidden, classes, selected } = shape;
        let cut = Cut::of(plan, hidden, precision);
        let (element, word) = (size_of::<F>(), word::<F>(precision));
        let Plan { wave, block, tile_classes: tile, tiles, kept, .. } = *plan;
        let blocks = wave.div_ceil(block);
        let slots = cut.slots(plan);
        let lock = size_of::<Mutex<&mut [F]>>();
        let panel = |parts: &[usize]| product(parts).saturating_mul(word).saturating_add(LINE);
        let (held, _) = plan.held(cut.strip);
        Self {
            buffers: [
                product(&[wave, size_of::<usize>()]),
                counts(sites),
                product(&[wave, hidden, element]),
                product(&[wave, hidden, element]),
                product(&[slots, product(&[cut.strip.min(wave), tile, element]).saturating_add(SLOT)]),
                product(&[tiles, blocks, cut.strips, tile, element]),
                product(&[tiles, wave, size_of::<(F, f64)>()]),
                product(&[tiles, wave, selected.max(1), element]),
                panel(&[blocks, cut.h_left]),
                panel(&[blocks, cut.h_right]),
                panel(&[tiles, cut.wt_right]),
                panel(&[tiles, cut.w_right]),
                panel(&[tiles, blocks, cut.gt_left]),
                panel(&[tiles, blocks, cut.g_left]),
            ],
            between: [
                product(&[kept, classes, element]),
                product(&[held, hidden, element]),
                product(&[sites, element]),
                product(&[sites, size_of::<f64>()]),
                product(&[sites, selected, size_of::<f64>()]),
            ],
            // Each block's lock, of a tile of gradients or of rows.
            passing: product(&[tiles.max(1), blocks, lock]).saturating_add(QUEUES),
        }
    }

    /// All of them.
    pub fn bytes(&self) -> usize {
        let parts = self.buffers.iter().chain(&self.between).chain([&self.passing]);
        parts.fold(0, |sum: usize, part| sum.saturating_add(*part))
    }
}

/// What a buffer that begins with a cache line may take more.
const LINE: usize = 64;
/// A lock and the buffer that it guards.
const SLOT: usize = size_of::<Mutex<Vec<f64>>>();

/// Bytes of a packed word.
fn word<F: Real>(precision: Precision) -> usize {
    match precision {
        Precision::Full => size_of::<<Full as OperandFormat<F>>::Word>(),
        Precision::Bf16 => size_of::<<Half as OperandFormat<F>>::Word>(),
    }
}

/// Bytes of what says which sites count.
fn counts(sites: usize) -> usize {
    product(&[sites, size_of::<bool>()])
}

/// Bytes of every site: largest score, log-sum, emissions, whether it counts.
pub(crate) fn compact<F>(sites: usize, selected: usize) -> usize {
    let of_site = selected.saturating_mul(size_of::<f64>()).saturating_add(size_of::<F>() + size_of::<f64>());
    sites.saturating_mul(of_site).saturating_add(counts(sites))
}

fn product(sizes: &[usize]) -> usize {
    // A zero makes nothing of factors that would not fit.
    if sizes.contains(&0) { 0 } else { sizes.iter().fold(1, |p: usize, &size| p.saturating_mul(size)) }
}
