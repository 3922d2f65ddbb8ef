//! Orders and places of a batch's utterances.
use super::buckets::setting;
use crate::Result;

/// Order of a batch in which short and long alternate: the shorter half, rising, at even places, the longer half, falling, at odd
/// ones. Of an odd number the one in the middle counts as short; ties by index.
///
/// Contiguous parts of even size have about the same length in all, and each has its share of long utterances.
///
/// ```
/// assert_eq!(speech::batching::presort(&[5.0, 1.0, 4.0, 2.0, 3.0]), [1, 0, 3, 2, 4]);
/// ```
pub fn presort(durations: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..durations.len()).collect();
    order.sort_by(|&a, &b| durations[a].total_cmp(&durations[b]));
    let mut both = order.into_iter();
    let mut at = 0;
    std::iter::from_fn(|| {
        at += 1;
        if at % 2 == 1 { both.next() } else { both.next_back() }
    })
    .collect()
}

/// Ends of the utterances' rows in a packed lattice: sums of `T_b (U_b + 1)` up to and with each utterance.
///
/// # Errors
/// [`crate::Error::Setting`] if lists differ in length, or rows cannot be counted.
///
/// ```
/// assert_eq!(speech::batching::packed_offsets(&[3, 2], &[1, 4])?, [6, 16]);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn packed_offsets(frames: &[usize], labels: &[usize]) -> Result<Vec<usize>> {
    if frames.len() != labels.len() {
        return Err(setting("labels", &format!("{} counts, as of frames", frames.len()), labels.len()));
    }
    let mut end = 0usize;
    let rows = frames.iter().zip(labels).map(|(&t, &u)| {
        let next = u.checked_add(1).and_then(|u| t.checked_mul(u)).and_then(|rows| end.checked_add(rows));
        end = next.ok_or_else(|| setting("frames", "rows that can be counted", t))?;
        Ok(end)
    });
    rows.collect()
}
