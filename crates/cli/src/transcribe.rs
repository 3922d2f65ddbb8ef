//! `panda transcribe CHECKPOINT AUDIO...`
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use training::{Recogniser, Transcription};

use crate::audio::{AudioArguments, SilenceArguments};
use crate::error::{Result, chain};
use crate::out::{complain, say};

/// Arguments of `panda transcribe`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// WAV or FLAC files
    #[arg(required = true, value_name = "AUDIO")]
    audio_files: Vec<PathBuf>,
    /// Also print when each token was recognised, and how surely
    #[arg(long)]
    times: bool,
    #[command(flatten)]
    audio: AudioArguments,
    #[command(flatten)]
    silence: SilenceArguments,
}

/// Prints the text of each file; a file that cannot be read does not keep the others from being read.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let recogniser = arguments.audio.load(&arguments.checkpoint)?;
    let recogniser = arguments.silence.apply(recogniser)?;
    let mut code = ExitCode::SUCCESS;
    for path in &arguments.audio_files {
        match transcribe(&recogniser, path, &arguments.audio) {
            Err(message) => {
                complain!("error: {message}");
                code = ExitCode::from(2);
            }
            Ok(transcription) => {
                say!("{}: {}", path.display(), transcription.text)?;
                for token in transcription.tokens.iter().filter(|_| arguments.times) {
                    say!("  {:8.2} s  {:<12} {:.3}", token.start, token.text, token.log_prob.exp())?;
                }
            }
        }
    }
    Ok(code)
}

/// The text of one file, or an error's message that names it.
fn transcribe(
    recogniser: &Recogniser,
    path: &Path,
    audio: &AudioArguments,
) -> std::result::Result<Transcription, String> {
    let (sound, changes) = recogniser.read(path).map_err(|error| chain(&audio.advise(error)))?;
    for change in changes {
        complain!("note: {}: {change}", path.display());
    }
    let found = recogniser.transcribe(&sound).map_err(|error| format!("{}: {error}", path.display()))?;
    if found.silence {
        complain!(
            "note: {}: words that are not believed were left out; --silence 0 shows them",
            path.display()
        );
    }
    Ok(found)
}
