//! The last linear layer.
use kernels::{par_find, parts};

use crate::{
    Error, Precision, Real, Result,
    error::expect_len,
    sites::{has_infinite_or_nan, largest},
};

/// Weight *C x H* and bias *C* of the head, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a, F> {
    pub(crate) weight: &'a [F],
    pub(crate) bias: Option<&'a [F]>,
    pub(crate) hidden: usize,
    pub(crate) classes: usize,
}

impl<'a, F: Real> Head<'a, F> {
    /// Borrows a row-major weight and, if there is one, a bias. A bias of -inf masks its class.
    ///
    /// # Errors
    /// `hidden` or the number of classes is zero; lengths that do not fit.
    pub fn new(weight: &'a [F], bias: Option<&'a [F]>, hidden: usize) -> Result<Self> {
        let classes = weight.len().checked_div(hidden).ok_or(Error::Zero { argument: "hidden" })?;
        if classes == 0 {
            return Err(Error::Zero { argument: "classes" });
        }
        expect_len("head.weight", classes * hidden, weight.len())?;
        if let Some(bias) = bias {
            expect_len("head.bias", classes, bias.len())?;
        }
        Ok(Self { weight, bias, hidden, classes })
    }

    /// An infinite weight would pass forward as a masked class and turn `0 · inf` into NaN in backward. (A NaN makes
    /// the scores NaN, which forward reports with its site.) So would one that bf16 has no number for.
    pub(crate) fn reject_infinite_weights(&self, precision: Precision) -> Result<()> {
        // Overflows where the precision does.
        let scale = match precision {
            Precision::Full => F::ONE,
            Precision::Bf16 => F::from_f64(F::LARGEST.to_f64() / Precision::BF16_LIMIT),
        };
        let odd = |_, weight: &[F]| has_infinite_or_nan(weight, scale).then_some(());
        if par_find(parts(self.weight, 1 << 16), odd).is_none() {
            return Ok(());
        }
        match self.weight.iter().position(|w| (*w * scale).to_f64().is_infinite()) {
            None => Ok(()),
            Some(at) => {
                let class = at / self.hidden;
                Err(Error::InfiniteWeight { class, value: self.weight[at].to_f64() })
            }
        }
    }

    /// The largest magnitude of a weight.
    pub fn largest_weight(&self) -> f64 {
        largest(self.weight)
    }

    /// *C x H*
    pub fn weight(&self) -> &'a [F] {
        self.weight
    }

    /// *C*, if there is one.
    pub fn bias(&self) -> Option<&'a [F]> {
        self.bias
    }

    /// C
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// H
    pub fn hidden(&self) -> usize {
        self.hidden
    }
}
