//! Enumeration of every alignment path of a tiny lattice.
//!
//! The caller lists the arcs of the topology ([`PathArc`]), so that every topology of the workspace
//! can be checked by its definition. A path starts at site `(0, 0)`. An arc taken at `(t, u)` adds
//! the emission of its column at that site and leads to `(t + frames, u + labels)`. The path ends
//! with an arc that leads exactly to `(T, U)` and may end a path.

use crate::error::{Error, Result, shape_error, value_error};

/// Largest number of paths that are enumerated.
pub const MAX_PATHS: usize = 200_000;

/// An arc from a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathArc {
    /// Frames that the arc consumes.
    pub frames: usize,
    /// Labels that the arc emits.
    pub labels: usize,
    /// Column of the emissions with its log-probability.
    pub column: usize,
    /// Whether the arc may end a path.
    pub may_end: bool,
}

/// Arcs of the regular transducer: column 0 is the blank, column 1 the next label.
pub const REGULAR_ARCS: [PathArc; 2] = [
    PathArc { frames: 1, labels: 0, column: 0, may_end: true },
    PathArc { frames: 0, labels: 1, column: 1, may_end: false },
];

/// Sums over all paths of one lattice.
#[derive(Clone, Debug)]
pub struct PathSums {
    /// Number of paths, including those of probability zero.
    pub count: usize,
    /// `log Σ exp(score of path)`; -inf where no path has a probability.
    pub log_likelihood: f64,
    /// `[N, columns]`: posterior probability of taking a column at a site; all zero without a path.
    pub occupancies: Vec<f64>,
}

/// Sums over every path from `(0, 0)` to `(frames, labels)`.
///
/// # Shapes
/// `emissions` `[N, columns]` with `N = frames * (labels + 1)` sites, t-major: row
/// `t * (labels + 1) + u`.
///
/// # Errors
/// A wrong length, no frames, an arc that does not move or names a missing column, NaN or +inf
/// emissions, or more than [`MAX_PATHS`] paths.
///
/// Cost: O(paths · (frames + labels)).
///
/// ```
/// use oracle::paths::{REGULAR_ARCS, sum_over_paths};
/// // Three frames and one label, which may be emitted in any frame.
/// let sums = sum_over_paths(&[0.5f64.ln(); 12], 3, 1, 2, &REGULAR_ARCS)?;
/// assert_eq!(sums.count, 3);
/// assert!((sums.log_likelihood - (3.0 / 16.0f64).ln()).abs() < 1e-12);
/// # Ok::<(), oracle::Error>(())
/// ```
pub fn sum_over_paths(
    emissions: &[f64],
    frames: usize,
    labels: usize,
    columns: usize,
    arcs: &[PathArc],
) -> Result<PathSums> {
    let positions = labels + 1;
    if frames == 0 || columns == 0 {
        return Err(shape_error("frames, columns", "at least one of each", format!("{frames}, {columns}")));
    }
    if emissions.len() != frames * positions * columns {
        let expected = format!("T (U + 1) columns = {}", frames * positions * columns);
        return Err(shape_error("emissions", expected, emissions.len()));
    }
    for (i, arc) in arcs.iter().enumerate() {
        if arc.frames + arc.labels == 0 || arc.column >= columns {
            let expected = format!("an arc that moves, with a column below {columns}");
            return Err(value_error("arcs", i, expected, format!("{arc:?}")));
        }
    }
    if let Some(i) = emissions.iter().position(|value| value.is_nan() || *value == f64::INFINITY) {
        return Err(value_error("emissions", i, "a number below +inf", emissions[i]));
    }
    let paths = enumerate_paths(frames, labels, columns, arcs)?;
    let scores: Vec<f64> = paths.iter().map(|path| path.iter().map(|&i| emissions[i]).sum()).collect();
    let log_likelihood = log_sum(&scores);
    let mut occupancies = vec![0.0; emissions.len()];
    for (path, score) in paths.iter().zip(&scores).filter(|(_, score)| score.is_finite()) {
        for &i in path {
            occupancies[i] += (score - log_likelihood).exp();
        }
    }
    Ok(PathSums { count: paths.len(), log_likelihood, occupancies })
}

/// `log Σ exp`; -inf for an empty slice.
pub(crate) fn log_sum(scores: &[f64]) -> f64 {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + scores.iter().map(|score| (score - max).exp()).sum::<f64>().ln()
}

/// Each path as the indices of its emissions.
fn enumerate_paths(
    frames: usize,
    labels: usize,
    columns: usize,
    arcs: &[PathArc],
) -> Result<Vec<Vec<usize>>> {
    let count = count_paths(frames, labels, arcs);
    if count > MAX_PATHS as f64 {
        return Err(Error::TooLarge { argument: "alignment paths", limit: MAX_PATHS, found: count });
    }
    let mut complete = Vec::with_capacity(count as usize);
    let mut partial = vec![(0, 0, Vec::new())];
    while let Some((t, u, path)) = partial.pop() {
        for arc in arcs {
            let mut longer: Vec<usize> = path.clone();
            longer.push((t * (labels + 1) + u) * columns + arc.column);
            let (next_t, next_u) = (t + arc.frames, u + arc.labels);
            if (next_t, next_u) == (frames, labels) && arc.may_end {
                complete.push(longer);
            } else if next_t < frames && next_u <= labels {
                partial.push((next_t, next_u, longer));
            }
        }
    }
    Ok(complete)
}

/// Counts the paths without enumerating them; f64, so that it cannot overflow.
fn count_paths(frames: usize, labels: usize, arcs: &[PathArc]) -> f64 {
    let positions = labels + 1;
    // Number of paths to each site.
    let mut ways = vec![0.0; frames * positions];
    ways[0] = 1.0;
    let mut complete = 0.0;
    // Every arc advances t or u, so t-major order is topological.
    for t in 0..frames {
        for u in 0..positions {
            for arc in arcs {
                let (next_t, next_u) = (t + arc.frames, u + arc.labels);
                if (next_t, next_u) == (frames, labels) && arc.may_end {
                    complete += ways[t * positions + u];
                } else if next_t < frames && next_u <= labels {
                    ways[next_t * positions + next_u] += ways[t * positions + u];
                }
            }
        }
    }
    complete
}
