//! Maps utterance ids to distinct names for outputs: CTM fields and file names.
use std::collections::{BTreeSet, HashMap, HashSet};

/// Maps the ids of a list to distinct names.
///
/// A name depends only on the id and the set of all ids of the list, so that commands, orders and
/// shards agree. An id without forbidden characters is its own name. If several ids would have the
/// same name, all but the first of the changed ids (in byte order) end in `~2`, `~3` and so on.
///
/// ```
/// use recognizer::OutputIds;
/// let ids = OutputIds::for_ctm(["call 7", "call_7", "call 8"]);
/// let names = ["call 7", "call_7", "call 8"].map(|id| ids.name(id));
/// assert_eq!(names, ["call_7~2", "call_7", "call_8"]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct OutputIds {
    /// Names that differ from their ids.
    changed: HashMap<String, String>,
}

impl OutputIds {
    /// Creates names for CTM fields.
    ///
    /// White space, control characters, byte order marks, a `;;` at the start (a comment) and an
    /// empty id are replaced by `_`.
    pub fn for_ctm<'a>(ids: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(ids, to_ctm_field)
    }

    /// Creates names for files in a folder.
    ///
    /// Slashes, backslashes, control characters and an empty id are replaced by `_`.
    pub fn for_file_names<'a>(ids: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(ids, to_file_name)
    }

    /// Creates distinct names; `replace` replaces the forbidden characters of an id.
    fn new<'a>(ids: impl IntoIterator<Item = &'a str>, replace: fn(&str) -> String) -> Self {
        let ids: BTreeSet<&str> = ids.into_iter().collect();
        let names: Vec<(&str, String)> = ids.into_iter().map(|id| (id, replace(id))).collect();
        let is_unchanged = |(id, name): &&(&str, String)| id == name;
        let mut used_names: HashSet<String> =
            names.iter().filter(is_unchanged).map(|(_, name)| name.clone()).collect();
        // The next number to try for each name, so that many ids with one name take linear time.
        let mut next_numbers: HashMap<String, u64> = HashMap::new();
        let mut changed = HashMap::new();
        for (id, unnumbered) in names.into_iter().filter(|pair| !is_unchanged(&pair)) {
            let number = next_numbers.entry(unnumbered.clone()).or_insert(1);
            let name = loop {
                let name = if *number == 1 { unnumbered.clone() } else { format!("{unnumbered}~{number}") };
                *number += 1;
                if used_names.insert(name.clone()) {
                    break name;
                }
            };
            changed.insert(id.to_owned(), name);
        }
        Self { changed }
    }

    /// Returns the name of an id of the list.
    pub fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.changed.get(id).map_or(id, String::as_str)
    }
}

/// Returns true for a control character or a byte order mark.
fn is_control(character: char) -> bool {
    character.is_control() || character == '\u{feff}'
}

/// Returns an id as a CTM field, which is never empty.
fn to_ctm_field(id: &str) -> String {
    let id = id.replace(|c: char| c.is_whitespace() || is_control(c), "_");
    match id.strip_prefix(";;") {
        Some(rest) => format!("__{rest}"),
        None if id.is_empty() => "_".to_owned(),
        None => id,
    }
}

/// Returns an id as a file name.
fn to_file_name(id: &str) -> String {
    let id = id.replace(|c: char| matches!(c, '/' | '\\') || is_control(c), "_");
    if id.is_empty() { "_".to_owned() } else { id }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(ids: &[&str]) -> Vec<String> {
        let names = OutputIds::for_ctm(ids.iter().copied());
        ids.iter().map(|id| names.name(id).to_owned()).collect()
    }

    #[test]
    fn names_are_distinct_and_never_empty() {
        // In the order of the bytes, "a\tb" comes before "a b", and "" before all others.
        assert_eq!(
            names(&["a b", "a_b", "a\tb", "", "_", ";;x", "a b"]),
            ["a_b~3", "a_b", "a_b~2", "_~2", "_", "__x", "a_b~3"]
        );
        assert_eq!(names(&["a b", "c d", ""]), ["a_b", "c_d", "_"]);
        // An id that is the name of another one with a number.
        assert_eq!(names(&["a b", "a_b", "a_b~2"]), ["a_b~3", "a_b", "a_b~2"]);
        assert_eq!(names(&["a b", "a_b~2", "a\u{a0}b"]), ["a_b", "a_b~2", "a_b~3"]);
        assert_eq!(names(&["a\nb", "a\u{0}b", "a\u{1b}[1m", "\u{feff}a"]), ["a_b~2", "a_b", "a_[1m", "_a"]);
        let files = OutputIds::for_file_names(["a/b", "a\\b", "a_b", "a b", "a\nb"]);
        assert_eq!(
            ["a/b", "a\\b", "a_b", "a b", "a\nb"].map(|id| files.name(id)),
            ["a_b~3", "a_b~4", "a_b", "a b", "a_b~2"]
        );
    }

    proptest! {
        #[test]
        fn names_are_distinct_and_independent_of_the_order(
            ids in proptest::collection::vec("[a_ ;~2\t\n/]{0,4}", 0..40),
            seed in any::<u64>(),
        ) {
            let list: Vec<&str> = ids.iter().map(String::as_str).collect();
            let mut reordered = list.clone();
            reordered.rotate_left(seed as usize % list.len().max(1));
            reordered.extend(list.first().copied());
            for replace in [to_ctm_field as fn(&str) -> String, to_file_name] {
                let names = OutputIds::new(list.iter().copied(), replace);
                let reordered_names = OutputIds::new(reordered.iter().copied(), replace);
                let mut owners = HashMap::new();
                for &id in &list {
                    let name = names.name(id);
                    prop_assert_eq!(name, reordered_names.name(id));
                    prop_assert_eq!(*owners.entry(name.to_owned()).or_insert(id), id);
                    prop_assert!(!name.is_empty() && !name.chars().any(char::is_control));
                }
            }
            let fields = OutputIds::for_ctm(list.iter().copied());
            for id in list {
                let name = fields.name(id);
                prop_assert!(!name.contains(char::is_whitespace) && !name.starts_with(";;"));
                prop_assert!(to_ctm_field(id) != id || name == id);
            }
        }
    }
}
