//! The one dial between memory and work.

/// How many bytes a call may hold beside its arguments and results.
///
/// Scores are kept from forward to backward for as many sites as fit (6 N H C floating-point operations in all) and
/// recomputed for the others (8 N H C). Results are the same to rounding for every budget and the same bits for the
/// same budget. What is left after all scores keeps hidden rows, so that they are made and packed once. The dial is a
/// promise: no call holds more than its budget. One below [`Plan::smallest`](crate::Plan::smallest) is an error.
///
/// ```
/// use panda_core::{MemoryBudget, Plan, Precision, Shape};
/// let shape = Shape { sites: 2_600, hidden: 512, classes: 8_192, selected: 2 };
/// let plan = Plan::<f32>::new(shape, Precision::Full, MemoryBudget::bytes(200 << 20))?;
/// assert_eq!(plan.kept, 2_600); // 85 MB of scores fit
/// assert_eq!(Plan::<f32>::new(shape, Precision::Full, MemoryBudget::recompute())?.kept, 0);
/// # Ok::<(), panda_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    bytes: usize,
    keep: bool,
}

impl MemoryBudget {
    /// At most so many bytes.
    pub const fn bytes(bytes: usize) -> Self {
        Self { bytes, keep: true }
    }

    /// No score is kept; waves and tiles have the size at which products run best, within 56 MiB or the smallest cut, beside
    /// the few numbers of each site.
    pub const fn recompute() -> Self {
        Self { bytes: DEFAULT, keep: false }
    }

    /// Every score is kept, whatever it takes.
    pub const fn unlimited() -> Self {
        Self { bytes: usize::MAX, keep: true }
    }

    /// The limit in bytes.
    pub const fn limit(&self) -> usize {
        self.bytes
    }

    /// Whether scores may be kept at all.
    pub const fn keeps(&self) -> bool {
        self.keep
    }
}

/// 56 MiB: tiles at their best size and, for H = 512, the scores of some 3,600 of 50,500 sites over 1,024 classes.
const DEFAULT: usize = 56 << 20;

impl Default for MemoryBudget {
    /// 56 MiB.
    fn default() -> Self {
        Self::bytes(DEFAULT)
    }
}
