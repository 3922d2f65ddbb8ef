//! The types that rows may have.
use crate::{
    Backward, Head, Normalized, Result, Selection, Workspace, backward::Sums, backward::back, forward::ahead,
    sites::Make,
};

/// `f32` or `f64`; sealed by [`kernels::Real`].
///
/// The engine is compiled in this crate, once for each type and precision, and not again in every crate that uses it.
pub trait Real: kernels::Real {
    #[doc(hidden)]
    fn ahead(
        sites: &dyn Make<Self>,
        head: &Head<Self>,
        selection: &Selection,
        workspace: &mut Workspace<Self>,
    ) -> Result<Normalized<Self>>;
    #[doc(hidden)]
    fn back(
        arguments: Backward<Self, dyn Make<Self> + '_>,
        workspace: &mut Workspace<Self>,
        into: Sums<Self>,
    ) -> Result<usize>;
}

macro_rules! compiled {
    ($($float:ty),*) => {$(
        impl Real for $float {
            #[inline(never)]
            fn ahead(
                sites: &dyn Make<Self>,
                head: &Head<Self>,
                selection: &Selection,
                workspace: &mut Workspace<Self>,
                    ) -> Result<Normalized<Self>> {
                ahead(sites, head, selection, workspace)
            }
            #[inline(never)]
            fn back(
                arguments: Backward<Self, dyn Make<Self> + '_>,
                workspace: &mut Workspace<Self>,
                into: Sums<Self>,
            ) -> Result<usize> {
                back(arguments, workspace, into)
            }
        }
    )*};
}

compiled!(f32, f64);
