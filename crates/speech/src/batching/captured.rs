//! A few lengths that all others are padded to, so that steps come in few shapes.
use super::buckets::setting;
use crate::Result;

/// `L_i = longest - ⌊i · longest / count⌋` for i from 0 to below `count`: falling, the smallest about `longest / count`.
///
/// With more lengths than `longest`, some are there twice.
///
/// # Errors
/// [`crate::Error::Setting`] for a number that is 0, or a product that cannot be counted.
///
/// ```
/// use speech::batching::{captured_lengths, covering};
///
/// let lengths = captured_lengths(17, 5)?;
/// assert_eq!(lengths, [17, 14, 11, 7, 4]);
/// assert_eq!([covering(&lengths, 1), covering(&lengths, 11), covering(&lengths, 18)], [Some(4), Some(11), None]);
/// # Ok::<(), speech::Error>(())
/// ```
pub fn captured_lengths(longest: usize, count: usize) -> Result<Vec<usize>> {
    if longest == 0 || longest.checked_mul(count).is_none() {
        return Err(setting("longest", "at least 1, and a product with count that can be counted", longest));
    }
    if count == 0 {
        return Err(setting("count", "at least 1", count));
    }
    Ok((0..count).map(|i| longest - i * longest / count).collect())
}

/// The smallest of some lengths that holds `length`; none if all are shorter.
pub fn covering(lengths: &[usize], length: usize) -> Option<usize> {
    lengths.iter().copied().filter(|&captured| captured >= length).min()
}
