//! Checks LibriSpeech and writes the list of utterances of each subset.
//!
//! The corpus: Panayotov, Chen, Povey, Khudanpur, ICASSP 2015.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use super::check::{
    self, IdLocations, check_count, check_sample_rate, check_seconds, line_error, path_error,
};
use super::corpus_list::{AudioSource, CheckedUtterance, CorpusList, CorpusSummary};
use super::{PrepareOptions, corpus_files, subfolder_or_self, write};
use crate::Result;
use crate::audio::{self, DurationLimit};

/// Sample rate of the corpus in hertz.
const SAMPLE_RATE: u32 = 16_000;
/// Plausible lengths in seconds; the corpus has utterances of about 1 to 35 seconds.
const SECONDS_RANGE: RangeInclusive<f64> = 0.1..=60.0;

/// A subset as distributed.
struct Subset {
    name: &'static str,
    split: &'static str,
    /// Number of utterances.
    utterances: usize,
    /// Hours as distributed; the paper swaps the hours of dev-other and test-other.
    hours: f64,
}

const fn subset(name: &'static str, split: &'static str, utterances: usize, hours: f64) -> Subset {
    Subset { name, split, utterances, hours }
}

const SUBSETS: [Subset; 7] = [
    subset("train-clean-100", "train", 28_539, 100.6),
    subset("train-clean-360", "train", 104_014, 363.6),
    subset("train-other-500", "train", 148_688, 496.7),
    subset("dev-clean", "dev", 2_703, 5.4),
    subset("dev-other", "dev", 2_864, 5.1),
    subset("test-clean", "test", 2_620, 5.4),
    subset("test-other", "test", 2_939, 5.3),
];

/// Tolerated difference to the distributed hours.
const MAX_HOURS_DIFFERENCE: f64 = 0.2;

/// Name of the union of the three training sets.
const TRAIN_UNION: &str = "train-960";

/// Prepares the available subsets of LibriSpeech.
///
/// Also writes `train-960` if all three training sets are available. Texts are converted to lower
/// case, with 28 characters (a to z, apostrophe, space). Lengths come from the headers of the FLAC
/// files; a file whose last frame does not match its header is decoded to determine the error.
///
/// # Errors
/// [`Error::Corpus`](crate::Error::Corpus) and [`Error::CorpusLine`](crate::Error::CorpusLine) for
/// no subset; a chapter without transcripts; transcripts without audio, and audio without
/// transcript; ids of another chapter, duplicate ids; other characters; other numbers of
/// utterances, or hours that differ by more than 0.2; implausible lengths. Audio that cannot be
/// read, is not mono or not at 16 kHz. [`Error::Write`](crate::Error::Write).
///
/// Cost: two reads of each FLAC file, at its start and its end; with shards, the whole file.
///
/// ```no_run
/// use speech::prepare::{PrepareOptions, librispeech};
///
/// let options = PrepareOptions { allow_incomplete: true, ..PrepareOptions::new("lists") };
/// for list in librispeech("corpora".as_ref(), &options)? {
///     let hours = list.seconds / 3600.0;
///     println!("{}: {} utterances, {hours:.1} hours", list.path.display(), list.utterances);
/// }
/// # Ok::<(), speech::Error>(())
/// ```
pub fn librispeech(dir: &Path, prepare: &PrepareOptions) -> Result<Vec<CorpusSummary>> {
    let output = write::OutputFolder::new(prepare, dir)?;
    let root = subfolder_or_self(dir, "LibriSpeech");
    let mut ids = IdLocations::default();
    let mut subsets: Vec<(&Subset, SubsetContent)> = Vec::new();
    for subset in &SUBSETS {
        let folder = root.join(subset.name);
        if folder.is_dir() {
            subsets.push((subset, read_subset(&folder, subset, prepare.allow_incomplete, &mut ids)?));
        }
    }
    if subsets.is_empty() {
        let names = SUBSETS.map(|subset| subset.name).join(", ");
        return Err(path_error(dir, format!("LibriSpeech with some of {names}"), "none of them"));
    }
    let train: Vec<&SubsetContent> =
        subsets.iter().filter(|(subset, _)| subset.split == "train").map(|(_, content)| content).collect();
    let num_training_sets = SUBSETS.iter().filter(|subset| subset.split == "train").count();
    let train_union = (train.len() == num_training_sets).then(|| CorpusList {
        name: TRAIN_UNION,
        utterances: train.iter().flat_map(|content| &content.utterances).collect(),
        is_union: true,
        excluded: train.iter().map(|content| content.excluded).sum(),
    });
    let lists = subsets.iter().map(|(subset, content)| CorpusList {
        name: subset.name,
        utterances: content.utterances.iter().collect(),
        is_union: false,
        excluded: content.excluded,
    });
    write::write_lists(output, prepare, &train_union.into_iter().chain(lists).collect::<Vec<_>>(), &[])
}

