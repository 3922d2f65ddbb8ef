//! Matrix products: `out (=|+=) alpha · a · b`, sequential, over borrowed row-major views.
//!
//! Parallelism lives above, in tasks that own their tiles; a product never spawns, so its bits depend on its
//! arguments alone.
use super::Real;

/// A borrowed matrix: row-major with a row stride, or the transpose of such a one.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, F> {
    pub(super) data: &'a [F],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
    pub(super) transposed: bool,
}

impl<'a, F> View<'a, F> {
    /// A dense *rows x cols* matrix.
    ///
    /// # Panics
    /// If `data` is shorter than the shape needs.
    pub fn new(data: &'a [F], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A *rows x cols* matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols` or `data` is shorter than the shape needs.
    pub fn with_stride(data: &'a [F], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride, transposed: false }
    }

    /// The same matrix with rows and columns exchanged; nothing is moved.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }
}

/// A mutable row-major matrix with a row stride.
#[derive(Debug)]
pub struct ViewMut<'a, F> {
    pub(super) data: &'a mut [F],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
}

impl<'a, F> ViewMut<'a, F> {
    /// A dense *rows x cols* matrix.
    ///
    /// # Panics
    /// If `data` is shorter than the shape needs.
    pub fn new(data: &'a mut [F], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// A *rows x cols* matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If `stride < cols` or `data` is shorter than the shape needs.
    pub fn with_stride(data: &'a mut [F], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Self { data, rows, cols, stride }
    }
}

fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(stride >= cols, "matrix view: stride {stride} is below {cols} columns");
    let needed =
        if rows == 0 || cols == 0 { 0 } else { (rows - 1).saturating_mul(stride).saturating_add(cols) };
    assert!(
        len >= needed,
        "matrix view: {rows} x {cols} with stride {stride} needs {needed} elements, has {len}"
    );
}

/// What happens to the old contents of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulate {
    /// `out = alpha · a · b`
    Replace,
    /// `out += alpha · a · b`
    Add,
}

/// `out (=|+=) alpha · a · b`, one thread.
///
/// # Shapes
/// `a` *m x k*, `b` *k x n*, `out` *m x n*; any of them may be empty.
///
/// # Panics
/// If the shapes do not fit: that is a broken invariant of the caller, never user input.
pub fn product<F: Real>(out: ViewMut<F>, a: View<F>, b: View<F>, alpha: F, how: Accumulate) {
    let ((m, k), (k2, n)) = (a.shape(), b.shape());
    assert!(
        k == k2 && out.rows == m && out.cols == n,
        "product: shapes {m}x{k}, {k2}x{n}, {}x{}",
        out.rows,
        out.cols
    );
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if how == Accumulate::Replace {
            out.data.chunks_mut(out.stride).take(m).for_each(|row| row[..n].fill(F::ZERO));
        }
        return;
    }
    F::product(out, a, b, alpha, how);
}

/// The library that takes both types.
pub(super) fn faer_product<F: Real + faer::traits::ComplexField>(
    out: ViewMut<F>,
    a: View<F>,
    b: View<F>,
    alpha: F,
    how: Accumulate,
) {
    let accum = match how {
        Accumulate::Replace => faer::Accum::Replace,
        Accumulate::Add => faer::Accum::Add,
    };
    // faer 0.24.4 exchanges the strides in its row-major mutable constructor and then writes out of bounds.
    let target =
        faer::MatMut::from_column_major_slice_with_stride_mut(out.data, out.cols, out.rows, out.stride);
    let target = target.transpose_mut();
    faer::linalg::matmul::matmul(target, accum, to_faer(a), to_faer(b), alpha, faer::Par::Seq);
    leave_vector_registers();
}

/// faer returns with the upper halves of vector registers in use, which makes scalar arithmetic after it fifty times slower.
#[allow(unsafe_code)]
fn leave_vector_registers() {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        #[target_feature(enable = "avx")]
        fn leave() {
            std::arch::x86_64::_mm256_zeroupper();
        }
        // SAFETY: the machine has the feature, as just checked.
        unsafe { leave() }
    }
}

/// Rows below which a transposed second operand is not worth packing.
const THIN: usize = 128;

