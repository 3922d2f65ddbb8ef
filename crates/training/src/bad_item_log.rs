//! The log of a run's bad items: list, warnings, limit.
//!
//! The trainer records the items of each step here, writes the list as `bad_items.json`, and ends
//! the run if there are too many.
use std::collections::{BTreeMap, HashSet};

use crate::Result;
use recognizer::bad_items::{BadItems, MAX_NAMED_ITEMS};

/// Name of the training set in files and messages.
pub(crate) const TRAINING_SET: &str = "data.train";

/// The bad items of a run, by set, equal in all processes.
#[derive(Debug, Default)]
pub(crate) struct BadItemLog {
    /// All bad items, including those of earlier processes of the run.
    sets: BTreeMap<String, BadItems>,
    /// Bad items of the training set that this process has found; only they count for the limit.
    ///
    /// The list of an earlier process may contain files that were restored since.
    own_items: BadItems,
    /// Ids of `own_items`.
    own_ids: BadItemIds,
    /// Ids of the training set in `sets`.
    listed_ids: BadItemIds,
    /// Number of items in the latest warning that counts them.
    warned_count: usize,
    /// Number of utterances of the training set.
    num_utterances: usize,
    /// Largest fraction of the training set that may be excluded.
    max_bad: f64,
}

/// Ids of bad items, for the removal of duplicates.
#[derive(Debug, Clone, Default)]
struct BadItemIds {
    /// Ids of excluded utterances.
    excluded: HashSet<String>,
    /// Ids of recordings of another length.
    other_length: HashSet<String>,
}

impl BadItemIds {
    /// Returns the ids of a list.
    fn new(items: &BadItems) -> Self {
        BadItemIds {
            excluded: items.excluded.iter().map(|item| item.id.clone()).collect(),
            other_length: items.other_length.iter().map(|item| item.id.clone()).collect(),
        }
    }
}

impl BadItemLog {
    /// Creates the log of a run with bad items already reported.
    pub(crate) fn new(sets: BTreeMap<String, BadItems>, num_utterances: usize, max_bad: f64) -> Self {
        let sets = sets.into_iter().filter(|(_, items)| !items.is_empty()).collect();
        let mut log = BadItemLog { sets, num_utterances, max_bad, ..BadItemLog::default() };
        log.own_items = log.sets.get(TRAINING_SET).cloned().unwrap_or_default();
        log.own_ids = BadItemIds::new(&log.own_items);
        log.listed_ids = log.own_ids.clone();
        log
    }

    /// Adds the items of an earlier process to the list only.
    pub(crate) fn resume(&mut self, earlier: BTreeMap<String, BadItems>) {
        if let Some(train) =
            earlier.into_iter().find_map(|(set, items)| (set == TRAINING_SET).then_some(items))
        {
            self.add_to_list(&train);
        }
    }

    /// Adds items of the training set that the list does not contain.
    fn add_to_list(&mut self, items: &BadItems) {
        if items.is_empty() {
            return;
        }
        let BadItemIds { excluded, other_length } = &mut self.listed_ids;
        let listed_items = self.sets.entry(TRAINING_SET.to_owned()).or_default();
        let new = items.excluded.iter().filter(|item| excluded.insert(item.id.clone()));
        listed_items.excluded.extend(new.cloned());
        let new = items.other_length.iter().filter(|item| other_length.insert(item.id.clone()));
        listed_items.other_length.extend(new.cloned());
    }