/// Checked utterances of a subset, and number of transcripts without audio.
struct SubsetContent {
    utterances: Vec<CheckedUtterance>,
    excluded: usize,
}

/// Reads the chapters of a subset.
fn read_subset(
    folder: &Path,
    subset: &Subset,
    allow_incomplete: bool,
    ids: &mut IdLocations,
) -> Result<SubsetContent> {
    let mut content = SubsetContent { utterances: Vec::new(), excluded: 0 };
    for speaker in corpus_files::list_entries(folder)?.iter().filter(|path| path.is_dir()) {
        for chapter in corpus_files::list_entries(speaker)?.iter().filter(|path| path.is_dir()) {
            read_chapter(chapter, subset, allow_incomplete, ids, &mut content)?;
        }
    }
    check_count(folder, subset.utterances, content.utterances.len(), allow_incomplete)?;
    let hours = content.utterances.iter().map(CheckedUtterance::seconds).sum::<f64>() / 3600.0;
    if !allow_incomplete && (hours - subset.hours).abs() > MAX_HOURS_DIFFERENCE {
        return Err(path_error(folder, format!("about {} hours", subset.hours), format!("{hours:.2}")));
    }
    Ok(content)
}

/// Adds the utterances of a chapter: reads its transcripts and measures its audio.
fn read_chapter(
    chapter: &Path,
    subset: &Subset,
    allow_incomplete: bool,
    ids: &mut IdLocations,
    content: &mut SubsetContent,
) -> Result<()> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let speaker = chapter.parent().map(name).unwrap_or_default();
    let prefix = format!("{speaker}-{}", name(chapter));
    let transcripts = chapter.join(format!("{prefix}.trans.txt"));
    let mut audio_ids: BTreeSet<String> = corpus_files::list_entries(chapter)?
        .iter()
        .filter(|path| corpus_files::has_extension(path, "flac"))
        .map(|path| corpus_files::file_stem(path))
        .collect();
    if !transcripts.is_file() {
        let missing = format!("none next to {} FLAC files", audio_ids.len());
        return Err(path_error(&transcripts, "the transcripts of the chapter", missing));
    }
    for (number, line) in corpus_files::read_lines(&transcripts)? {
        // Id and transcript.
        let (id, transcript) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
        let digits = id.strip_prefix(&prefix).and_then(|rest| rest.strip_prefix('-'));
        if !digits
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        {
            return Err(line_error(
                &transcripts,
                number,
                format!("an id {prefix}-NUMBER"),
                format!("`{id}`"),
            ));
        }
        ids.insert(id, &transcripts, number)?;
        let text = check::normalize_transcript(&transcripts, number, transcript)?;
        // The audio file and its length.
        if !audio_ids.remove(id) {
            if allow_incomplete {
                content.excluded += 1;
                continue;
            }
            return Err(line_error(&transcripts, number, format!("{id}.flac next to it"), "no such file"));
        }
        let path = chapter.join(format!("{id}.flac"));
        let (num_samples, sample_rate) =
            audio::measure_length(&path, DurationLimit::Seconds(2.0 * SECONDS_RANGE.end()))?;
        check_sample_rate(&path, SAMPLE_RATE, sample_rate)?;
        check_seconds(&path, num_samples, sample_rate, &SECONDS_RANGE)?;
        content.utterances.push(CheckedUtterance {
            id: id.to_owned(),
            text,
            speaker: speaker.clone(),
            split: subset.split,
            subset: Some(subset.name),
            audio_file: AudioSource::ReadableFile(path),
            num_samples,
            sample_rate,
            crc32: None,
        });
    }
    match audio_ids.first() {
        None => Ok(()),
        Some(id) => Err(path_error(
            &chapter.join(format!("{id}.flac")),
            "its transcript in the chapter's list",
            "none",
        )),
    }
}
