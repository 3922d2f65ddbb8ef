//! Utterances that are too long to train with.

/// Which utterances stay, and what is lost without the others.
#[derive(Debug, Clone, PartialEq)]
pub struct Filtered {
    /// Indices of those that stay, in order.
    pub kept: Vec<usize>,
    /// How many are left out.
    pub left_out: usize,
    /// Their seconds in all.
    pub seconds_left_out: f64,
}

/// Keeps what is at most `max_seconds` long, which itself still counts as short enough; a duration that is no number does not.
///
/// ```
/// let found = speech::batching::no_longer_than(&[1.0, 16.7, 20.0], 16.7);
/// assert_eq!((found.kept, found.left_out, found.seconds_left_out), (vec![0, 1], 1, 20.0));
/// ```
pub fn no_longer_than(seconds: &[f64], max_seconds: f64) -> Filtered {
    let (kept, others): (Vec<usize>, Vec<usize>) =
        (0..seconds.len()).partition(|&i| seconds[i] <= max_seconds);
    Filtered { left_out: others.len(), seconds_left_out: others.iter().map(|&i| seconds[i]).sum(), kept }
}
