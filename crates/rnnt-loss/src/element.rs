//! The types that rows may have, as far as sessions are concerned.
use kernels::Real;

use crate::{Alignment, Head, Inputs, Joint, Layout, Output, Result, Session, Targets, held::Held};

/// `f32` or `f64`; sealed by [`Real`].
///
/// The engine is compiled here, once for each type, and not again in every crate that uses it.
pub trait Element: Real {
    #[doc(hidden)]
    fn sum(
        session: &mut Session<Self>,
        inputs: &Inputs<Self>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Output<Self>>;
    #[doc(hidden)]
    fn plan(session: &Session<Self>, inputs: &Inputs<Self>, targets: &Targets, whole: bool) -> Result<usize>;
    #[doc(hidden)]
    fn sum_in_place(
        session: &mut Session<Self>,
        scores: &mut [Self],
        shape: (usize, Layout),
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Vec<f64>>;
    #[doc(hidden)]
    fn forward(session: &mut Session<Self>, inputs: &Inputs<Self>, targets: &Targets) -> Result<Held<Self>>;
    #[doc(hidden)]
    fn backward(
        held: Held<Self>,
        session: &mut Session<Self>,
        inputs: &Inputs<Self>,
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Output<Self>>;
    #[doc(hidden)]
    fn align(
        session: &Session<Self>,
        joint: &Joint<Self>,
        targets: &Targets,
    ) -> Result<Vec<Option<Alignment>>>;
    #[doc(hidden)]
    fn internal_lm(
        session: &mut Session<Self>,
        predicted: &[Self],
        head: Head<Self>,
        layout: Layout,
        targets: &Targets,
    ) -> Result<Vec<Vec<f64>>>;
}

macro_rules! compiled {
    ($($float:ty),*) => {$(
        impl Element for $float {
            fn sum(
                session: &mut Session<Self>,
                inputs: &Inputs<Self>,
                targets: &Targets,
                weights: &[f64],
            ) -> Result<Output<Self>> {
                session.sum_inputs(inputs, targets, weights)
            }
            fn plan(
                session: &Session<Self>,
                inputs: &Inputs<Self>,
                targets: &Targets,
                whole: bool,
            ) -> Result<usize> {
                session.planned(inputs, targets, whole)
            }
            fn sum_in_place(
                session: &mut Session<Self>,
                scores: &mut [Self],
                shape: (usize, Layout),
                targets: &Targets,
                weights: &[f64],
            ) -> Result<Vec<f64>> {
                session.overwrite(scores, shape, targets, weights)
            }
            fn forward(
                session: &mut Session<Self>,
                inputs: &Inputs<Self>,
                targets: &Targets,
            ) -> Result<Held<Self>> {
                Held::new(session, inputs, targets)
            }
            fn backward(
                held: Held<Self>,
                session: &mut Session<Self>,
                inputs: &Inputs<Self>,
                targets: &Targets,
                weights: &[f64],
            ) -> Result<Output<Self>> {
                held.backward(session, inputs, targets, weights)
            }
            fn align(
                session: &Session<Self>,
                joint: &Joint<Self>,
                targets: &Targets,
            ) -> Result<Vec<Option<Alignment>>> {
                session.alignments(joint, targets)
            }
            fn internal_lm(
                session: &mut Session<Self>,
                predicted: &[Self],
                head: Head<Self>,
                layout: Layout,
                targets: &Targets,
            ) -> Result<Vec<Vec<f64>>> {
                session.label_side(predicted, head, layout, targets)
            }
        }
    )*};
}

compiled!(f32, f64);
