//! The types of rows, and the numbers of the large products.
use crate::{
    Backward, Head, Normalized, Result, Selection, Workspace,
    backward::{GradientSink, backward_impl},
    forward::forward_impl,
    sites::DynSites,
};

/// `f32` or `f64`; sealed by [`kernels::Real`].
///
/// The engine is compiled in this crate, once for each type and precision, and not again in every crate that uses it.
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
        arguments: Backward<Self, dyn DynSites<Self> + '_>,
        workspace: &mut Workspace<Self>,
        into: GradientSink<Self>,
    ) -> Result<usize>;
}

macro_rules! compiled {
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
                arguments: Backward<Self, dyn DynSites<Self> + '_>,
                workspace: &mut Workspace<Self>,
                into: GradientSink<Self>,
            ) -> Result<usize> {
                backward_impl(arguments, workspace, into)
            }
        }
    )*};
}

compiled!(f32, f64);

/// What the factors of the three large products (scores, both gradients) are rounded to.
///
/// Everything else stays as it is: inputs, gradients and sums of products in the type of the rows, the softmax in
/// that type, emissions and adjoints in `f64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// Not at all.
    #[default]
    Full,
    /// bf16, 8 bits of precision: each factor is off by up to 2^-8 of itself, and sums are `f32`.
    ///
    /// A score is off by at most `2^-7 Σ_k |h_k W_ck|` (and a few 1e-7 of that sum from adding up), commonly by far
    /// less, since errors of either sign meet; an emission by twice the largest error of a score at most. The
    /// gradients of head and hidden rows are those of the rounded scores, each term off by 2^-7 of itself at most.
    /// Magnitudes from 3.396e38 on would be infinite: such weights are refused.
    ///
    /// Fast where the processor has AMX tiles or AVX-512 BF16 ([`Precision::is_native`]); elsewhere slow, with the same
    /// results to the rounding of `f32` sums.
    Bf16,
}

impl Precision {
    /// From here on bf16 is infinite: halfway between its largest number and the next power of two.
    pub(crate) const BF16_LIMIT: f64 = 3.396_177_5e38;

    /// Bytes of a packed number, for rows whose elements have so many.
    pub(crate) fn bytes(self, element: usize) -> usize {
        match self {
            Self::Full => element,
            Self::Bf16 => 2,
        }
    }

    /// Whether this machine has instructions for it.
    pub fn is_native(self) -> bool {
        match self {
            Self::Full => true,
            Self::Bf16 => kernels::packed::half::is_native(),
        }
    }
}
