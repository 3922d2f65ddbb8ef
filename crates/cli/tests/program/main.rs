//! Tests of the program `panda` by its command line; the corpus is synthetic.

mod adapters;
mod align;
mod audio;
mod average;
mod bad_items;
mod commands;
mod conversion;
mod coverage;
mod decoding;
#[path = "../../../speech/tests/suite/encoded.rs"]
mod encoded;
mod escaped_output;
mod fault_injection;
#[path = "../../../speech/tests/suite/flac_bytes.rs"]
mod flac_bytes;
mod kill_and_resume;
mod lm;
mod memory_limits;
mod merge;
#[path = "../../../speech/tests/suite/mutants.rs"]
mod mutants;
mod output_names;
mod pipes_and_signals;
mod prepare;
#[path = "../../../model/tests/suite/pretrained_models.rs"]
#[allow(dead_code)]
mod pretrained_models;
mod shards;
mod special_files;
mod system_errors;
mod texts;
#[path = "../../../training/tests/suite/tfevents.rs"]
mod tfevents;
mod threads;
#[path = "../../../training/tests/suite/toy.rs"]
mod toy;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the command `panda ARGUMENTS` with a working folder.
fn panda(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panda"));
    command.args(arguments).current_dir(folder);
    command
}

/// Returns a folder of the shared data; none, with a note, if it is missing outside of CI.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is missing", path.display());
    println!("skipped: {} is missing", path.display());
    None
}

/// Runs a command; returns exit status, standard output, standard error.
fn run_command(mut command: Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Returns a toy corpus with a run of one epoch in `run`.
fn trained_for_an_epoch() -> toy::Toy {
    let toy = toy::Toy::new();
    toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    toy
}
