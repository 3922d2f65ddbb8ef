//! Selects the k largest scores of a site, for beam search.

/// Largest number of chunks into which a row is split.
const MAX_CHUNKS: usize = 64;
/// Number of values in a chunk of a row of usual length.
const CHUNK_LEN: usize = 64;
/// Values that are compared at a time.
const LANES: usize = 16;

/// Writes the largest values with their indices, largest first; returns their number.
///
/// `out` is filled; equal values are in the order of their indices. The maxima of chunks are found
/// first: the *k*-th largest of them is a lower bound of the *k*-th value of the row, so that few
/// values are compared one by one.
///
/// Cost: `O(n)` for n values, vectorized, and `O(k^2)` for the order of the k in `out`.
pub(crate) fn select_largest(row: &[f32], out: &mut [(f32, u32)]) -> usize {
    // Maximum of each chunk.
    let chunk_len = row
        .len()
        .div_ceil(MAX_CHUNKS)
        .next_multiple_of(LANES)
        .max(CHUNK_LEN.min(row.len().div_ceil(out.len().max(1))));
    let mut maxima = [f32::NEG_INFINITY; MAX_CHUNKS];
    let chunks = row.chunks(chunk_len).len();
    for (max, chunk) in maxima.iter_mut().zip(row.chunks(chunk_len)) {
        *max = maximum(chunk);
    }
    // Lower bound of the last value that is written.
    let bound = match out.len() <= chunks {
        true => {
            let mut sorted = maxima;
            let k = out.len() - 1;
            *sorted[..chunks].select_nth_unstable_by(k, |a, b| b.total_cmp(a)).1
        }
        false => f32::NEG_INFINITY,
    };
    // Insertion sort of the values that reach the bound.
    let mut count = 0;
    for (chunk_index, (chunk, max)) in row.chunks(chunk_len).zip(maxima).enumerate() {
        if max < bound {
            continue;
        }
        for (i, &value) in chunk.iter().enumerate() {
            if value < bound || (count == out.len() && value <= out[count - 1].0) {
                continue;
            }
            let mut position = count.min(out.len() - 1);
            while position > 0 && out[position - 1].0 < value {
                out[position] = out[position - 1];
                position -= 1;
            }
            out[position] = (value, (chunk_index * chunk_len + i) as u32);
            count = (count + 1).min(out.len());
        }
    }
    count
}

/// Returns the largest value, vectorized.
fn maximum(values: &[f32]) -> f32 {
    let (groups, rest) = values.as_chunks::<LANES>();
    let mut best = [f32::NEG_INFINITY; LANES];
    for group in groups {
        best.iter_mut()
            .zip(group)
            .for_each(|(best, &value)| *best = if value > *best { value } else { *best });
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &value| best.max(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_k_largest_match_a_full_sort() {
        let mut seed = 1u32;
        for count in [1, 2, 15, 64, 65, 300, 1024, 1025, 9000] {
            for k in [1, 2, 4, 8, 63, 64, 65, 300, 2000].into_iter().filter(|&k| k <= count) {
                for distinct_values in [1 << 24, 8, 1] {
                    let row: Vec<f32> = (0..count)
                        .map(|_| {
                            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                            if seed.is_multiple_of(50) {
                                f32::NEG_INFINITY
                            } else {
                                ((seed >> 8) % distinct_values) as f32
                            }
                        })
                        .collect();
                    let mut sorted: Vec<(f32, u32)> = row.iter().copied().zip(0..).collect();
                    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
                    let mut out = vec![(0.0, 0); k];
                    assert_eq!(select_largest(&row, &mut out), k);
                    assert_eq!(out, sorted[..k], "{k} of {count}, {distinct_values}");
                }
            }
        }
    }
}
