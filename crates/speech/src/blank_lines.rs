//! `BlankLines`: counts the blank lines of a manifest, which are skipped.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The blank lines of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlankLines {
    /// Number of blank lines.
    pub count: usize,
    /// Line number of the first one, from 1.
    pub first: Option<usize>,
}

impl BlankLines {
    pub(crate) fn add(&mut self, line: usize) {
        self.count += 1;
        self.first.get_or_insert(line);
    }

    /// Returns a warning with their number and the first one, if any.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("list.jsonl");
    /// let line = "{\"id\": 1, \"file\": \"a.wav\", \"text\": \"one\", \"seconds\": 1}";
    /// std::fs::write(&path, format!("{line}\n\n \n"))?;
    /// let manifest = speech::Manifest::read(&path)?;
    /// let warning = manifest.blank_lines.warning("list.jsonl".as_ref());
    /// assert_eq!(warning.unwrap(), "list.jsonl: 2 blank lines are skipped, the first is line 2");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn warning(&self, path: &Path) -> Option<String> {
        let first = self.first?;
        Some(match self.count {
            1 => format!("{}: 1 blank line is skipped, line {first}", path.display()),
            count => {
                format!("{}: {count} blank lines are skipped, the first is line {first}", path.display())
            }
        })
    }
}
