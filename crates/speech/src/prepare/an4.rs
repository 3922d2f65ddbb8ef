//! The Census database of Carnegie Mellon University, AN4 (Acero 1993).

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::check::{self, Ids, wrong, wrong_line};
use super::list::{CorpusList, CorpusSummary, Item, Sound};
use super::{PrepareOptions, inside, sphere, write};
use crate::{Result, audio};

const RATE: u32 = 16_000;
const SECONDS: RangeInclusive<f64> = 0.1..=30.0;
/// Utterances of the distribution.
const TRAIN: usize = 948;
const TEST: usize = 130;
/// Speakers of the training set that are held out, two women and four men: those of the recipes' dev set, so that results compare.
const DEV: [&str; 6] = ["fbbh", "fejs", "mgah", "mrab", "msmn", "msrb"];

/// Prepares AN4 from its distribution: SPHERE files, raw samples of either order of bytes, or WAV files that somebody made of them.
///
/// `test` is the test set of the distribution; `dev` is what six speakers of its training set say (`fbbh`, `fejs`, `mgah`, `mrab`,
/// `msmn`, `msrb`), `train` the rest, so that no two lists share a speaker. SPHERE and raw files become WAV files in `audio` in the
/// output folder, or members of shards. Each line has the CRC-32 of its samples.
///
/// # Errors
/// [`Error::Corpus`](crate::Error::Corpus), [`Error::CorpusLine`](crate::Error::CorpusLine): missing lists; ids without transcript, transcript or sound missing, ids that occur
/// twice; other characters than a to z, apostrophe and space; another number of utterances than 948 and 130; lengths that make no
/// sense; a header or checksum that does not fit. Sound that cannot be read, is not mono or not at 16 kHz. [`Error::Write`](crate::Error::Write).
///
/// Cost: O(samples).
pub fn an4(dir: &Path, prepare: &PrepareOptions) -> Result<Vec<CorpusSummary>> {
    let output = write::OutputFolder::new(prepare, dir)?;
    let root = inside(dir, "an4");
    let mut ids = Ids::default();
    let (training, left_out) = read(&root, "train", TRAIN, prepare.allow_incomplete, &mut ids)?;
    let (test, left_out_of_test) = read(&root, "test", TEST, prepare.allow_incomplete, &mut ids)?;
    let list = |name, items: Vec<_>, left_out| CorpusList { name, items, joined: false, left_out };
    let of = |split| training.iter().filter(|item| item.split == split).collect::<Vec<_>>();
    let mut lists = vec![list("train", of("train"), left_out)];
    lists.push(list("dev", of("dev"), 0));
    lists.push(list("test", test.iter().collect(), left_out_of_test));
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
    let (mut items, mut left_out) = (Vec::new(), 0);
    for (number, file) in check::lines(&list)? {
        let id = file.rsplit('/').next().unwrap_or(&file).to_owned();
        let &[_, speaker, _] = id.split('-').collect::<Vec<_>>().as_slice() else {
            return Err(wrong_line(&list, number, "FOLDER/PROMPT-SPEAKER-TAKE", format!("`{file}`")));
        };
        ids.take(&id, &list, number)?;
        let Some((_, text)) = texts.remove(&id) else {
            return Err(wrong_line(
                &list,
                number,
                format!("a transcript in {}", transcription.display()),
                format!("none of `{id}`"),
            ));
        };
        let Some(path) = sound_of(&root.join("wav"), &file) else {
            if excerpt {
                left_out += 1;
                continue;
            }
            return Err(wrong_line(&list, number, format!("wav/{file}.sph, .raw or .wav"), "no such file"));
        };
        let foreign = !check::ends(&path, "wav");
        let audio =
            if foreign { sphere::audio(&path)? } else { audio::read_within(&path, 2.0 * SECONDS.end())? };
        check::rate(&path, RATE, audio.sample_rate)?;
        let samples = audio.samples.len() as u64;
        check::seconds(&path, samples, RATE, &SECONDS)?;
        items.push(Item {
            text,
            split: if set == "train" && DEV.contains(&speaker) { "dev" } else { set },
            speaker: speaker.to_owned(),
            id,
            subset: None,
            sound: if foreign { Sound::Foreign(path) } else { Sound::Known(path) },
            samples,
            rate: RATE,
            crc32: Some(audio.crc32()),
        });
    }
    if let Some((id, (line, _))) = texts.iter().min_by_key(|(_, (line, _))| *line) {
        return Err(wrong_line(
            &transcription,
            *line,
            format!("an id of {}", list.display()),
            format!("`{id}`"),
        ));
    }
    check::count(&list, count, items.len(), excerpt)?;
    Ok((items, left_out))
}

/// Line and text of each id: `<s> TEXT </s> (ID)`, or the same without marks.
fn transcripts(path: &Path) -> Result<HashMap<String, (usize, String)>> {
    let mut found = HashMap::new();
    for (number, line) in check::lines(path)? {
        let Some((said, id)) = line.strip_suffix(')').and_then(|line| line.rsplit_once('(')) else {
            return Err(wrong_line(path, number, "TEXT (ID)", format!("{line:?}")));
        };
        let said = said.trim();
        let said = said.strip_prefix("<s>").unwrap_or(said);
        let said = said.strip_suffix("</s>").unwrap_or(said);
        let text = check::text(path, number, said)?;
        if let Some((first, _)) = found.insert(id.to_owned(), (number, text)) {
            return Err(wrong_line(
                path,
                number,
                "ids that occur once",
                format!("`{id}` on line {first} too"),
            ));
        }
    }
    match found.is_empty() {
        true => Err(wrong(path, "transcripts", "none")),
        false => Ok(found),
    }
}

fn sound_of(folder: &Path, file: &str) -> Option<PathBuf> {
    let paths = ["sph", "raw", "wav"].map(|ending| folder.join(format!("{file}.{ending}")));
    paths.into_iter().find(|path| path.is_file())
}
