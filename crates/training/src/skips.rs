//! Steps whose loss or gradient is no number, and how many of them a run forgives.
use crate::Error;

/// What `training.skip_nonfinite` allows: so many such steps in a row, in an epoch with one good step at least, as long as the
/// weights themselves are numbers.
///
/// A skipped step changes no weight, no moment and no average; it counts as a batch of its epoch, not as an optimiser step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Skips {
    /// Most steps in a row; 0 = none is forgiven.
    pub most: u64,
}

impl Skips {
    /// Whether the error is forgiven after `in_a_row` others, in a run where `skipped` of the epoch's `batches` have been.
    pub fn forgives(self, error: &Error, in_a_row: u64, skipped: u64, batches: u64) -> bool {
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
        let forgives = |most, in_a_row| Skips { most }.forgives(&diverged(), in_a_row, in_a_row, 100);
        assert!(!forgives(0, 0));
        assert!(forgives(2, 0) && forgives(2, 1) && !forgives(2, 2));
        assert!(!Skips { most: 9 }.forgives(&Error::Stopped, 0, 0, 100));
    }

    #[test]
    fn an_epoch_needs_one_good_step() {
        let forgives = |skipped, batches| Skips { most: 9 }.forgives(&diverged(), 0, skipped, batches);
        assert!(forgives(8, 10) && !forgives(9, 10));
        assert!(!forgives(0, 1));
    }

    #[test]
    fn the_warning_names_step_and_utterances() {
        let text = Skips { most: 3 }.warning(&diverged(), 1);
        assert!(
            text.starts_with("skipped, 2 in a row of at most 3: step 7: expected a finite loss"),
            "{text}"
        );
        assert!(text.contains("NaN") && text.contains(r#"["a", "b"]"#), "{text}");
    }
}
