//! Number types of the normalizer: `f32` or `f64` rows, optional bf16 products.
use crate::{
    BackwardInputs, Head, Normalized, Result, Selection, Workspace,
    backward::{GradientSink, backward_impl},
    forward::forward_impl,
    sites::DynSites,
};

/// `f32` or `f64`; sealed by [`kernels::Real`].
///
/// The engine is compiled in this crate, once for each type and precision, not in each user crate.
pub trait Real: kernels::Real {
    #[doc(hidden)]
    fn forward_impl(
        sites: &dyn DynSites<Self>,
        head: &Head<Self>,
        selection: &Selection,
        workspace: &mut Workspace<Self>,
    ) -> Result<Normalized<Self>>;
    #[doc(hidden)]
    fn backward_impl(
        arguments: BackwardInputs<Self, dyn DynSites<Self> + '_>,
        workspace: &mut Workspace<Self>,
        sink: GradientSink<Self>,
    ) -> Result<usize>;
}

/// Implements `Real`; `inline(never)` makes this crate compile the engine.
macro_rules! impl_real {
    ($($float:ty),*) => {$(
        impl Real for $float {
            #[inline(never)]
            fn forward_impl(
                sites: &dyn DynSites<Self>,
                head: &Head<Self>,
                selection: &Selection,
                workspace: &mut Workspace<Self>,
            ) -> Result<Normalized<Self>> {
                forward_impl(sites, head, selection, workspace)
            }
            #[inline(never)]
            fn backward_impl(
                arguments: BackwardInputs<Self, dyn DynSites<Self> + '_>,
                workspace: &mut Workspace<Self>,
                sink: GradientSink<Self>,
            ) -> Result<usize> {
                backward_impl(arguments, workspace, sink)
            }
        }
    )*};
}

impl_real!(f32, f64);

/// Precision of the operands of the three large products (scores, two gradients).
///
/// Nothing else is rounded: inputs, gradients, sums of products and the softmax have the type of
/// the rows, emissions and adjoints are `f64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// The type of the rows.
    #[default]
    Full,
    /// bf16 with 8 bits of precision: operands have errors of up to 2^-8 relative; sums are `f32`.
    ///
    /// The error of a score is at most `2^-7 Σ_k |h_k W_ck|` (and a few 1e-7 of that sum from
    /// accumulation), and commonly far less, since errors have both signs. The error of an emission
    /// is at most twice the largest error of a score. The gradients of head and hidden rows are
    /// those of the rounded scores, each term with a relative error of up to 2^-7. Magnitudes of
    /// 3.396e38 or more would be infinite: such weights are refused.
    ///
    /// Fast with AMX tiles or AVX-512 BF16 ([`Precision::is_native`]). Elsewhere slower than
    /// [`Precision::Full`], without AVX2 much slower, with the same results up to the rounding of
    /// `f32` sums.
    Bf16,
    /// Each `f32` number as a sum of two bf16 numbers: errors of up to 2^-17 relative.
    ///
    /// A product `a b` is `high_a high_b + high_a low_b + low_a high_b`, with an error of at most
    /// `2^-15 |a b|`, about 3e-5; sums are `f32`. In sums, errors of both signs cancel: gradients
    /// commonly have relative errors of about 2e-6. Weights of 3.396e38 or more are
    /// refused, as for bf16.
    ///
    /// Used for rows of `f32` on a CPU with AMX tiles, where it is about twice as fast as
    /// [`Precision::Full`]; elsewhere the products are those of `Full`.
    Bf16x3,
}

impl Precision {
    /// Smallest number that overflows: halfway from the largest bf16 to the next power of two.
    pub(crate) const BF16_LIMIT: f64 = 3.396_177_5e38;

    /// Returns the bytes of a packed number, for elements of `element_bytes`.
    pub(crate) fn bytes(self, element_bytes: usize) -> usize {
        match self {
            Self::Full => element_bytes,
            Self::Bf16 => 2,
            Self::Bf16x3 => 4,
        }
    }

    /// Returns whether the CPU has instructions for it.
    pub fn is_native(self) -> bool {
        match self {
            Self::Full => true,
            Self::Bf16 => kernels::packed::bf16::is_native(),
            Self::Bf16x3 => kernels::packed::bf16::has_tiles(),
        }
    }

    /// Returns the precision that this CPU uses for rows of type `F`.
    pub(crate) fn resolve<F: Real>(self) -> Self {
        let is_split = size_of::<F>() == size_of::<f32>() && self.is_native();
        if self == Self::Bf16x3 && !is_split { Self::Full } else { self }
    }
}
