//! `panda prepare CORPUS DIR`: checks a corpus and writes manifests or shards.
use std::path::PathBuf;
use std::process::ExitCode;

use speech::prepare::{CorpusSummary, PrepareOptions, StringCounts, an4, fsdd, librispeech};

use crate::{error::Result, numbers, printing::outln};

/// Arguments of `panda prepare`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    corpus: CorpusCommand,
}

#[derive(clap::Subcommand)]
enum CorpusCommand {
    /// Prepare LibriSpeech in DIR/LibriSpeech: its subsets, and train-960 of the training subsets
    Librispeech(CorpusArguments),
    /// Prepare AN4 (Carnegie Mellon) in DIR/an4; six training speakers become the dev set
    An4(CorpusArguments),
    /// Prepare a checkout of the Free Spoken Digit Dataset; takes 0 to 4 are the test set
    Fsdd {
        #[command(flatten)]
        common: CorpusArguments,
        /// Write strings of 2 to 7 digits in addition: N for training, N/10 each for dev and test
        #[arg(
            long,
            value_name = "N",
            value_parser = numbers::within("expected a number of strings, at most 10000000", 1..=MAX_STRINGS),
            conflicts_with = "shards"
        )]
        strings: Option<u32>,
        /// Seed of the random strings
        #[arg(
            long,
            default_value_t = 1,
            requires = "strings",
            value_parser = numbers::within("expected a whole number, at least 0", 0..=u64::MAX)
        )]
        seed: u64,
    },
}

// Arguments of all corpora. A doc comment would be part of the help text.
#[derive(clap::Args)]
struct CorpusArguments {
    /// Folder of the corpus
    dir: PathBuf,
    /// Folder to write the manifests to [default: DIR]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Accept an excerpt of the corpus: skip the checks of counts and hours, and skip transcripts
    /// without audio
    #[arg(long)]
    allow_incomplete: bool,
    /// Write tar shards of N utterances instead of manifests
    #[arg(
        long,
        value_name = "N",
        value_parser = numbers::within("expected a number of utterances, at least 1", 1..=u32::MAX)
    )]
    shards: Option<u32>,
}

impl CorpusArguments {
    fn options(&self) -> PrepareOptions {
        PrepareOptions {
            output: self.output.as_ref().unwrap_or(&self.dir).clone(),
            allow_incomplete: self.allow_incomplete,
            shards: self.shards.map(|count| count as usize),
        }
    }
}

/// Maximum of `--strings`.
const MAX_STRINGS: u32 = 10_000_000;

/// Checks a corpus, writes its manifests and prints a table of them.
pub(crate) fn run(arguments: &Args) -> Result<ExitCode> {
    let lists = match &arguments.corpus {
        CorpusCommand::Librispeech(common) => librispeech(&common.dir, &common.options())?,
        CorpusCommand::An4(common) => an4(&common.dir, &common.options())?,
        CorpusCommand::Fsdd { common, strings, seed } => {
            let strings = strings.map(|train| {
                let (train, held_out) = (train as usize, (train as usize).div_ceil(10));
                StringCounts { train, dev: held_out, test: held_out, seed: *seed }
            });
            fsdd(&common.dir, &common.options(), strings.as_ref())?
        }
    };
    print_table(&lists)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints sizes, durations and paths of the written lists.
fn print_table(lists: &[CorpusSummary]) -> Result<()> {
    outln!(
        "{:<16} {:>10} {:>8} {:>8} {:>10} {:>10} {:>10}",
        "list",
        "utterances",
        "hours",
        "speakers",
        "min s",
        "max s",
        "characters"
    )?;
    for list in lists {
        outln!(
            "{:<16} {:>10} {:>8.2} {:>8} {:>10.2} {:>10.2} {:>10}",
            list.name,
            list.utterances,
            list.seconds / 3600.0,
            list.speakers,
            list.shortest.1,
            list.longest.1,
            list.characters.len()
        )?;
    }
    for list in lists {
        let without = match list.excluded {
            0 => String::new(),
            count => format!("; {count} transcripts without audio left out"),
        };
        outln!("{}{without}", list.path.display())?;
    }
    Ok(())
}
