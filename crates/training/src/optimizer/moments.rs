//! `Moments`: the state of AdamW and LAMB, two moments of each gradient.
use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::{Error, Result};
use model::Parameters;
use model::checkpoint::Values;

/// Elements of one task: weight, gradient and moments fit into the L2 cache.
///
/// Work is divided by this number, never by the number of threads.
pub(crate) const ELEMENTS_PER_TASK: usize = 1 << 14;

/// First and second moment of each trained parameter, by name.
#[derive(Debug, Clone)]
pub(crate) struct Moments {
    pub first: Values,
    pub second: Values,
}

impl Moments {
    /// Creates moments of 0.
    pub(super) fn new(parameters: &Parameters) -> Self {
        let zeros: Values =
            parameters.iter_trained().map(|(name, v)| (name.to_owned(), vec![0.0; v.elem_count()])).collect();
        Moments { first: zeros.clone(), second: zeros }
    }

    /// Returns both moments of a parameter with `count` elements, for an update.
    ///
    /// # Errors
    /// [`Error::Shape`] for a parameter that is new, or had another size.
    pub(super) fn get_mut(&mut self, name: &str, count: usize) -> Result<(&mut [f32], &mut [f32])> {
        match (self.first.get_mut(name), self.second.get_mut(name)) {
            (Some(m), Some(v)) if m.len() == count && v.len() == count => Ok((m, v)),
            (None, _) | (_, None) => Err(Error::shape(name, "a parameter of the optimizer", "a new one")),
            (Some(m), Some(v)) => {
                let sizes = format!("{} and {}", m.len(), v.len());
                Err(Error::shape(name, format!("{count} numbers in both moments"), sizes))
            }
        }
    }

    /// Returns both moments, for a checkpoint.
    pub(super) fn state(&self) -> BTreeMap<String, Cow<'_, Values>> {
        [("first", &self.first), ("second", &self.second)]
            .map(|(kind, values)| (kind.to_owned(), Cow::Borrowed(values)))
            .into()
    }

    /// Restores what [`Self::state`] returned.
    ///
    /// # Errors
    /// [`Error::Shape`] if one kind is missing, or there is another: the state of another
    /// optimizer.
    pub(super) fn restore(&mut self, state: &BTreeMap<String, Values>) -> Result<()> {
        if let Some(other) = state.keys().find(|kind| !["first", "second"].contains(&kind.as_str())) {
            return Err(Error::shape("optimizer state", "first and second", other.clone()));
        }
        for (kind, values) in [("first", &mut self.first), ("second", &mut self.second)] {
            let Some(moments) = state.get(kind) else {
                return Err(Error::shape(kind, "moments of every parameter", "none"));
            };
            values.clone_from(moments);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_other_optimizers_are_rejected() {
        let moments = || Moments { first: Values::new(), second: Values::new() };
        let state = |kinds: &[&str]| kinds.iter().map(|kind| ((*kind).to_owned(), Values::new())).collect();
        assert!(moments().restore(&state(&["first", "second"])).is_ok());
        for (kinds, named) in [(&["first"][..], "second"), (&["first", "second", "third"], "third")] {
            let error = moments().restore(&state(kinds)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