    /// Adds the items of a step; returns warnings about the new ones.
    pub(crate) fn record(&mut self, items: BadItems) -> Vec<String> {
        let BadItemIds { excluded, other_length } = &mut self.own_ids;
        let new_items = BadItems {
            excluded: items.excluded.into_iter().filter(|item| excluded.insert(item.id.clone())).collect(),
            other_length: items
                .other_length
                .into_iter()
                .filter(|item| other_length.insert(item.id.clone()))
                .collect(),
        };
        // A warning for each of the first items, and one about further items.
        let mut warnings = Vec::new();
        let numbered_items = (self.own_items.excluded.len()..).zip(&new_items.excluded);
        for (position, item) in numbered_items.take_while(|(position, _)| *position <= MAX_NAMED_ITEMS) {
            warnings.push(match position < MAX_NAMED_ITEMS {
                true => format!("{TRAINING_SET}: {}: {}; left out", item.id, item.reason),
                false => format!("{TRAINING_SET}: more utterances cannot be used; left out"),
            });
        }
        let numbered_items = (self.own_items.other_length.len()..).zip(&new_items.other_length);
        for (position, item) in numbered_items.take_while(|(position, _)| *position <= MAX_NAMED_ITEMS) {
            let (found, expected) = (item.found_seconds, item.expected_seconds);
            warnings.push(match position < MAX_NAMED_ITEMS {
                true => format!(
                    "{TRAINING_SET}: {}: {found:.2} s instead of {expected:.2} s as in the manifest; used as it is",
                    item.id
                ),
                false => format!(
                    "{TRAINING_SET}: more recordings have another length than in the manifest; used as they are"
                ),
            });
        }
        self.add_to_list(&new_items);
        self.own_items.extend(new_items);
        warnings
    }

    /// Returns a warning with the number of items, if it has changed.
    ///
    /// None while all items were named in warnings.
    pub(crate) fn count_warning(&mut self) -> Option<String> {
        let BadItems { excluded, other_length } = &self.own_items;
        let count = excluded.len().max(other_length.len());
        if count <= MAX_NAMED_ITEMS || count == self.warned_count {
            return None;
        }
        self.warned_count = count;
        Some(format!(
            "{TRAINING_SET}: {} utterances so far cannot be used and are left out, {} recordings have another length than in the \
             manifest; bad_items.json in the run folder lists all of them",
            excluded.len(),
            other_length.len()
        ))
    }

    /// Checks that the number of excluded items is within the limit.
    ///
    /// # Errors
    /// [`recognizer::Error::TooManyBad`].
    pub(crate) fn check(&self) -> Result<()> {
        Ok(self.own_items.check(TRAINING_SET, self.num_utterances, self.max_bad)?)
    }

    /// Returns all bad items by set; none if there are none.
    pub(crate) fn sets(&self) -> Option<&BTreeMap<String, BadItems>> {
        Some(&self.sets).filter(|sets| !sets.is_empty())
    }

    /// Returns the bad items of the training set.
    pub(crate) fn train(&self) -> BadItems {
        self.sets.get(TRAINING_SET).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recognizer::bad_items::{ExcludedUtterance, LengthMismatch};

    /// Items `u0`, `u1` and so on, each of both kinds.
    fn items(ids: std::ops::Range<usize>) -> BadItems {
        let excluded =
            |n| ExcludedUtterance { id: format!("u{n}"), reason: "gone".into(), has_other_rate: false };
        let length = |n| LengthMismatch { id: format!("u{n}"), expected_seconds: 1.0, found_seconds: 2.0 };
        BadItems { excluded: ids.clone().map(excluded).collect(), other_length: ids.map(length).collect() }
    }

    #[test]
    fn items_are_warned_about_once_and_the_number_of_lines_is_limited() {
        let mut log = BadItemLog::new(BTreeMap::from([(TRAINING_SET.to_owned(), items(0..2))]), 1000, 0.01);
        assert!(log.record(items(0..2)).is_empty() && log.check().is_ok());
        assert_eq!(log.record(items(1..4)).len(), 4);
        assert_eq!(log.record(items(3..500)).len(), 2 * (MAX_NAMED_ITEMS - 4 + 1));
        assert!(log.record(items(400..900)).is_empty());
        assert!(
            log.count_warning().is_some_and(|count| count.contains("900 utterances"))
                && log.count_warning().is_none()
        );
        assert_eq!(log.train().excluded.len(), 900);
        assert!(log.check().is_err());
    }

    #[test]
    fn items_of_an_earlier_process_are_listed_and_do_not_count() {
        let mut log = BadItemLog::new(BTreeMap::new(), 10, 0.01);
        assert!(log.sets().is_none());
        log.resume(BTreeMap::from([(TRAINING_SET.to_owned(), items(0..5))]));
        assert_eq!(log.train().excluded.len(), 5);
        assert!(log.check().is_ok());
        assert_eq!(log.record(items(4..6)).len(), 4);
        assert_eq!(log.train().excluded.len(), 6);
        assert!(log.check().is_err(), "two of ten");
    }
}
