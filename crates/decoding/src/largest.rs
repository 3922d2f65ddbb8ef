//! The largest values of a row.

/// Largest number of runs into which a row is cut, and the usual length of one.
const RUNS: usize = 64;
const RUN: usize = 64;

/// Writes the largest values with their places, largest first, equal ones in the order of their places; returns how many: all that
/// there is room for.
///
/// The row is cut into runs, whose largest values are found first: the *k*-th of them bounds the *k*-th value of the row from below, so
/// that few values need a closer look.
///
/// Cost: `O(n)`, vectorised, and `O(k^2)` to put them in order.
pub(crate) fn largest(row: &[f32], out: &mut [(f32, u32)]) -> usize {
    let run =
        row.len().div_ceil(RUNS).next_multiple_of(16).max(RUN.min(row.len().div_ceil(out.len().max(1))));
    let mut maxima = [f32::NEG_INFINITY; RUNS];
    let runs = row.chunks(run).len();
    for (max, run) in maxima.iter_mut().zip(row.chunks(run)) {
        *max = maximum(run);
    }
    let bound = match out.len() <= runs {
        true => {
            let mut sorted = maxima;
            let k = out.len() - 1;
            *sorted[..runs].select_nth_unstable_by(k, |a, b| b.total_cmp(a)).1
        }
        false => f32::NEG_INFINITY,
    };
    let mut count = 0;
    for (at, (run_of, max)) in row.chunks(run).zip(maxima).enumerate() {
        if max < bound {
            continue;
        }
        for (i, &value) in run_of.iter().enumerate() {
            if value < bound || (count == out.len() && value <= out[count - 1].0) {
                continue;
            }
            let mut place = count.min(out.len() - 1);
            while place > 0 && out[place - 1].0 < value {
                out[place] = out[place - 1];
                place -= 1;
            }
            out[place] = (value, (at * run + i) as u32);
            count = (count + 1).min(out.len());
        }
    }
    count
}

/// The largest of some values.
fn maximum(values: &[f32]) -> f32 {
    let (lanes, rest) = values.as_chunks::<16>();
    let mut best = [f32::NEG_INFINITY; 16];
    for lane in lanes {
        best.iter_mut()
            .zip(lane)
            .for_each(|(best, &value)| *best = if value > *best { value } else { *best });
    }
    best.iter().chain(rest).fold(f32::NEG_INFINITY, |best, &value| best.max(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_those_of_a_full_sort() {
        let mut seed = 1u32;
        for count in [1, 2, 15, 64, 65, 300, 1024, 1025, 9000] {
            for width in [1, 2, 4, 8, 63, 64, 65, 300, 2000].into_iter().filter(|&width| width <= count) {
                for coarse in [1 << 24, 8, 1] {
                    let row: Vec<f32> = (0..count)
                        .map(|_| {
                            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                            if seed.is_multiple_of(50) {
                                f32::NEG_INFINITY
                            } else {
                                ((seed >> 8) % coarse) as f32
                            }
                        })
                        .collect();
                    let mut sorted: Vec<(f32, u32)> = row.iter().copied().zip(0..).collect();
                    sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
                    let mut out = vec![(0.0, 0); width];
                    assert_eq!(largest(&row, &mut out), width);
                    assert_eq!(out, sorted[..width], "{width} of {count}, {coarse}");
                }
            }
        }
    }
}