/// The faster library for the shape: gemm packs its operands and is ahead by a tenth to a third, but a tile of few rows
/// times a transposed weight takes it twice as long as faer.
pub(super) fn f32_product(out: ViewMut<f32>, a: View<f32>, b: View<f32>, alpha: f32, how: Accumulate) {
    if b.transposed && out.rows < THIN {
        faer_product(out, a, b, alpha, how);
    } else {
        gemm_product(out, a, b, alpha, how);
    }
}

#[allow(unsafe_code)]
fn gemm_product(out: ViewMut<f32>, a: View<f32>, b: View<f32>, alpha: f32, how: Accumulate) {
    let ((m, k), (_, n)) = (a.shape(), b.shape());
    let strides = |view: &View<f32>| match view.transposed {
        false => (1, view.stride as isize),
        true => (view.stride as isize, 1),
    };
    let ((a_column, a_row), (b_column, b_row)) = (strides(&a), strides(&b));
    let add = how == Accumulate::Add;
    // SAFETY: every view was checked to hold all elements that its shape and stride reach, `product` checked that the
    // shapes fit together, and `out` is borrowed mutably, so that nothing overlaps it.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.data.as_mut_ptr(),
            1,
            out.stride as isize,
            add,
            a.data.as_ptr(),
            a_column,
            a_row,
            b.data.as_ptr(),
            b_column,
            b_row,
            if add { 1.0 } else { 0.0 },
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

fn to_faer<F: Real>(view: View<F>) -> faer::MatRef<F> {
    let matrix = faer::MatRef::from_row_major_slice_with_stride(view.data, view.rows, view.cols, view.stride);
    if view.transposed { matrix.transpose() } else { matrix }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_sum_stays_inside_its_view() {
        let mut out = [1.0f32; 7];
        let (a, b) = (View::new(&[], 1, 0), View::new(&[], 0, 3));
        product(ViewMut::new(&mut out, 1, 3), a, b, 1.0, Accumulate::Replace);
        assert_eq!(out, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn both_types_equal_plain_loops() {
        equals_plain_loops::<f64>(1e-12);
        equals_plain_loops::<f32>(1e-4);
    }

    /// Every combination of transposes and strides against three plain loops.
    fn equals_plain_loops<F: Real>(bar: f64) {
        for (m, k, n) in
            [(1, 2, 3), (3, 1, 1), (5, 7, 4), (16, 33, 20), (70, 40, 90), (130, 20, 50), (2, 0, 3), (0, 2, 3)]
        {
            for case in 0..16 {
                let (ta, tb, wide, add) = (case & 1 != 0, case & 2 != 0, case & 4 != 0, case & 8 != 0);
                let pad = if wide { 3 } else { 0 };
                let make = |rows: usize, cols: usize| -> Vec<F> {
                    (0..rows * (cols + pad))
                        .map(|i| F::from_f64(((i * 29 % 31) as f64 - 15.0) / 8.0))
                        .collect()
                };
                let shape = |t: bool, r: usize, c: usize| if t { (c, r) } else { (r, c) };
                let ((ar, ac), (br, bc)) = (shape(ta, m, k), shape(tb, k, n));
                let (a, b, mut out) = (make(ar, ac), make(br, bc), make(m, n));
                let old = out.clone();
                let at = |i: usize, j: usize| if ta { a[j * (ac + pad) + i] } else { a[i * (ac + pad) + j] };
                let bt = |i: usize, j: usize| if tb { b[j * (bc + pad) + i] } else { b[i * (bc + pad) + j] };
                let view_a = View::with_stride(&a, ar, ac, ac + pad);
                let view_b = View::with_stride(&b, br, bc, bc + pad);
                let how = if add { Accumulate::Add } else { Accumulate::Replace };
                product(
                    ViewMut::with_stride(&mut out, m, n, n + pad),
                    if ta { view_a.transposed() } else { view_a },
                    if tb { view_b.transposed() } else { view_b },
                    F::from_f64(0.5),
                    how,
                );
                for i in 0..m {
                    for j in 0..n + pad {
                        let index = i * (n + pad) + j;
                        let sum: f64 = (0..k)
                            .map(|l| if j < n { at(i, l).to_f64() * bt(l, j).to_f64() } else { 0.0 })
                            .sum();
                        let kept = if add || j >= n { old[index].to_f64() } else { 0.0 };
                        let error = (out[index].to_f64() - kept - 0.5 * sum).abs();
                        assert!(error < bar, "{m}x{k}x{n}, case {case}: {error}");
                    }
                }
            }
        }
    }
}
