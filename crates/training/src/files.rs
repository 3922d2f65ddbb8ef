//! `OutputFile`: an output of a command, checked before its computation.
//!
//! Outputs are written as in [`speech::files`]: completely or not at all, links are followed, pipes
//! are supported. An output overwrites neither an input nor a file that a run keeps in its folder.
use std::path::{Path, PathBuf};

use speech::files::{Destination, is_same_file};

use crate::run_files::is_file_of_run;
use crate::{Error, Result};

/// The file of a result, checked before the result is computed.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("words.ctm");
/// let output = training::files::OutputFile::new(&path, &[])?;
/// // A long computation.
/// output.write(b"utterance 1 0.00 0.30 yes 0.99\n")?;
/// assert!(path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    destination: Destination,
}

impl OutputFile {
    /// Opens an output; `-` is standard output.
    ///
    /// Links are followed. A file must be in a folder that can be written to, a pipe must be open.
    ///
    /// # Errors
    /// [`Error::OutputIsInput`] if it is the same file as one of the inputs; [`Error::OutputOfRun`]
    /// for a name that a run uses in the folder; [`Error::Io`](model::Error::Io) if it cannot be
    /// written.
    pub fn new(path: &Path, inputs: &[&Path]) -> Result<Self> {
        let path = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
        if let Some(input) = inputs.iter().find(|input| is_same_file(path, input)) {
            return Err(Error::OutputIsInput { output: path.to_owned(), input: input.to_path_buf() });
        }
        let destination = Destination::open(path).map_err(Error::io(path, "write"))?;
        if destination.resolved_path().is_some_and(|path| is_file_of_run(&path)) {
            return Err(Error::OutputOfRun { output: path.to_owned() });
        }
        destination.check_writable().map_err(Error::io(path, "write"))?;
        Ok(Self { path: path.to_owned(), destination })
    }

    /// Returns the path as given to [`OutputFile::new`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the regular file behind all links; none for pipes and standard output.
    pub fn resolved_path(&self) -> Option<PathBuf> {
        self.destination.resolved_path()
    }

    /// Returns true for standard output.
    pub fn is_standard(&self) -> bool {
        self.destination.is_standard()
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io); an old file is then unchanged, and no partial file remains.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        self.destination.write(bytes).map_err(Error::io(&self.path, "write"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_input_is_rejected_as_output_under_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        fs::write(path_of("input"), b"data").unwrap();
        fs::create_dir(path_of("x")).unwrap();
        let inputs: [&Path; 2] = [Path::new("/nowhere"), &path_of("input")];
        let mut names = vec!["input", "x/../input"];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("input", path_of("link")).unwrap();
            fs::hard_link(path_of("input"), path_of("x/second")).unwrap();
            names.extend(["link", "x/second"]);
        }
        for output in names {
            let error = OutputFile::new(&path_of(output), &inputs).unwrap_err();
            assert!(matches!(error, Error::OutputIsInput { .. }), "{error}");
        }
        OutputFile::new(&path_of("new"), &inputs).unwrap();
        assert!(!path_of("new").exists());
        assert_eq!(fs::read(path_of("input")).unwrap(), b"data");
    }

    #[test]
    fn files_of_a_run_are_rejected_as_outputs() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        let names_of_run = [
            ".lock",
            "recipe.toml",
            "recipe.path",
            "last.safetensors",
            "best.safetensors",
            "epoch-3.safetensors",
            "metrics.csv",
            "curve.svg",
            "evaluation.json",
            "test.hypotheses.jsonl",
            "dev.hypotheses.jsonl",
            "events.out.tfevents.1.x",
        ];
        let other_names =
            ["report.html", "average.safetensors", "epoch-x.safetensors", "metrics.csv.old", "test.ctm"];
        let outcome = |name: &str| OutputFile::new(&path_of(name), &[]).map(drop);
        // Such names are valid in a folder without a run.
        names_of_run.iter().for_each(|name| outcome(name).unwrap());
        for marker in [".lock", "recipe.path"] {
            fs::write(path_of(marker), b"").unwrap();
            for name in names_of_run {
                let error = outcome(name).unwrap_err();
                assert!(matches!(error, Error::OutputOfRun { .. }), "{name}: {error}");
            }
            other_names.iter().for_each(|name| outcome(name).unwrap());
            fs::remove_file(path_of(marker)).unwrap();
        }
        fs::write(path_of("recipe.path"), b"").unwrap();
        #[cfg(unix)]
        {
            // Also through a link.
            let elsewhere = tempfile::tempdir().unwrap();
            let link = elsewhere.path().join("mean.safetensors");
            std::os::unix::fs::symlink(path_of("last.safetensors"), &link).unwrap();
            assert!(matches!(OutputFile::new(&link, &[]), Err(Error::OutputOfRun { .. })));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // The folder of the event files, existing or not, and the files in it.
        assert!(matches!(outcome("tensorboard"), Err(Error::OutputOfRun { .. })));
        fs::create_dir(path_of("tensorboard")).unwrap();
        let event_file = "tensorboard/events.out.tfevents.1.x";
        assert!(matches!(outcome(event_file), Err(Error::OutputOfRun { .. })));
        outcome("tensorboard/notes.txt").unwrap();
        fs::remove_file(path_of("recipe.path")).unwrap();
        outcome(event_file).unwrap();
    }
}
