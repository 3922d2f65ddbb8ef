//! Bad items of a run: which are known, what is warned about, and when there are too many.
use std::collections::{BTreeMap, HashSet};

use crate::Result;
use recognizer::bad_items::{BadItems, MAX_NAMED_ITEMS};

/// Name of the training set in lists and messages.
pub(crate) const TRAIN: &str = "data.train";

/// The bad items of a run, by set. Every process of a run has the same.
#[derive(Debug, Default)]
pub(crate) struct BadItemLog {
    /// All that are known, those of earlier processes of the run included.
    sets: BTreeMap<String, BadItems>,
    /// Those of the training set that this process has met: a file that is there again does not count.
    met: BadItems,
    /// Ids of these, left out or of another length.
    seen: [HashSet<String>; 2],
    /// Ids of all in `sets`, of the training set.
    listed: [HashSet<String>; 2],
    /// Items in `met` when they were last counted in a warning.
    counted: usize,
    /// Items of the training set, and the share that may be left out.
    of: usize,
    max_bad: f64,
}

impl BadItemLog {
    /// A log of a run whose sets have these bad items, which were warned about.
    pub fn new(sets: BTreeMap<String, BadItems>, of: usize, max_bad: f64) -> Self {
        let sets = sets.into_iter().filter(|(_, items)| !items.is_empty()).collect();
        let mut log = BadItemLog { sets, of, max_bad, ..BadItemLog::default() };
        log.met = log.sets.get(TRAIN).cloned().unwrap_or_default();
        log.seen = ids(&log.met);
        log.listed = log.seen.clone();
        log
    }

    /// Adds what an earlier process of the run has met, for the list only.
    pub fn resume(&mut self, earlier: BTreeMap<String, BadItems>) {
        if let Some(train) = earlier.into_iter().find_map(|(set, items)| (set == TRAIN).then_some(items)) {
            self.list(&train);
        }
    }

    fn list(&mut self, found: &BadItems) {
        if found.is_empty() {
            return;
        }
        let [left_out, other_length] = &mut self.listed;
        let set = self.sets.entry(TRAIN.to_owned()).or_default();
        let new = found.left_out.iter().filter(|one| left_out.insert(one.id.clone()));
        set.left_out.extend(new.cloned());
        let new = found.other_length.iter().filter(|one| other_length.insert(one.id.clone()));
        set.other_length.extend(new.cloned());
    }

    /// Takes in what a step has met; returns the warnings about what is new.
    pub fn record(&mut self, found: BadItems) -> Vec<String> {
        let [left_out, other_length] = &mut self.seen;
        let new = BadItems {
            left_out: found.left_out.into_iter().filter(|one| left_out.insert(one.id.clone())).collect(),
            other_length: found
                .other_length
                .into_iter()
                .filter(|one| other_length.insert(one.id.clone()))
                .collect(),
        };
        let mut warnings = Vec::new();
        for (at, one) in
            (self.met.left_out.len()..).zip(&new.left_out).take_while(|(at, _)| *at <= MAX_NAMED_ITEMS)
        {
            warnings.push(match at < MAX_NAMED_ITEMS {
                true => format!("{TRAIN}: {}: {}; left out", one.id, one.reason),
                false => format!("{TRAIN}: more utterances cannot be used; left out"),
            });
        }
        let lengths = (self.met.other_length.len()..).zip(&new.other_length);
        for (at, one) in lengths.take_while(|(at, _)| *at <= MAX_NAMED_ITEMS) {
            let (found, expected) = (one.found_seconds, one.expected_seconds);
            warnings.push(match at < MAX_NAMED_ITEMS {
                true => format!(
                    "{TRAIN}: {}: {found:.2} s instead of {expected:.2} s, as the manifest says; used as it is",
                    one.id
                ),
                false => format!("{TRAIN}: more recordings are not as long as the manifest says; used as they are"),
            });
        }
        self.list(&new);
        self.met.extend(new);
        warnings
    }

    /// Counts the items of which not all were warned about by name; none if the count was reported before.
    pub fn count(&mut self) -> Option<String> {
        let BadItems { left_out, other_length } = &self.met;
        let all = left_out.len().max(other_length.len());
        if all <= MAX_NAMED_ITEMS || all == self.counted {
            return None;
        }
        self.counted = all;
        Some(format!(
            "{TRAIN}: {} utterances so far cannot be used and are left out, {} recordings are not as long as the manifest says; \
             bad_items.json in the run folder has all of them",
            left_out.len(),
            other_length.len()
        ))
    }

    /// Checks that no more items are left out than are allowed.
    ///
    /// # Errors
    /// [`recognizer::Error::TooManyBad`].
    pub fn check(&self) -> Result<()> {
        Ok(self.met.check(TRAIN, self.of, self.max_bad)?)
    }

    /// All bad items by set; none if there is none.
    pub fn sets(&self) -> Option<&BTreeMap<String, BadItems>> {
        Some(&self.sets).filter(|sets| !sets.is_empty())
    }

    /// Those of the training set.
    pub fn train(&self) -> BadItems {
        self.sets.get(TRAIN).cloned().unwrap_or_default()
    }
}

fn ids(items: &BadItems) -> [HashSet<String>; 2] {
    [
        items.left_out.iter().map(|one| one.id.clone()).collect(),
        items.other_length.iter().map(|one| one.id.clone()).collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use recognizer::bad_items::{ExcludedUtterance, LengthMismatch};

    fn items(ids: std::ops::Range<usize>) -> BadItems {
        let left_out =
            |n| ExcludedUtterance { id: format!("u{n}"), reason: "gone".into(), has_other_rate: false };
        let length = |n| LengthMismatch { id: format!("u{n}"), expected_seconds: 1.0, found_seconds: 2.0 };
        BadItems { left_out: ids.clone().map(left_out).collect(), other_length: ids.map(length).collect() }
    }

    #[test]
    fn items_are_warned_about_once_and_the_lines_have_an_end() {
        let mut log = BadItemLog::new(BTreeMap::from([(TRAIN.to_owned(), items(0..2))]), 1000, 0.01);
        assert!(log.record(items(0..2)).is_empty() && log.check().is_ok());
        assert_eq!(log.record(items(1..4)).len(), 4);
        assert_eq!(log.record(items(3..500)).len(), 2 * (MAX_NAMED_ITEMS - 4 + 1));
        assert!(log.record(items(400..900)).is_empty());
        assert!(log.count().is_some_and(|count| count.contains("900 utterances")) && log.count().is_none());
        assert_eq!(log.train().left_out.len(), 900);
        assert!(log.check().is_err());
    }

    #[test]
    fn items_of_an_earlier_process_are_listed_and_do_not_count() {
        let mut log = BadItemLog::new(BTreeMap::new(), 10, 0.01);
        assert!(log.sets().is_none());
        log.resume(BTreeMap::from([(TRAIN.to_owned(), items(0..5))]));
        assert_eq!(log.train().left_out.len(), 5);
        assert!(log.check().is_ok());
        assert_eq!(log.record(items(4..6)).len(), 4);
        assert_eq!(log.train().left_out.len(), 6);
        assert!(log.check().is_err(), "two of ten");
    }
}
