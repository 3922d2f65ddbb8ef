//! Steps whose loss or gradient is no number, and how many of them a run forgives.
use crate::Error;

/// What `training.skip_nonfinite` allows: so many such steps in a row, in an epoch with one good step at least, as long as the
/// weights themselves are numbers.
///
/// A skipped step changes no weight, no moment and no average; it counts as a batch of its epoch, not as an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NonFinitePolicy {
    /// Most steps in a row; 0 = none is forgiven.
    pub most: u64,
}

impl NonFinitePolicy {
    /// Whether the error is forgiven after `in_a_row` others, in a run where `skipped` of the epoch's `batches` have been.
    pub fn skips(self, error: &Error, in_a_row: u64, skipped: u64, batches: u64) -> bool {
        matches!(error, Error::Diverged { .. }) && in_a_row < self.most && skipped + 1 < batches
    }

    /// What the observer is told.
    pub fn warning(self, error: &Error, in_a_row: u64) -> String {
        format!("skipped, {} in a row of at most {}: {error}", in_a_row + 1, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diverged() -> Error {
        let utterances = vec!["a".to_owned(), "b".to_owned()];
        Error::Diverged { step: 7, what: "loss".into(), found: Some(f64::NAN), utterances, source: None }
    }

    #[test]
    fn so_many_in_a_row_are_forgiven_and_no_other_error() {
        let skips = |most, in_a_row| NonFinitePolicy { most }.skips(&diverged(), in_a_row, in_a_row, 100);
        assert!(!skips(0, 0));
        assert!(skips(2, 0) && skips(2, 1) && !skips(2, 2));
        assert!(!NonFinitePolicy { most: 9 }.skips(&Error::Stopped, 0, 0, 100));
    }

    #[test]
    fn an_epoch_needs_one_good_step() {
        let skips = |skipped, batches| NonFinitePolicy { most: 9 }.skips(&diverged(), 0, skipped, batches);
        assert!(skips(8, 10) && !skips(9, 10));
        assert!(!skips(0, 1));
    }

    #[test]
    fn the_warning_names_step_and_utterances() {
        let text = NonFinitePolicy { most: 3 }.warning(&diverged(), 1);
        assert!(
            text.starts_with("skipped, 2 in a row of at most 3: step 7: expected a finite loss"),
            "{text}"
        );
        assert!(text.contains("NaN") && text.contains(r#"["a", "b"]"#), "{text}");
    }
}
