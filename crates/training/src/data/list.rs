//! Utterances by number, wherever they are.
use std::borrow::Cow;

use speech::{Corpus, Utterance};

use crate::Result;

/// A list of utterances, in memory or not.
pub trait List {
    /// How many there are.
    fn count(&self) -> usize;

    /// One of them.
    ///
    /// # Errors
    /// Those of reading what is said about it.
    fn get(&self, index: usize) -> Result<Cow<'_, Utterance>>;
}

impl List for Vec<Utterance> {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> Result<Cow<'_, Utterance>> {
        Ok(Cow::Borrowed(&self[index]))
    }
}

impl List for Corpus {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> Result<Cow<'_, Utterance>> {
        Ok(Cow::Owned(self.utterance(index)?))
    }
}

/// All of them, one after another.
pub(crate) fn each(list: &dyn List) -> impl Iterator<Item = Result<Cow<'_, Utterance>>> {
    (0..list.count()).map(|index| list.get(index))
}
