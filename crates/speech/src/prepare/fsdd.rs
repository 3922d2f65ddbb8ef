//! The Free Spoken Digit Dataset.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use super::check::{self, wrong};
use super::list::{CorpusList, CorpusSummary, Item, Sound};
use super::strings::{self, Recording, StringCounts};
use super::{PrepareOptions, inside, write};
use crate::{Error, Result, audio};

const RATE: u32 = 8000;
const SECONDS: RangeInclusive<f64> = 0.05..=10.0;
const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
/// Its speakers, each of whom says every digit fifty times; more may have been added since.
const SPEAKERS: [&str; 6] = ["george", "jackson", "lucas", "nicolas", "theo", "yweweler"];
const TAKES: u32 = 50;
/// Takes 0 to 4 are its test set.
const TEST_TAKES: u32 = 5;

/// Prepares a checkout of the Free Spoken Digit Dataset: takes 0 to 4 of each digit and speaker are `test`, the others `train`.
///
/// With `strings`, also `recordings.jsonl` and strings of its digits: `strings_train`, `strings_dev` and `strings_test`, from takes
/// 10 and on, 5 to 9, and 0 to 4. Each line has the CRC-32 of its samples.
///
/// # Errors
/// [`Error::Corpus`]: no recording; a name that is not `DIGIT_SPEAKER_TAKE.wav`; a digit of one of the speakers that is missing;
/// lengths that make no sense. Sound that cannot be read, is not mono or not at 8 kHz. [`Error::Setting`] for strings in shards, which
/// have no sound of their own. [`Error::Write`].
///
/// Cost: O(samples).
pub fn fsdd(
    dir: &Path,
    prepare: &PrepareOptions,
    strings: Option<&StringCounts>,
) -> Result<Vec<CorpusSummary>> {
    if strings.is_some() && prepare.shards.is_some() {
        let (expected, found) = ("none for strings, which have no sound of their own".into(), "some".into());
        return Err(Error::Setting { field: "shards", expected, found });
    }
    let output = write::OutputFolder::new(prepare, dir)?;
    let folder = inside(dir, "recordings");
    let (mut items, mut recordings, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in check::entries(&folder)?.into_iter().filter(|path| check::ends(path, "wav")) {
        let id = check::stem(&path);
        let Some((digit, speaker, take)) = parse(&id) else {
            return Err(wrong(&path, "a name DIGIT_SPEAKER_TAKE.wav", id));
        };
        if !seen.insert((speaker.to_owned(), digit, take)) {
            return Err(wrong(
                &path,
                "recordings that occur once",
                "another one of the same digit, speaker and take",
            ));
        }
        let audio = audio::read_within(&path, 2.0 * SECONDS.end())?;
        check::rate(&path, RATE, audio.sample_rate)?;
        check::seconds(&path, audio.samples.len() as u64, RATE, &SECONDS)?;
        if strings.is_some() {
            let (id, speaker, samples) = (id.clone(), speaker.to_owned(), audio.i16_samples().collect());
            recordings.push(Recording { id, speaker, digit, word: DIGITS[digit as usize], take, samples });
        }
        items.push(Item {
            text: DIGITS[digit as usize].to_owned(),
            speaker: speaker.to_owned(),
            split: if take < TEST_TAKES { "test" } else { "train" },
            id,
            subset: None,
            sound: Sound::Known(path),
            samples: audio.samples.len() as u64,
            rate: RATE,
            crc32: Some(audio.crc32()),
        });
    }
    if items.is_empty() {
        return Err(wrong(&folder, "recordings DIGIT_SPEAKER_TAKE.wav", "none"));
    }
    if !prepare.allow_incomplete {
        complete(&folder, &seen)?;
    }
    let list = |name, split: Option<&str>| CorpusList {
        name,
        items: items.iter().filter(|item| split.is_none_or(|split| item.split == split)).collect(),
        joined: split.is_none(),
        left_out: 0,
    };
    let mut lists = vec![list("train", Some("train")), list("test", Some("test"))];
    if strings.is_some() {
        lists.insert(0, list("recordings", None));
    }
    lists.retain(|list| !list.items.is_empty());
    let drawn = strings.map(|strings| strings::draw(&folder, &recordings, strings, RATE)).transpose()?;
    write::lists(output, prepare, &lists, &drawn.unwrap_or_default())
}

/// Digit, speaker and take.
fn parse(id: &str) -> Option<(u32, &str, u32)> {
    let (digit, rest) = id.split_once('_')?;
    let (speaker, take) = rest.rsplit_once('_')?;
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
    Some((number(digit).filter(|&digit| digit < 10)?, speaker, number(take)?)).filter(|_| !speaker.is_empty())
}

/// All digits of all speakers.
fn complete(folder: &Path, seen: &BTreeSet<(String, u32, u32)>) -> Result<()> {
    let found = seen.iter().map(|(speaker, ..)| speaker.as_str());
    let speakers: BTreeSet<&str> = found.chain(SPEAKERS).collect();
    for speaker in speakers {
        for digit in 0..10 {
            for take in 0..TAKES {
                if !seen.contains(&(speaker.to_owned(), digit, take)) {
                    let expected = format!("{digit}_{speaker}_{take}.wav, unless it is an excerpt");
                    return Err(wrong(folder, expected, "no such file"));
                }
            }
        }
    }
    Ok(())
}
