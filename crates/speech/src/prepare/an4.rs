//! Prepares the speech corpus AN4 of Carnegie Mellon University (Acero 1993).

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::check::{
    self, IdLocations, check_count, check_sample_rate, check_seconds, line_error, path_error,
};
use super::corpus_list::{AudioSource, CheckedUtterance, CorpusList, CorpusSummary};
use super::{PrepareOptions, corpus_files, sphere, subfolder_or_self, write};
use crate::{Result, audio};

/// Sample rate of the corpus in hertz.
const SAMPLE_RATE: u32 = 16_000;
/// Plausible lengths in seconds.
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
    let mut ids = IdLocations::default();
    let (training, excluded_training) =
        read_set(&root, "train", TRAIN_UTTERANCES, prepare.allow_incomplete, &mut ids)?;
    let (test, excluded_test) = read_set(&root, "test", TEST_UTTERANCES, prepare.allow_incomplete, &mut ids)?;
    let list =
        |name, utterances: Vec<_>, excluded| CorpusList { name, utterances, is_union: false, excluded };
    let in_split = |split| training.iter().filter(|utterance| utterance.split == split).collect::<Vec<_>>();
    let mut lists = vec![list("train", in_split("train"), excluded_training)];
    lists.push(list("dev", in_split("dev"), 0));
    lists.push(list("test", test.iter().collect(), excluded_test));
    lists.retain(|list| !list.utterances.is_empty());
    write::write_lists(output, prepare, &lists, &[])
}

/// Reads the utterances of a set, `train` or `test`.
///
/// Also returns the number of transcripts without audio.
fn read_set(
    root: &Path,
    set: &'static str,
    expected_count: usize,
    allow_incomplete: bool,
    ids: &mut IdLocations,
) -> Result<(Vec<CheckedUtterance>, usize)> {
    let list = root.join(format!("etc/an4_{set}.fileids"));
    let transcription = root.join(format!("etc/an4_{set}.transcription"));
    let mut texts = read_transcripts(&transcription)?;
    let (mut utterances, mut excluded) = (Vec::new(), 0);
    for (number, file) in corpus_files::read_lines(&list)? {
        // The id, its speaker, transcript and audio file.
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
            if allow_incomplete {
                excluded += 1;
                continue;
            }
            return Err(line_error(&list, number, format!("wav/{file}.sph, .raw or .wav"), "no such file"));
        };
        // Reads and checks the audio.
        let needs_conversion = !corpus_files::has_extension(&path, "wav");
        let audio = if needs_conversion {
            sphere::read_audio(&path)?
        } else {
            audio::read_within(&path, 2.0 * SECONDS_RANGE.end())?
        };
        check_sample_rate(&path, SAMPLE_RATE, audio.sample_rate)?;
        let num_samples = audio.samples.len() as u64;
        check_seconds(&path, num_samples, SAMPLE_RATE, &SECONDS_RANGE)?;
        utterances.push(CheckedUtterance {
            text,
            split: if set == "train" && DEV_SPEAKERS.contains(&speaker) { "dev" } else { set },
            speaker: speaker.to_owned(),
            id,
            subset: None,
            audio_file: if needs_conversion {
                AudioSource::FileToConvert(path)
            } else {
                AudioSource::ReadableFile(path)
            },
            num_samples,
            sample_rate: SAMPLE_RATE,
            crc32: Some(audio.crc32()),
        });
    }
    // Every transcript has an id in the list.
    if let Some((id, (line, _))) = texts.iter().min_by_key(|(_, (line, _))| *line) {
        return Err(line_error(
            &transcription,
            *line,
            format!("an id of {}", list.display()),
            format!("`{id}`"),
        ));
    }
    check_count(&list, expected_count, utterances.len(), allow_incomplete)?;
    Ok((utterances, excluded))
}

/// Returns line and text of each id: `<s> TEXT </s> (ID)`, or without marks.
fn read_transcripts(path: &Path) -> Result<HashMap<String, (usize, String)>> {
    let mut transcripts = HashMap::new();
    for (number, line) in corpus_files::read_lines(path)? {
        let Some((text, id)) = line.strip_suffix(')').and_then(|line| line.rsplit_once('(')) else {
            return Err(line_error(path, number, "TEXT (ID)", format!("{line:?}")));
        };
        let text = text.trim();
        let text = text.strip_prefix("<s>").unwrap_or(text);
        let text = text.strip_suffix("</s>").unwrap_or(text);
        let text = check::normalize_transcript(path, number, text)?;
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

/// Returns the audio file of an id, in any supported format.
fn find_audio(folder: &Path, file: &str) -> Option<PathBuf> {
    let paths = ["sph", "raw", "wav"].map(|extension| folder.join(format!("{file}.{extension}")));
    paths.into_iter().find(|path| path.is_file())
}
