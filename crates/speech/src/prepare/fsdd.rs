//! Prepares the speech corpus FSDD (Free Spoken Digit Dataset).
//!
//! Optionally draws strings of its digits, whose audio is joined from the recordings.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use super::check::{check_sample_rate, check_seconds, path_error};
use super::corpus_list::{AudioSource, CheckedUtterance, CorpusList, CorpusSummary};
use super::digit_strings::{self, Recording, StringCounts};
use super::{PrepareOptions, corpus_files, subfolder_or_self, write};
use crate::{Error, Result, audio};

/// Sample rate of the corpus in hertz.
const SAMPLE_RATE: u32 = 8000;
/// Plausible lengths in seconds.
const SECONDS_RANGE: RangeInclusive<f64> = 0.05..=10.0;
const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
/// The original speakers, each with fifty takes of every digit.
const SPEAKERS: [&str; 6] = ["george", "jackson", "lucas", "nicolas", "theo", "yweweler"];
const TAKES_PER_DIGIT: u32 = 50;
/// Number of takes, from take 0, that are the test set.
const TEST_TAKES: u32 = 5;

/// Prepares a checkout of the Free Spoken Digit Dataset.
///
/// Takes 0 to 4 of each digit and speaker are `test`, the others `train`.
///
/// With `strings`, also writes `recordings.jsonl` and strings of its digits: `strings_train`,
/// `strings_dev` and `strings_test`, from takes 10 and later, 5 to 9, and 0 to 4. Each line has the
/// CRC-32 of its samples.
///
/// # Errors
/// [`Error::Corpus`] for no recording; a name that is not `DIGIT_SPEAKER_TAKE.wav`; a missing digit
/// of a speaker; implausible lengths. Audio that cannot be read, is not mono or not at 8 kHz.
/// [`Error::Setting`] for strings in shards, which have no audio files. [`Error::Write`].
///
/// Cost: O(samples).
pub fn fsdd(
    dir: &Path,
    prepare: &PrepareOptions,
    strings: Option<&StringCounts>,
) -> Result<Vec<CorpusSummary>> {
    if strings.is_some() && prepare.shards.is_some() {
        let (expected, found) = ("none with strings, which have no audio files".into(), "some".into());
        return Err(Error::Setting { field: "shards", expected, found });
    }
    let output = write::OutputFolder::new(prepare, dir)?;
    let folder = subfolder_or_self(dir, "recordings");
    // Checks and decodes all recordings.
    let (mut utterances, mut recordings, mut recorded_takes) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in corpus_files::list_entries(&folder)?
        .into_iter()
        .filter(|path| corpus_files::has_extension(path, "wav"))
    {
        let id = corpus_files::file_stem(&path);
        let Some((digit, speaker, take)) = parse_name(&id) else {
            return Err(path_error(&path, "a name DIGIT_SPEAKER_TAKE.wav", id));
        };
        if !recorded_takes.insert((speaker.to_owned(), digit, take)) {
            return Err(path_error(
                &path,
                "recordings that occur once",
                "another one of the same digit, speaker and take",
            ));
        }
        let audio = audio::read_within(&path, 2.0 * SECONDS_RANGE.end())?;
        check_sample_rate(&path, SAMPLE_RATE, audio.sample_rate)?;
        check_seconds(&path, audio.samples.len() as u64, SAMPLE_RATE, &SECONDS_RANGE)?;
        if strings.is_some() {
            let (id, speaker, samples) = (id.clone(), speaker.to_owned(), audio.i16_samples().collect());
            recordings.push(Recording { id, speaker, digit, word: DIGITS[digit as usize], take, samples });
        }
        utterances.push(CheckedUtterance {
            text: DIGITS[digit as usize].to_owned(),
            speaker: speaker.to_owned(),
            split: if take < TEST_TAKES { "test" } else { "train" },
            id,
            subset: None,
            audio_file: AudioSource::ReadableFile(path),
            num_samples: audio.samples.len() as u64,
            sample_rate: SAMPLE_RATE,
            crc32: Some(audio.crc32()),
        });
    }
    if utterances.is_empty() {
        return Err(path_error(&folder, "recordings DIGIT_SPEAKER_TAKE.wav", "none"));
    }
    if !prepare.allow_incomplete {
        check_complete(&folder, &recorded_takes)?;
    }
    // Sorts them into lists, and draws strings.
    let list = |name, split: Option<&str>| CorpusList {
        name,
        utterances: utterances
            .iter()
            .filter(|utterance| split.is_none_or(|split| utterance.split == split))
            .collect(),
        is_union: split.is_none(),
        excluded: 0,
    };
    let mut lists = vec![list("train", Some("train")), list("test", Some("test"))];
    if strings.is_some() {
        lists.insert(0, list("recordings", None));
    }
    lists.retain(|list| !list.utterances.is_empty());
    let string_lists = strings
        .map(|strings| digit_strings::draw_lists(&folder, &recordings, strings, SAMPLE_RATE))
        .transpose()?;
    write::write_lists(output, prepare, &lists, &string_lists.unwrap_or_default())
}

/// Parses digit, speaker and take in the name of a recording.
fn parse_name(id: &str) -> Option<(u32, &str, u32)> {
    let (digit, rest) = id.split_once('_')?;
    let (speaker, take) = rest.rsplit_once('_')?;
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
    Some((number(digit).filter(|&digit| digit < 10)?, speaker, number(take)?)).filter(|_| !speaker.is_empty())
}

/// Checks that every speaker has all takes of all digits.
fn check_complete(folder: &Path, recorded_takes: &BTreeSet<(String, u32, u32)>) -> Result<()> {
    let names = recorded_takes.iter().map(|(speaker, ..)| speaker.as_str());
    let speakers: BTreeSet<&str> = names.chain(SPEAKERS).collect();
    for speaker in speakers {
        for digit in 0..10 {
            for take in 0..TAKES_PER_DIGIT {
                if !recorded_takes.contains(&(speaker.to_owned(), digit, take)) {
                    let expected = format!("{digit}_{speaker}_{take}.wav, unless it is an excerpt");
                    return Err(path_error(folder, expected, "no such file"));
                }
            }
        }
    }
    Ok(())
}
