//! Rows into columns.
use crate::{
    Real, View,
    features::Machine,
    packed::{Operand, Source},
};

/// `out = matrixᵀ`
///
/// # Shapes
/// `matrix` *m x n*, `out` *n x m*, row-major.
///
/// # Panics
/// If the lengths do not fit.
pub fn transpose<F: Real>(out: &mut [F], matrix: View<F>) {
    let (rows, cols) = matrix.shape();
    assert_eq!(out.len(), rows * cols, "transpose: {rows} x {cols}");
    if !out.is_empty() {
        // A micro-panel as wide as all rows.
        F::pack_panel(Machine::best(), &Source::new(matrix, Operand::Left), (0, 0), rows, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::made_up;

    fn every_element_changes_places<F: Real>() {
        for (rows, cols) in [(0, 3), (3, 0), (1, 1), (3, 5), (16, 40), (40, 7), (17, 33), (8, 100), (100, 8)]
        {
            let stride = cols + 2;
            let matrix: Vec<F> = made_up(rows * stride, 1);
            let mut out = vec![F::ONE; rows * cols];
            transpose(&mut out, View::with_stride(&matrix, rows, cols, stride));
            for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                assert_eq!(out[j * rows + i].to_f64(), matrix[i * stride + j].to_f64(), "{rows} x {cols}");
            }
        }
    }

    #[test]
    fn every_element_changes_places_in_either_type() {
        every_element_changes_places::<f32>();
        every_element_changes_places::<f64>();
    }
}
