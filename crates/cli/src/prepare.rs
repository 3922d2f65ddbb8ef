//! `panda prepare CORPUS DIR`
use std::path::PathBuf;
use std::process::ExitCode;

use speech::prepare::{CorpusSummary, PrepareOptions, StringCounts, an4, fsdd, librispeech};

use crate::{error::Result, numbers, out::outln};

/// Arguments of `panda prepare`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    corpus: CorpusCommand,
}

#[derive(clap::Subcommand)]
enum CorpusCommand {
    /// The subsets of LibriSpeech in DIR/LibriSpeech, and train-960 of its three training sets
    Librispeech(Common),
    /// Carnegie Mellon's AN4 in DIR/an4; six speakers of its training set become the dev set
    An4(Common),
    /// A checkout of the Free Spoken Digit Dataset; takes 0 to 4 are the test set
    Fsdd {
        #[command(flatten)]
        common: Common,
        /// Also strings of 2 to 7 digits: N to train on, a tenth of it each for dev and test
        #[arg(
            long,
            value_name = "N",
            value_parser = numbers::within("expected a number of strings, at most 10000000", 1..=MOST_STRINGS),
            conflicts_with = "shards"
        )]
        strings: Option<u32>,
        /// What the strings are drawn from
        #[arg(
            long,
            default_value_t = 1,
            requires = "strings",
            value_parser = numbers::within("expected a whole number, at least 0", 0..=u64::MAX)
        )]
        seed: u64,
    },
}

#[derive(clap::Args)]
struct Common {
    /// Folder of the corpus
    dir: PathBuf,
    /// Folder for the manifests [default: DIR]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// An excerpt: counts and hours of the whole are not asked for, transcripts without sound are passed over
    #[arg(long)]
    allow_incomplete: bool,
    /// Tar shards of N utterances instead of manifests
    #[arg(
        long,
        value_name = "N",
        value_parser = numbers::within("expected a number of utterances, at least 1", 1..=u32::MAX)
    )]
    shards: Option<u32>,
}

impl Common {
    fn how(&self) -> PrepareOptions {
        PrepareOptions {
            output: self.output.as_ref().unwrap_or(&self.dir).clone(),
            allow_incomplete: self.allow_incomplete,
            shards: self.shards.map(|count| count as usize),
        }
    }
}

/// Most strings; a mistake, beyond.
const MOST_STRINGS: u32 = 10_000_000;

/// Checks a corpus, writes its manifests and says what they hold.
pub fn run(arguments: &Args) -> Result<ExitCode> {
    let lists = match &arguments.corpus {
        CorpusCommand::Librispeech(common) => librispeech(&common.dir, &common.how())?,
        CorpusCommand::An4(common) => an4(&common.dir, &common.how())?,
        CorpusCommand::Fsdd { common, strings, seed } => {
            let strings = strings.map(|train| {
                let (train, some) = (train as usize, (train as usize).div_ceil(10));
                StringCounts { train, dev: some, test: some, seed: *seed }
            });
            fsdd(&common.dir, &common.how(), strings.as_ref())?
        }
    };
    table(&lists)?;
    Ok(ExitCode::SUCCESS)
}

fn table(lists: &[CorpusSummary]) -> Result<()> {
    outln!(
        "{:<16} {:>10} {:>8} {:>8} {:>10} {:>10} {:>10}",
        "list",
        "utterances",
        "hours",
        "speakers",
        "shortest s",
        "longest s",
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
            count => format!("; without {count} transcripts that have no sound"),
        };
        outln!("{}{without}", list.path.display())?;
    }
    Ok(())
}
