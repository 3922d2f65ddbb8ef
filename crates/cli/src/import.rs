//! `panda import MODEL`: a pretrained model of NeMo or Hugging Face as a checkpoint.
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use model::encoders::AttentionLimits;
use model::{ImportOptions, ImportedModel};
use training::files::OutputFile;

use crate::architecture;
use crate::error::Result;
use crate::printing::outln;

/// Arguments of `panda import`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A .nemo archive, or a folder of Hugging Face or NeMo: configuration, safetensors, tokenizer
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Checkpoint to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Limit attention to encoder frames around each frame: `full`, `LEFT,RIGHT`, or `chunk=N,LEFT`
    /// with chunks of N frames; `all` is no limit on a side [default: the model's]
    #[arg(long, value_name = "LIMITS", value_parser = parse_limits)]
    attention: Option<AttentionLimits>,
    /// Read the tokenizer from this tokenizer.model or tokenizer.json [default: the model's]
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
}

/// Writes the checkpoint and prints the architecture.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let Args { model: path, output, attention, tokenizer } = arguments;
    let inputs: Vec<&Path> = std::iter::once(path.as_path()).chain(tokenizer.as_deref()).collect();
    let output = OutputFile::new(output, &inputs)?;
    let folder = output.resolved_path().and_then(|path| path.parent().map(Path::to_owned));
    let options =
        ImportOptions { attention: *attention, tokenizer: tokenizer.clone(), scratch_folder: folder };
    let imported = ImportedModel::open(path, &options)?;
    imported.write(output.path())?;
    let weights: usize = imported.shapes().values().map(|shape| shape.iter().product::<usize>()).sum();
    outln!("tokens: {} and the blank", imported.tokenizer().size())?;
    architecture::lines(imported.config()).iter().try_for_each(|line| outln!("{line}"))?;
    let (parameters, output) = (imported.shapes().len(), output.path().display());
    outln!("{output}: checkpoint with {weights} weights in {parameters} parameters")?;
    outln!("to transcribe: panda transcribe {output} FILE.wav")?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the limits of attention.
fn parse_limits(text: &str) -> std::result::Result<AttentionLimits, String> {
    let expected = "expected full, LEFT,RIGHT or chunk=N,LEFT in encoder frames, or all for a side";
    let rows = |text: &str| match text {
        "all" => Some(None),
        text => text.parse().ok().map(Some),
    };
    let limits = match text.split_once(',') {
        None => (text == "full").then_some(AttentionLimits::Full),
        Some((first, second)) => match first.strip_prefix("chunk=") {
            Some(chunk) => chunk
                .parse()
                .ok()
                .zip(rows(second))
                .map(|(chunk, left)| AttentionLimits::Chunks { chunk, left }),
            None => {
                rows(first).zip(rows(second)).map(|(left, right)| AttentionLimits::Window { left, right })
            }
        },
    };
    limits.ok_or_else(|| expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_attention_are_read() {
        for (text, limits) in [
            ("full", AttentionLimits::Full),
            ("128,128", AttentionLimits::Window { left: Some(128), right: Some(128) }),
            ("70,all", AttentionLimits::Window { left: Some(70), right: None }),
            ("chunk=14,70", AttentionLimits::Chunks { chunk: 14, left: Some(70) }),
            ("chunk=2,all", AttentionLimits::Chunks { chunk: 2, left: None }),
        ] {
            assert_eq!(parse_limits(text), Ok(limits));
        }
        for text in ["", "all", "1", "-1,3", "1,2,3", "chunk=x,3", "chunk=3"] {
            assert!(parse_limits(text).unwrap_err().starts_with("expected full, LEFT,RIGHT"), "{text}");
        }
    }
}
