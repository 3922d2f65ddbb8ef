//! Helpers of the lattice tests: golden files, random numbers, comparisons.
use std::collections::BTreeMap;

use lattice::Real;
use oracle::golden;
use safetensors::{Dtype, SafeTensors};

/// Tensors of a golden file by name: shapes and values.
pub(crate) struct Golden(BTreeMap<String, (Vec<usize>, Vec<f64>)>);

/// Reads a golden file of LAST.
///
/// None on a clone without the shared data, which is reported on standard output.
pub(crate) fn golden(name: &str) -> Option<Golden> {
    let data = std::fs::read(golden::system_folder("last")?.join(format!("{name}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&data).unwrap().tensors().into_iter().map(|(name, view)| {
        let data = view.data();
        let values = match view.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
            Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
            Dtype::I32 => data.as_chunks().0.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect(),
            Dtype::I64 => data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
            other => panic!("{name}: {other:?}"),
        };
        (name, (view.shape().to_vec(), values))
    });
    Some(Golden(tensors.collect()))
}

impl Golden {
    /// The shape of a tensor.
    pub(crate) fn shape(&self, name: &str) -> &[usize] {
        &self.0[name].0
    }

    /// The values of a tensor.
    pub(crate) fn values(&self, name: &str) -> &[f64] {
        &self.0[name].1
    }

    /// The values of a tensor in another type.
    pub(crate) fn cast<F: Real>(&self, name: &str) -> Vec<F> {
        narrow(self.values(name))
    }

    /// Names with a prefix, without the prefix.
    pub(crate) fn names_with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0.keys().filter_map(move |name| name.strip_prefix(prefix))
    }
}

/// Converts values to a type.
pub(crate) fn narrow<F: Real>(values: &[f64]) -> Vec<F> {
    values.iter().map(|&value| F::from_f64(value)).collect()
}

/// Converts values to `f64`.
pub(crate) fn widened<F: Real>(values: &[F]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// Tolerance of a comparison: relative to the value, plus absolute.
#[derive(Clone, Copy)]
pub(crate) struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

/// Tolerances of the specification's section 15.
pub(crate) const F64: Tolerance = Tolerance { relative: 1e-10, absolute: 1e-12 };
pub(crate) const F32_GRADIENTS: Tolerance = Tolerance { relative: 1e-4, absolute: 1e-5 };

/// Tolerance of values of at most `largest`, summed over one frame.
pub(crate) fn f32_values(largest: f64) -> Tolerance {
    Tolerance { relative: 2e-5, absolute: 1e-5 * largest }
}

/// Asserts that values are within a tolerance of the expected ones.
#[track_caller]
pub(crate) fn assert_within<F: Real>(name: &str, computed: &[F], expected: &[f64], tolerance: Tolerance) {
    assert_eq!(computed.len(), expected.len(), "{name}: number of values");
    for (index, (computed, &expected)) in computed.iter().zip(expected).enumerate() {
        let computed = computed.to_f64();
        let is_close =
            (computed - expected).abs() <= tolerance.relative * expected.abs() + tolerance.absolute;
        assert!(computed == expected || is_close, "{name}: {computed:e} against {expected:e} at {index}");
    }
}

/// Returns random numbers in -scale..scale.
pub(crate) fn random<F: Real>(count: usize, seed: u64, scale: f64) -> Vec<F> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
    let number = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11;
        F::from_f64(scale * (bits as f64 / (1u64 << 52) as f64 - 1.0))
    };
    (0..count).map(number).collect()
}

/// `Σ a b`
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Asserts that some work gives equal results on 1, 2 and 5 threads.
pub(crate) fn assert_thread_independent<T: PartialEq + std::fmt::Debug + Send>(
    work: impl Fn() -> T + Send + Sync,
) {
    let result_with =
        |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&work);
    let expected = result_with(1);
    assert!(expected == result_with(2), "2 threads");
    assert!(expected == result_with(5), "5 threads");
}
