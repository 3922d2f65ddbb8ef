//! Checks that all ranks have the same settings, recipe and data.
//!
//! Each check gathers a value from all ranks, and compares them with that of rank 0. The error is
//! the same on all ranks.
use std::collections::BTreeMap;
use std::path::Path;

use distributed::{ProcessGroup, TransferFormat};
use serde::{Deserialize, Serialize};

use crate::fingerprint::DIGITS_PER_UTTERANCE;
use crate::run_folder::StartMode;
use crate::{Error, Result};
use model::checkpoint::Progress;
use model::{DataFingerprint, random};
use recognizer::bad_items::BadItems;

/// Characters of a value that a message shows.
const MAX_SHOWN_CHARACTERS: usize = 100;

/// Name and value of a setting that all processes must share.
pub(crate) type SharedSetting<'a> = (&'a str, String);

/// Compares settings with those of rank 0.
///
/// # Errors
/// The same in all processes: [`Error::Rank`] with the first rank and its first setting that
/// differ.
pub(crate) fn expect_equal_settings(group: &mut ProcessGroup, settings: &[SharedSetting]) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let values: Vec<String> = settings.iter().map(|(_, value)| value.clone()).collect();
    let values_by_rank: Vec<Vec<String>> = group.all_gather(&values)?;
    for (rank, found) in values_by_rank.iter().enumerate() {
        for ((name, _), (expected, found)) in settings.iter().zip(values_by_rank[0].iter().zip(found)) {
            if expected != found {
                let [expected, found] = [expected, found].map(|text| abbreviate(text));
                return Err(difference_error(rank, format!("{name}: expected {expected}"), found));
            }
        }
    }
    Ok(())
}

/// Returns the settings of how a run starts.
pub(crate) fn start_settings(
    start: StartMode,
    folder: &Path,
    transfer: TransferFormat,
) -> [SharedSetting<'static>; 4] {
    let mode = match start {
        StartMode::Fresh => "a new run",
        StartMode::Resume => "--resume",
        StartMode::ResumeChanged => "--resume --changed-data",
        StartMode::Force => "--force",
    };
    // A relative folder depends on the working directory.
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    [
        ("--transfer", transfer.to_string()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("start", mode.to_owned()),
        ("--run", folder.display().to_string()),
    ]
}

/// Compares the recipe's text, with command line overrides, with that of rank 0.
///
/// # Errors
/// The same in all processes: [`Error::Rank`] with the first key that differs.
pub(crate) fn expect_equal_recipe(group: &mut ProcessGroup, text: &str) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let texts: Vec<String> = group.all_gather(&text.to_owned())?;
    let Some((rank, found)) = texts.iter().enumerate().find(|(_, found)| **found != texts[0]) else {
        return Ok(());
    };
    let table = |text: &str| text.parse::<toml::Table>().unwrap_or_default();
    let (found, expected) = (table(found), table(&texts[0]));
    Err(match model::config::table::first_differing_key("", &found, &expected) {
        Some((key, found, expected)) => difference_error(
            rank,
            format!("recipe: expected {key} = {}", abbreviate(&expected)),
            format!("{key} = {}", abbreviate(&found)),
        ),
        None => {
            difference_error(rank, "recipe: expected the text".to_owned(), "other comments or spaces".into())
        }
    })
}

/// A summary of the utterances of a set.
#[derive(PartialEq, Serialize, Deserialize)]
struct SetSummary {
    utterances: usize,
    checksum: u64,
}

/// Compares the utterances of the sets with those of rank 0: order, texts, lengths.
///
/// # Errors
/// The same in all processes: [`Error::Rank`] with the first set and position that differ.
pub(crate) fn expect_equal_data(group: &mut ProcessGroup, data: &DataFingerprint) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let sets = [("data.train", &data.train), ("data.dev", &data.dev), ("data.test", &data.test)];
    let summarize = |checksums: &str| SetSummary {
        utterances: checksums.len() / DIGITS_PER_UTTERANCE,
        checksum: random::hash_name(checksums),
    };
    let summaries: Vec<SetSummary> = sets.iter().map(|(_, checksums)| summarize(checksums)).collect();
    let summaries_by_rank: Vec<Vec<SetSummary>> = group.all_gather(&summaries)?;
    for (rank, found) in summaries_by_rank.iter().enumerate() {
        for (index, (expected, found)) in summaries_by_rank[0].iter().zip(found).enumerate() {
            let (set, checksums) = &sets[index];
            if expected.utterances != found.utterances {
                let expected = format!("{set}: expected {} utterances", expected.utterances);
                return Err(difference_error(rank, expected, found.utterances.to_string()));
            }
            if expected.checksum != found.checksum {
                // All processes take this branch together.
                let checksums_by_rank: Vec<String> = group.all_gather(&(*checksums).to_owned())?;
                let [first, other] =
                    [0, rank].map(|rank| checksums_by_rank[rank].as_bytes().chunks(DIGITS_PER_UTTERANCE));
                let position = first.zip(other).position(|(first, other)| first != other).unwrap_or(0) + 1;
                let difference = format!("another utterance, text or length at position {position}");
                return Err(difference_error(rank, format!("{set}: expected the utterances"), difference));
            }
        }
    }
    Ok(())
}

/// Returns the state that a run starts from, apart from its data.
pub(crate) fn state_settings(
    tokenizer: &str,
    progress: Option<&Progress>,
    bad: &BTreeMap<String, BadItems>,
) -> Vec<SharedSetting<'static>> {
    let resumed = progress.map_or_else(|| "none".to_owned(), |progress| format!("{progress:?}"));
    let step = progress.map_or_else(String::new, |progress| format!("step {}, ", progress.step));
    let excluded: Vec<String> = bad
        .iter()
        .flat_map(|(set, items)| items.excluded.iter().map(move |item| format!("{set}: {}", item.id)))
        .collect();
    let other_length: Vec<String> = bad
        .iter()
        .flat_map(|(set, items)| items.other_length.iter().map(move |item| format!("{set}: {item:?}")))
        .collect();
    let join_or_none =
        |items: Vec<String>| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    vec![
        ("checkpoint", format!("{step}checksum {:016x}", random::hash_name(&resumed))),
        ("tokenizer", format!("checksum {:016x}", random::hash_name(tokenizer))),
        ("utterances left out", join_or_none(excluded)),
        ("recordings of another length than in their manifest", join_or_none(other_length)),
    ]
}

/// Checks that a text is the same on all ranks.
///
/// # Errors
/// [`Error::Rank`] for the first rank that differs from rank 0.
pub(crate) fn expect_equal_text(
    group: &mut ProcessGroup,
    what: &str,
    text: impl FnOnce() -> String,
) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let checksums = group.all_gather(&random::hash_name(&text()))?;
    match checksums.iter().position(|checksum| *checksum != checksums[0]) {
        None => Ok(()),
        Some(rank) => {
            Err(Error::Rank { rank, message: format!("expected the {what} of rank 0, found another") })
        }
    }
}

/// Creates the error of a rank that differs from rank 0.
fn difference_error(rank: usize, expected: String, found: String) -> Error {
    Error::Rank { rank, message: format!("{expected}, as in rank 0, found {found}") }
}

/// Returns the first characters of a text.
fn abbreviate(text: &str) -> String {
    let end = text.char_indices().nth(MAX_SHOWN_CHARACTERS).map(|(end, _)| end);
    end.map_or_else(|| text.to_owned(), |end| format!("{}...", &text[..end]))
}
