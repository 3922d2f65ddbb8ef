//! `training.skip_nonfinite`: skips steps whose loss or gradient is not finite.
use crate::Error;

/// The policy of `training.skip_nonfinite`.
///
/// At most `max_in_a_row` consecutive steps are skipped, if the epoch has at least one good step
/// and the weights are finite. A skipped step changes no weight, no moment and no average; it
/// counts as a batch of its epoch, not as an optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NonFinitePolicy {
    /// Largest number of steps in a row; 0 skips none.
    pub max_in_a_row: u64,
}

impl NonFinitePolicy {
    /// Returns true if the step is skipped.
    ///
    /// `in_a_row` steps were skipped just before; in the epoch, `skipped` of `batches` steps.
    pub(crate) fn skips(self, error: &Error, in_a_row: u64, skipped: u64, batches: u64) -> bool {
        matches!(error, Error::Diverged { .. }) && in_a_row < self.max_in_a_row && skipped + 1 < batches
    }

    /// Returns the warning for a skipped step.
    pub(crate) fn warning(self, error: &Error, in_a_row: u64) -> String {
        format!("skipped, {} in a row of at most {}: {error}", in_a_row + 1, self.max_in_a_row)
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
    fn a_limited_number_of_steps_in_a_row_is_skipped_and_no_other_error() {
        let skips = |max_in_a_row, in_a_row| {
            NonFinitePolicy { max_in_a_row }.skips(&diverged(), in_a_row, in_a_row, 100)
        };
        assert!(!skips(0, 0));
        assert!(skips(2, 0) && skips(2, 1) && !skips(2, 2));
        assert!(!NonFinitePolicy { max_in_a_row: 9 }.skips(&Error::Stopped, 0, 0, 100));
    }

    #[test]
    fn an_epoch_needs_one_good_step() {
        let skips =
            |skipped, batches| NonFinitePolicy { max_in_a_row: 9 }.skips(&diverged(), 0, skipped, batches);
        assert!(skips(8, 10) && !skips(9, 10));
        assert!(!skips(0, 1));
    }

    #[test]
    fn the_warning_names_step_and_utterances() {
        let text = NonFinitePolicy { max_in_a_row: 3 }.warning(&diverged(), 1);
        assert!(
            text.starts_with("skipped, 2 in a row of at most 3: step 7: expected a finite loss"),
            "{text}"
        );
        assert!(text.contains("NaN") && text.contains(r#"["a", "b"]"#), "{text}");
    }
}
