//! What a run folder holds.
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use recognizer::Metric;
use recognizer::{BadItems, Evaluation, Transcript};
use speech::Utterance;
use speech::files::read_input_text;
use training::Recipe;

use crate::columns::Columns;
use crate::{Error, Result};

/// A run as it is on disk, finished or not.
pub struct Run {
    /// The folder's name.
    pub(crate) name: String,
    /// The recipe's text.
    pub(crate) text: String,
    /// The same understood; none for recipes of other versions.
    pub(crate) recipe: Option<Recipe>,
    pub(crate) metrics: Columns,
    /// What was heard in each set.
    pub(crate) sets: TranscriptsBySet,
    /// The utterances of each set that could not be used, and recordings of another length than their lines.
    pub(crate) bad: BTreeMap<String, BadItems>,
    /// The utterances of the sets, as far as their manifests were found, by id.
    pub(crate) utterances: BTreeMap<String, BTreeMap<String, Utterance>>,
    /// Parameters of each part of the model.
    pub(crate) parameters: BTreeMap<String, usize>,
    /// What was left out, and why.
    pub(crate) notes: Vec<String>,
    /// Files that it was read from.
    files: Vec<PathBuf>,
}

impl Run {
    /// Reads all of it but the recordings; `place` is the recipe in its place, from where its manifests are found, none: where it was
    /// when the run began. What cannot be found (an old run's manifests, a checkpoint) is left out, and the page says so.
    ///
    /// # Errors
    /// [`Error::NoRun`] if the folder holds none; [`Error::Io`], [`Error::Metrics`] and [`Error::Line`] for files of it that cannot
    /// be read; with `place`, the same for that, and [`Error::Training`] if its manifests cannot be read.
    pub fn read(folder: &Path, place: Option<&Path>) -> Result<Self> {
        let path = folder.join("recipe.toml");
        if !path.exists() {
            return Err(Error::NoRun { path: folder.to_owned() });
        }
        let text = read_input_text(&path).map_err(Error::io(&path))?;
        let name = folder.canonicalize().unwrap_or(folder.to_owned());
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut notes = Vec::new();
        let recipe = Recipe::parse(&text, &path).map_err(|error| notes.push(error.to_string())).ok();
        let (sets, bad) = sets(folder)?;
        let mut run = Run {
            name,
            text,
            recipe,
            metrics: Columns::read(&folder.join("metrics.csv"))?,
            sets,
            bad,
            utterances: BTreeMap::new(),
            parameters: parameters(folder),
            notes,
            files: files(folder)?,
        };
        if let Some(place) = place {
            run.compare(place)?;
            run.files.push(place.to_owned());
        }
        if run.parameters.is_empty() {
            run.notes.push("There is no checkpoint to count parameters in.".to_owned());
        }
        run.read_manifests(folder, place)?;
        Ok(run)
    }

    /// Says so if the recipe in its place is another one, as far as its manifests go.
    fn compare(&mut self, place: &Path) -> Result<()> {
        let text = read_input_text(place).map_err(Error::io(place))?;
        let Some(Recipe { data: own, .. }) = &self.recipe else { return Ok(()) };
        let where_from = "the manifests of the run's recipe were looked for from there";
        match Recipe::parse(&text, place) {
            Ok(Recipe { data, .. }) if (&data.dev, &data.test) == (&own.dev, &own.test) => {}
            Ok(_) => self.notes.push(format!("{} names other manifests; {where_from}.", place.display())),
            Err(error) => self.notes.push(format!("{error}; {where_from}.")),
        }
        Ok(())
    }

    /// What no page may take the place of: the files of the run, manifests, recordings.
    pub fn inputs(&self) -> impl Iterator<Item = &Path> {
        let recordings = self.utterances.values().flat_map(BTreeMap::values).flat_map(Utterance::files);
        self.files.iter().map(PathBuf::as_path).chain(recordings)
    }

