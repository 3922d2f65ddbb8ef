//! `--shard I/N`: processes one part of a list, for parallel runs.
use std::str::FromStr;

use kernels::Excerpt;

/// Part I of N contiguous parts of a list; concatenated, the parts are the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Index of the part, from 0.
    index: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((i, n)) if (1..=n).contains(&i) => Ok(Shard { index: i - 1, count: n }),
            _ => Err(format!(
                "expected I/N with I from 1 to N, such as 2/5, found {}",
                Excerpt(format_args!("{text:?}"))
            )),
        }
    }
}

/// Returns the part of a list that a shard selects; none selects all.
pub(crate) fn select_part<T>(mut list: Vec<T>, shard: Option<Shard>) -> Vec<T> {
    let Some(Shard { index, count }) = shard else { return list };
    let end_of = |parts: usize| (list.len() as u128 * parts as u128 / count as u128) as usize;
    let (start, end) = (end_of(index), end_of(index + 1));
    list.truncate(end);
    list.split_off(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenated_parts_are_the_list() {
        let list: Vec<usize> = (0..17).collect();
        for count in 1..20 {
            let shard = |i: usize| Some(format!("{i}/{count}").parse().unwrap());
            let parts: Vec<_> = (1..=count).map(|i| select_part(list.clone(), shard(i))).collect();
            assert_eq!(parts.concat(), list);
            let lengths = parts.iter().map(Vec::len);
            assert!(lengths.clone().max().unwrap() <= lengths.min().unwrap() + 1);
        }
        assert_eq!(select_part(list.clone(), None), list);
    }

    #[test]
    fn invalid_shards_are_quoted() {
        for text in ["", "1", "0/3", "4/3", "1/0", "a/2", "1/2/3", "-1/2"] {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(error.contains("expected I/N") && error.contains(text), "{error}");
        }
    }
}
