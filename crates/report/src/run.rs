//! `Run`: reads a run folder for its report: recipe, metrics, transcripts, manifests.
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

/// Contents of a run folder, finished or not.
pub struct Run {
    /// Name of the folder.
    pub(crate) name: String,
    /// Text of the recipe.
    pub(crate) recipe_text: String,
    /// Parsed recipe, with the names of earlier versions translated; none if it is invalid.
    pub(crate) recipe: Option<Recipe>,
    /// Columns of `metrics.csv`.
    pub(crate) metrics: Columns,
    /// References and hypotheses of each set.
    pub(crate) transcripts: TranscriptsBySet,
    /// Unusable utterances and recordings of unexpected length of each set.
    pub(crate) bad_items: BTreeMap<String, BadItems>,
    /// Utterances of each set by id, from readable manifests.
    pub(crate) utterances: BTreeMap<String, BTreeMap<String, Utterance>>,
    /// Parameter count of each part of the model.
    pub(crate) parameters: BTreeMap<String, usize>,
    /// Parts that are left out, with the reason.
    pub(crate) notes: Vec<String>,
    /// Files of the run and its manifests.
    files: Vec<PathBuf>,
}

impl Run {
    /// Reads a run folder and its manifests, without the recordings.
    ///
    /// Paths of manifests are relative to `recipe_path`, or to the recipe's path at the start of
    /// the run if it is `None`. Missing manifests and checkpoints are left out with a note on the
    /// page.
    ///
    /// # Errors
    /// [`Error::NoRun`] for a folder without a run; [`Error::Io`], [`Error::Metrics`] and
    /// [`Error::Line`] for its unreadable files. With `recipe_path`, also for that file, and
    /// [`Error::Training`] for unreadable manifests.
    pub fn read(folder: &Path, recipe_path: Option<&Path>) -> Result<Self> {
        // The recipe.
        let path = folder.join("recipe.toml");
        if !path.exists() {
            return Err(Error::NoRun { path: folder.to_owned() });
        }
        let recipe_text = read_input_text(&path).map_err(Error::io(&path))?;
        let name = folder.canonicalize().unwrap_or(folder.to_owned());
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut notes = Vec::new();
        let recipe =
            Recipe::parse_of_run(&recipe_text, &path).map_err(|error| notes.push(error.to_string())).ok();
        // The other files of the folder.
        let (transcripts, bad_items) = read_sets(folder)?;
        let mut run = Run {
            name,
            recipe_text,
            recipe,
            metrics: Columns::read(&folder.join("metrics.csv"))?,
            transcripts,
            bad_items,
            utterances: BTreeMap::new(),
            parameters: count_parameters(folder),
            notes,
            files: list_files(folder)?,
        };
        // The manifests.
        if let Some(path) = recipe_path {
            run.compare_manifests(path)?;
            run.files.push(path.to_owned());
        }
        if run.parameters.is_empty() {
            run.notes.push("Parameter counts are missing: the run folder has no checkpoint.".to_owned());
        }
        run.read_manifests(folder, recipe_path)?;
        Ok(run)
    }

    /// Adds a note if another recipe names other manifests than the run's.
    fn compare_manifests(&mut self, path: &Path) -> Result<()> {
        let text = read_input_text(path).map_err(Error::io(path))?;
        let Some(Recipe { data: run_data, .. }) = &self.recipe else { return Ok(()) };
        let resolution = "the manifests of the run's recipe are resolved relative to it";
        match Recipe::parse_of_run(&text, path) {
            Ok(Recipe { data, .. }) if (&data.dev, &data.test) == (&run_data.dev, &run_data.test) => {}
            Ok(_) => self.notes.push(format!("{} names other manifests; {resolution}.", path.display())),
            Err(error) => self.notes.push(format!("{error}; {resolution}.")),
        }
        Ok(())
    }

    /// Returns the files of the run, its manifests and recordings.
    ///
    /// The page must not overwrite them.
    pub fn inputs(&self) -> impl Iterator<Item = &Path> {
        let recordings = self.utterances.values().flat_map(BTreeMap::values).flat_map(Utterance::files);
        self.files.iter().map(PathBuf::as_path).chain(recordings)
    }

