//! Prepares the AN4 corpus of Carnegie Mellon University (Acero 1993).

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::check::{self, Ids, line_error, path_error};
use super::list::{CorpusList, CorpusSummary, Item, Sound};
use super::{PrepareOptions, sphere, subfolder_or_self, write};
use crate::{Result, audio};

const SAMPLE_RATE: u32 = 16_000;
const SECONDS_RANGE: RangeInclusive<f64> = 0.1..=30.0;
/// Training utterances of the distribution.
const TRAIN_UTTERANCES: usize = 948;
/// Test utterances of the distribution.
const TEST_UTTERANCES: usize = 130;
/// Training speakers that form the dev set, two women and four men.
///
/// They are those of the recipes' dev set, so that results are comparable.
const DEV_SPEAKERS: [&str; 6] = ["fbbh", "fejs", "mgah", "mrab", "msmn", "msrb"];

/// Prepares AN4 from its distribution.
///
/// Audio is in SPHERE files, raw samples of either byte order, or converted WAV files.
///
/// `test` is the test set of the distribution; `dev` has six speakers of its training set (`fbbh`,
/// `fejs`, `mgah`, `mrab`, `msmn`, `msrb`), `train` the others, so that no two lists share a
/// speaker. SPHERE and raw files are converted to WAV files in `audio` in the output folder, or to
/// members of shards. Each line has the CRC-32 of its samples.
///
/// # Errors
/// [`Error::Corpus`](crate::Error::Corpus) and [`Error::CorpusLine`](crate::Error::CorpusLine) for
/// missing lists; ids without transcript or audio, transcripts without id, duplicate ids;
/// characters other than a to z, apostrophe and space; other numbers of utterances than 948 and
/// 130; implausible lengths; an inconsistent header or checksum. Audio that cannot be read, is not
/// mono or not at 16 kHz. [`Error::Write`](crate::Error::Write).
///
/// Cost: O(samples).
pub fn an4(dir: &Path, prepare: &PrepareOptions) -> Result<Vec<CorpusSummary>> {
    let output = write::OutputFolder::new(prepare, dir)?;
    let root = subfolder_or_self(dir, "an4");
    let mut ids = Ids::default();
    let (training, excluded) = read(&root, "train", TRAIN_UTTERANCES, prepare.allow_incomplete, &mut ids)?;
    let (test, excluded_test) = read(&root, "test", TEST_UTTERANCES, prepare.allow_incomplete, &mut ids)?;
    let list = |name, items: Vec<_>, excluded| CorpusList { name, items, joined: false, excluded };
    let of_split = |split| training.iter().filter(|item| item.split == split).collect::<Vec<_>>();
    let mut lists = vec![list("train", of_split("train"), excluded)];
    lists.push(list("dev", of_split("dev"), 0));
    lists.push(list("test", test.iter().collect(), excluded_test));
    lists.retain(|list| !list.items.is_empty());
    write::lists(output, prepare, &lists, &[])
}

fn read(
    root: &Path,
    set: &'static str,
    count: usize,
    excerpt: bool,
    ids: &mut Ids,
) -> Result<(Vec<Item>, usize)> {
    let list = root.join(format!("etc/an4_{set}.fileids"));
    let transcription = root.join(format!("etc/an4_{set}.transcription"));
    let mut texts = transcripts(&transcription)?;
    let (mut items, mut excluded) = (Vec::new(), 0);
    for (number, file) in check::lines(&list)? {
        let id = file.rsplit('/').next().unwrap_or(&file).to_owned();
        let &[_, speaker, _] = id.split('-').collect::<Vec<_>>().as_slice() else {
            return Err(line_error(&list, number, "FOLDER/PROMPT-SPEAKER-TAKE", format!("`{file}`")));
        };
        ids.insert(&id, &list, number)?;
        let Some((_, text)) = texts.remove(&id) else {
            return Err(line_error(
                &list,
                number,
                format!("a transcript in {}", transcription.display()),
                format!("none of `{id}`"),
            ));
        };
        let Some(path) = find_audio(&root.join("wav"), &file) else {
            if excerpt {
                excluded += 1;
                continue;
            }
            return Err(line_error(&list, number, format!("wav/{file}.sph, .raw or .wav"), "no such file"));
        };
        let needs_conversion = !check::has_extension(&path, "wav");
        let audio = if needs_conversion {
            sphere::audio(&path)?
        } else {
            audio::read_within(&path, 2.0 * SECONDS_RANGE.end())?
        };
        check::rate(&path, SAMPLE_RATE, audio.sample_rate)?;
        let samples = audio.samples.len() as u64;
        check::seconds(&path, samples, SAMPLE_RATE, &SECONDS_RANGE)?;
        items.push(Item {
            text,
            split: if set == "train" && DEV_SPEAKERS.contains(&speaker) { "dev" } else { set },
            speaker: speaker.to_owned(),
            id,
            subset: None,
            sound: if needs_conversion { Sound::Convert(path) } else { Sound::Supported(path) },
            samples,
            rate: SAMPLE_RATE,
            crc32: Some(audio.crc32()),
        });
    }
    if let Some((id, (line, _))) = texts.iter().min_by_key(|(_, (line, _))| *line) {
        return Err(line_error(
            &transcription,
            *line,
            format!("an id of {}", list.display()),
            format!("`{id}`"),
        ));
    }
    check::count(&list, count, items.len(), excerpt)?;
    Ok((items, excluded))
}

/// Returns line and text of each id: `<s> TEXT </s> (ID)`, or without marks.
fn transcripts(path: &Path) -> Result<HashMap<String, (usize, String)>> {
    let mut transcripts = HashMap::new();
    for (number, line) in check::lines(path)? {
        let Some((text, id)) = line.strip_suffix(')').and_then(|line| line.rsplit_once('(')) else {
            return Err(line_error(path, number, "TEXT (ID)", format!("{line:?}")));
        };
        let text = text.trim();
        let text = text.strip_prefix("<s>").unwrap_or(text);
        let text = text.strip_suffix("</s>").unwrap_or(text);
        let text = check::text(path, number, text)?;
        if let Some((first, _)) = transcripts.insert(id.to_owned(), (number, text)) {
            return Err(line_error(
                path,
                number,
                "ids that occur once",
                format!("`{id}` on line {first} too"),
            ));
        }
    }
    match transcripts.is_empty() {
        true => Err(path_error(path, "transcripts", "none")),
        false => Ok(transcripts),
    }
}

fn find_audio(folder: &Path, file: &str) -> Option<PathBuf> {
    let paths = ["sph", "raw", "wav"].map(|extension| folder.join(format!("{file}.{extension}")));
    paths.into_iter().find(|path| path.is_file())
}