    /// The rate that this run is about.
    pub(crate) fn metric(&self) -> Metric {
        self.recipe.as_ref().map_or(Metric::default(), |recipe| recipe.training.run.metric)
    }

    /// The utterances themselves, and speakers where hypotheses do not say them.
    fn read_manifests(&mut self, folder: &Path, place: Option<&Path>) -> Result<()> {
        let Some(recipe) = &self.recipe else { return Ok(()) };
        let began = read_input_text(&folder.join("recipe.path")).map(PathBuf::from).ok();
        let base = place.or(began.as_deref()).and_then(Path::parent).unwrap_or(folder);
        for (name, transcripts) in &mut self.sets {
            let manifests = if name == "dev" { &recipe.data.dev } else { &recipe.data.test };
            let manifests: Vec<PathBuf> = manifests.iter().map(|path| base.join(path)).collect();
            self.files.extend(manifests.iter().cloned());
            let utterances = match training::data::read_manifests(name, &manifests) {
                Ok(listed) => {
                    self.notes.extend(listed.warnings);
                    listed.utterances
                }
                Err(error) if place.is_some() => return Err(error.into()),
                Err(error) => {
                    let advice = "--recipe names the recipe in its place";
                    self.notes.push(format!("The manifests of {name} cannot be read ({error}); {advice}."));
                    continue;
                }
            };
            // Of two of one name, nobody knows which was heard.
            let mut counts = BTreeMap::<String, usize>::new();
            utterances.iter().for_each(|utterance| *counts.entry(utterance.id.clone()).or_default() += 1);
            let named = utterances.into_iter().map(|utterance| (utterance.id.clone(), utterance));
            let mut utterances: BTreeMap<String, Utterance> =
                named.filter(|(id, _)| counts[id] == 1).collect();
            for one in transcripts.iter_mut() {
                match utterances.get(&one.id).filter(|utterance| utterance.text == one.reference) {
                    Some(utterance) => one.speaker = one.speaker.take().or(utterance.speaker.clone()),
                    // Another one of the same name.
                    None => drop(utterances.remove(&one.id)),
                }
            }
            self.utterances.insert(name.clone(), utterances);
        }
        Ok(())
    }
}

/// The files of a run folder, but for pages.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(Error::io(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(Error::io(folder)));
    let page = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "html");
    paths.filter(|path| !path.as_ref().is_ok_and(page)).collect()
}

/// Transcripts of each set.
type TranscriptsBySet = BTreeMap<String, Vec<Transcript>>;

/// Reads all files `SET.hypotheses.jsonl`, and the bad items of each set.
fn sets(folder: &Path) -> Result<(TranscriptsBySet, BTreeMap<String, BadItems>)> {
    let (mut sets, mut bad) = (BTreeMap::new(), training::run_folder::read_bad_items(folder));
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".hypotheses.jsonl").filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let text = read_input_text(&path).map_err(Error::io(&path))?;
        let read = Evaluation::read(&text);
        let read = read.map_err(|(line, source)| Error::Line { path: path.clone(), line, source })?;
        if !read.bad.is_empty() {
            bad.entry(format!("data.{name}")).or_insert(read.bad);
        }
        sets.insert(name.to_owned(), read.transcripts);
    }
    bad.retain(|_, items| !items.is_empty());
    Ok((sets, bad))
}

/// Numbers of parameters by the first part of their names, from the header of a checkpoint; none where there is no sound one.
fn parameters(folder: &Path) -> BTreeMap<String, usize> {
    let mut parts = BTreeMap::new();
    let checkpoints = ["best.safetensors", "last.safetensors"].map(|name| folder.join(name));
    let Some(shapes) = checkpoints.iter().find_map(|path| model::checkpoint::shapes(path).ok()) else {
        return parts;
    };
    for (name, shape) in shapes {
        let part = name.split('.').next().unwrap_or_default().to_owned();
        *parts.entry(part).or_default() += shape.iter().product::<usize>();
    }
    parts
}
