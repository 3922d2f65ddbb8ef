//! Linear layer (`Affine`) compared with plain loops, for any thread count.
use kernels::{Accumulate, Affine, Real, View};

use super::common::{assert_close, plain_product, synthetic, transpose};

/// Shapes *n, D, O*: rows around the task sizes, widths around those of the kernels.
const SHAPES: [[usize; 3]; 9] = [
    [0, 3, 2],
    [1, 1, 1],
    [5, 7, 3],
    [28, 33, 31],
    [128, 29, 65],
    [129, 60, 40],
    [300, 17, 90],
    [113, 64, 57],
    [100, 370, 360],
];

/// Compares with plain loops, for both layouts of the weight.
fn equals_plain_loops<F: Real>(tolerance: f64) {
    for ([n, d, o], transposed) in SHAPES.into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
        let (x, dy): (Vec<F>, Vec<F>) = (synthetic(n * d, 1), synthetic(n * o, 2));
        let (weight, bias): (Vec<F>, Vec<F>) = (synthetic(d * o, 3), synthetic(o, 4));
        let stored = if transposed { transpose(&weight, d, o) } else { weight.clone() };
        let view = if transposed { View::new(&stored, o, d).transposed() } else { View::new(&stored, d, o) };
        let case = format!("{n} rows, {d} x {o}, transposed {transposed}");

        for bias in [None, Some(&bias[..])] {
            let mut y = vec![F::from_f64(9.0); n * o];
            Affine::new(view, bias).forward(&x, &mut y);
            let mut expected = plain_product(&x, &weight, [n, d, o]);
            let bias_at = |i: usize| bias.map_or(0.0, |bias| bias[i % o].to_f64());
            expected.iter_mut().enumerate().for_each(|(i, y)| *y += bias_at(i));
            assert_close(&y, &expected, tolerance, &case);
        }

        let layer = Affine::new(view, None);
        let mut dx = vec![F::ONE; n * d];
        layer.backward_rows(&dy, &mut dx, Accumulate::Add);
        let mut expected = plain_product(&dy, &transpose(&weight, d, o), [n, o, d]);
        expected.iter_mut().for_each(|dx| *dx += 1.0);
        assert_close(&dx, &expected, tolerance, &case);

        // Two runs; the second has a third of the rows.
        let first_rows = n - n / 3;
        let runs =
            [(&x[..first_rows * d], &dy[..first_rows * o]), (&x[first_rows * d..], &dy[first_rows * o..])];
        let (mut dw, mut db) = (vec![F::ONE; d * o], vec![F::ONE; o]);
        layer.backward_parameters(&runs, &mut dw, &mut db);
        let expected: Vec<f64> =
            plain_product(&transpose(&x, n, d), &dy, [d, n, o]).iter().map(|dw| dw + 1.0).collect();
        let dw = if transposed { transpose(&dw, o, d) } else { dw };
        assert_close(&dw, &expected, 4.0 * tolerance, &case);
        let sums: Vec<f64> =
            (0..o).map(|j| 1.0 + dy.iter().skip(j).step_by(o).map(|g| g.to_f64()).sum::<f64>()).collect();
        assert_close(&db, &sums, tolerance, &case);
    }
}

#[test]
fn forward_and_backward_equal_plain_loops() {
    equals_plain_loops::<f64>(1e-11);
    equals_plain_loops::<f32>(2e-4);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for shape in [[700, 130, 301], [100, 400, 401]] {
        check_threads(shape);
    }
}

/// Compares all results for one thread with those for several.
fn check_threads([n, d, o]: [usize; 3]) {
    let (x, dy): (Vec<f32>, Vec<f32>) = (synthetic(n * d, 1), synthetic(n * o, 2));
    let (weight, bias): (Vec<f32>, Vec<f32>) = (synthetic(d * o, 3), synthetic(o, 4));
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let layer = Affine::new(View::new(&weight, d, o), Some(&bias));
            let (mut y, mut dx) = (vec![0.0; n * o], vec![0.0; n * d]);
            let (mut dw, mut db) = (vec![0.0; d * o], vec![0.0; o]);
            layer.forward(&x, &mut y);
            layer.backward_rows(&dy, &mut dx, Accumulate::Replace);
            layer.backward_parameters(&[(&x, &dy)], &mut dw, &mut db);
            [y, dx, dw, db]
        })
    };
    let expected = run(1);
    assert!(expected == run(2) && expected == run(7));
}

#[test]
#[should_panic(expected = "affine: 6 elements times 3 x 2 into 5")]
fn rows_of_a_wrong_length_are_refused() {
    let layer = Affine::new(View::new(&[0.0f32; 6], 3, 2), None);
    layer.forward(&[0.0; 6], &mut [0.0; 5]);
}
