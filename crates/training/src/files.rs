//! Where a command writes a result.
//!
//! Results are written as [`speech::files`] says: whole or not at all, links followed, pipes written through. A result takes the place
//! neither of an input nor of a file that a run keeps in its folder.
use std::path::{Path, PathBuf};

use speech::files::{Destination, is_same_file};

use crate::run_files::is_file_of_run;
use crate::{Error, Result};

/// A place for a result, known to be writable before the work is done that it is the result of.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("words.ctm");
/// let output = training::files::Output::new(&path, &[])?;
/// // Long work.
/// output.write(b"utterance 1 0.00 0.30 yes 0.99\n")?;
/// assert!(path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    destination: Destination,
}

impl Output {
    /// Follows links and makes sure that what is there can be written: a file can be made in the folder, a pipe is open. `-` is
    /// standard output.
    ///
    /// # Errors
    /// [`Error::OutputIsInput`] if it is the same file as one of the inputs; [`Error::OutputOfRun`] for a name that a run uses in the
    /// folder; [`Error::Io`](model::Error::Io) if it cannot be written.
    pub fn new(path: &Path, inputs: &[&Path]) -> Result<Self> {
        let path = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
        if let Some(input) = inputs.iter().find(|input| is_same_file(path, input)) {
            return Err(Error::OutputIsInput { output: path.to_owned(), input: input.to_path_buf() });
        }
        let destination = Destination::open(path).map_err(Error::io(path, "write"))?;
        if destination.resolved_path().is_some_and(|place| is_file_of_run(&place)) {
            return Err(Error::OutputOfRun { output: path.to_owned() });
        }
        destination.probe().map_err(Error::io(path, "write"))?;
        Ok(Self { path: path.to_owned(), destination })
    }

    /// Where it was asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The regular file that it is going to be, behind all links; none for pipes and the standard output.
    pub fn place(&self) -> Option<PathBuf> {
        self.destination.resolved_path()
    }

    /// Whether it is the process's standard output.
    pub fn is_standard(&self) -> bool {
        self.destination.is_standard()
    }

    /// Writes everything.
    ///
    /// # Errors
    /// [`Error::Io`](model::Error::Io); an old file is then as it was, and nothing half-written stays behind.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        self.destination.write(bytes).map_err(Error::io(&self.path, "write"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn inputs_are_no_outputs_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("input"), b"data").unwrap();
        fs::create_dir(at("x")).unwrap();
        let inputs: [&Path; 2] = [Path::new("/nowhere"), &at("input")];
        let mut names = vec!["input", "x/../input"];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("input", at("link")).unwrap();
            fs::hard_link(at("input"), at("x/second")).unwrap();
            names.extend(["link", "x/second"]);
        }
        for output in names {
            let error = Output::new(&at(output), &inputs).unwrap_err();
            assert!(matches!(error, Error::OutputIsInput { .. }), "{error}");
        }
        Output::new(&at("new"), &inputs).unwrap();
        assert!(!at("new").exists());
        assert_eq!(fs::read(at("input")).unwrap(), b"data");
    }

    #[test]
    fn files_of_a_run_are_no_outputs() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = [
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
        let others =
            ["report.html", "average.safetensors", "epoch-x.safetensors", "metrics.csv.old", "test.ctm"];
        let outcome = |name: &str| Output::new(&at(name), &[]).map(drop);
        // Such names are free where no run is.
        own.iter().for_each(|name| outcome(name).unwrap());
        for mark in [".lock", "recipe.path"] {
            fs::write(at(mark), b"").unwrap();
            for name in own {
                let error = outcome(name).unwrap_err();
                assert!(matches!(error, Error::OutputOfRun { .. }), "{name}: {error}");
            }
            others.iter().for_each(|name| outcome(name).unwrap());
            fs::remove_file(at(mark)).unwrap();
        }
        fs::write(at("recipe.path"), b"").unwrap();
        #[cfg(unix)]
        {
            // By another name too.
            let elsewhere = tempfile::tempdir().unwrap();
            let link = elsewhere.path().join("mean.safetensors");
            std::os::unix::fs::symlink(at("last.safetensors"), &link).unwrap();
            assert!(matches!(Output::new(&link, &[]), Err(Error::OutputOfRun { .. })));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