    /// Returns the error rate that the run selects checkpoints by.
    pub(crate) fn metric(&self) -> Metric {
        self.recipe.as_ref().map_or(Metric::default(), |recipe| recipe.training.run.metric)
    }

    /// Reads the utterances of the sets, and speakers that the hypotheses lack.
    fn read_manifests(&mut self, folder: &Path, recipe_path: Option<&Path>) -> Result<()> {
        let Some(recipe) = &self.recipe else { return Ok(()) };
        let original_path = read_input_text(&folder.join("recipe.path")).map(PathBuf::from).ok();
        let base = recipe_path.or(original_path.as_deref()).and_then(Path::parent).unwrap_or(folder);
        for (set, transcripts) in &mut self.transcripts {
            let manifests = if set == "dev" { &recipe.data.dev } else { &recipe.data.test };
            let manifests: Vec<PathBuf> = manifests.iter().map(|path| base.join(path)).collect();
            self.files.extend(manifests.iter().cloned());
            let utterances = match training::data::read_manifests(set, &manifests) {
                Ok(manifest) => {
                    self.notes.extend(manifest.warnings);
                    manifest.utterances
                }
                Err(error) if recipe_path.is_some() => return Err(error.into()),
                Err(error) => {
                    let advice = "give the path of the recipe with --recipe";
                    self.notes.push(format!("The manifests of {set} cannot be read ({error}); {advice}."));
                    continue;
                }
            };
            // Utterances by id; repeated ids are ambiguous.
            let mut id_counts = BTreeMap::<String, usize>::new();
            utterances.iter().for_each(|utterance| *id_counts.entry(utterance.id.clone()).or_default() += 1);
            let with_ids = utterances.into_iter().map(|utterance| (utterance.id.clone(), utterance));
            let mut utterances: BTreeMap<String, Utterance> =
                with_ids.filter(|(id, _)| id_counts[id] == 1).collect();
            // Speakers of the transcripts.
            for transcript in transcripts.iter_mut() {
                let utterance = utterances.get(&transcript.id);
                match utterance.filter(|utterance| utterance.text == transcript.reference) {
                    Some(utterance) => {
                        transcript.speaker = transcript.speaker.take().or(utterance.speaker.clone());
                    }
                    // Another utterance with the same id.
                    None => drop(utterances.remove(&transcript.id)),
                }
            }
            self.utterances.insert(set.clone(), utterances);
        }
        Ok(())
    }
}

/// Returns the files of a run folder except HTML pages.
fn list_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(Error::io(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(Error::io(folder)));
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "html");
    paths.filter(|path| !path.as_ref().is_ok_and(is_page)).collect()
}

/// Transcripts by the name of their set.
type TranscriptsBySet = BTreeMap<String, Vec<Transcript>>;

/// Reads transcripts (`SET.hypotheses.jsonl`) and bad items of each set.
fn read_sets(folder: &Path) -> Result<(TranscriptsBySet, BTreeMap<String, BadItems>)> {
    let (mut transcripts, mut bad_items) = (BTreeMap::new(), training::run_folder::read_bad_items(folder));
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(set) = name.strip_suffix(".hypotheses.jsonl").filter(|set| !set.starts_with('.')) else {
            continue;
        };
        let text = read_input_text(&path).map_err(Error::io(&path))?;
        let evaluation = Evaluation::read(&text).map_err(|(line, source)| Error::Line {
            path: path.clone(),
            line,
            source,
        })?;
        if !evaluation.bad.is_empty() {
            bad_items.entry(format!("data.{set}")).or_insert(evaluation.bad);
        }
        transcripts.insert(set.to_owned(), evaluation.transcripts);
    }
    bad_items.retain(|_, items| !items.is_empty());
    Ok((transcripts, bad_items))
}

/// Counts parameters by the first part of their names.
///
/// Reads the header of the best or last checkpoint; returns an empty map without a valid one.
fn count_parameters(folder: &Path) -> BTreeMap<String, usize> {
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
