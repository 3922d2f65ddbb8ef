//! `panda transcribe CHECKPOINT AUDIO...`
use std::{path::PathBuf, process::ExitCode};

use training::Recogniser;

use crate::{
    error::Result,
    out::{complain, say},
};

/// Arguments of `panda transcribe`.
#[derive(clap::Args)]
pub struct Arguments {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// WAV or FLAC files with the sample rate that the model was trained on
    #[arg(required = true)]
    audio: Vec<PathBuf>,
    /// Also print when each token was recognised, and how surely
    #[arg(long)]
    times: bool,
}

/// Prints the text of each file; a file that cannot be read does not keep the others from being read.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let recogniser = Recogniser::load(&arguments.checkpoint)?;
    let mut code = ExitCode::SUCCESS;
    for path in &arguments.audio {
        let found = match speech::read_audio(path) {
            // An error of the file names it already.
            Err(error) => Err(error.to_string()),
            Ok(audio) => {
                recogniser.transcribe(&audio).map_err(|error| format!("{}: {error}", path.display()))
            }
        };
        match found {
            Err(message) => {
                complain!("error: {message}");
                code = ExitCode::from(2);
            }
            Ok(transcription) => {
                say!("{}: {}", path.display(), transcription.text)?;
                for token in transcription.tokens.iter().filter(|_| arguments.times) {
                    say!("  {:8.2} s  {:<12} {:.3}", token.seconds, token.text, token.log_prob.exp())?;
                }
            }
        }
    }
    Ok(code)
}
