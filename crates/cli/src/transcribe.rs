//! `panda transcribe CHECKPOINT AUDIO...`
mod durations;
mod live;
mod standard_input;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use recognizer::{OutputIds, Recognizer, TranscriptFormat, Transcription, TranscriptionWriter, WindowConfig};
use speech::{Audio, AudioChange, AudioChunks};
use training::files::Output;

use crate::audio::{AudioArguments, SilenceArguments};
use crate::captions::CaptionArguments;
use crate::error::{Error, Result, chain};
use crate::numbers;
use crate::out::{formatted, outln, warnln};
use crate::outputs::{self, TranscriptPath};
use crate::search::SearchArguments;
use crate::shard::{self, Shard};

/// Recordings that are recognised together.
const TOGETHER: usize = 16;

/// Arguments of `panda transcribe`.
#[derive(clap::Args)]
pub struct Args {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// Sound files: WAV, FLAC, MP3, AAC, M4A, Ogg, Opus, AIFF, CAF; `-` is standard input, raw 16-bit samples at the model's rate
    #[arg(required = true, value_name = "AUDIO")]
    audio_files: Vec<PathBuf>,
    /// Also print when each token was recognised, and how surely
    #[arg(long, conflicts_with = "format")]
    times: bool,
    /// Write txt, json (a line a recording), ctm, srt or vtt: to standard output, or into --output
    #[arg(long, value_name = "FORMAT")]
    format: Option<TranscriptFormat>,
    /// Write a file for each recording into this folder, named as the recording and ending as the format
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Take the second of five parts of the recordings, say, by --shard 2/5; panda merge joins what they write
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Exit without an error if at most this share of the recordings, rounded up, cannot be read; the others are transcribed
    /// anyway
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = numbers::share)]
    max_bad: f64,
    /// Leave special words, such as <unk>, out of the texts
    #[arg(long)]
    omit_special: bool,
    #[command(flatten)]
    long: LongArguments,
    #[command(flatten)]
    captions: CaptionArguments,
    #[command(flatten)]
    live: live::LiveArguments,
    #[command(flatten)]
    search: SearchArguments,
    #[command(flatten)]
    audio: AudioArguments,
    #[command(flatten)]
    silence: SilenceArguments,
}

/// What happens to long recordings.
#[derive(clap::Args)]
pub struct LongArguments {
    /// Recordings that are longer than this are recognised piece by piece, in memory that does not grow with them, where the search can
    /// (greedy, or --beam of the kinds modified and maes, without --nbest and --ctc-weight); other searches take each as a whole
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = numbers::seconds)]
    long: f64,
    /// Length of the pieces for models that hear both ways; others go on where they were
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = WindowConfig::default().seconds,
        value_parser = numbers::window
    )]
    window: f64,
    /// How much of a piece the next one hears too [default: a quarter of it, at most 5]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::seconds)]
    overlap: Option<f64>,
}

impl LongArguments {
    /// Checks that an overlap is shorter than its window; the model checks other limits.
    fn check(&self) -> Result<()> {
        let WindowConfig { seconds: window, overlap } = self.window();
        if overlap < window {
            return Ok(());
        }
        let expected = "of seconds from 0, less than the --window";
        Err(Error::Argument { argument: "--overlap", expected, found: overlap })
    }

    fn window(&self) -> WindowConfig {
        let most = WindowConfig::default().overlap;
        WindowConfig { seconds: self.window, overlap: self.overlap.unwrap_or((self.window / 4.0).min(most)) }
    }
}

/// Prints or writes the text of each file; a file that cannot be read does not keep the others from being read.
pub fn run(mut arguments: Args) -> Result<ExitCode> {
    // Names are those of the whole list, so that shards agree on them.
    let ids: Vec<String> = arguments.audio_files.iter().map(|path| recording_id(path)).collect();
    let writer = TranscriptionWriter {
        format: arguments.format.unwrap_or_default(),
        ids: OutputIds::for_ctm(ids.iter().map(String::as_str)),
        captions: arguments.captions.options(arguments.format)?,
    };
    let places = match &arguments.output {
        Some(folder) => outputs::places(folder, &arguments.audio_files, writer.format)?,
        None => Vec::new(),
    };
    let places = shard::part(places, arguments.shard);
    arguments.audio_files = shard::part(arguments.audio_files, arguments.shard);
    let arguments = &arguments;
    let live = arguments.live.is_asked(&arguments.audio_files);
    if live {
        live::check(arguments)?;
    } else {
        arguments.live.check_whole()?;
    }
    arguments.long.check()?;
    let written =
        if live { OutputFiles { files: HashMap::new() } } else { OutputFiles::new(arguments, &places)? };
    let recogniser = arguments.audio.load(&arguments.checkpoint)?;
    let recogniser = arguments.silence.apply(recogniser)?;
    let recogniser = arguments.search.apply(recogniser)?.with_special_omitted(arguments.omit_special);
    if live {
        return live::run(&recogniser, arguments, &writer);
    }
    Transcriber { recogniser: &recogniser, arguments, writer, written, bad: 0 }.run()
}

/// The id of a recording: its path as it was given, with escapes for bytes that are no text.
fn recording_id(path: &Path) -> String {
    match path.to_str() {
        Some(path) => path.to_owned(),
        None => format!("{path:?}").trim_matches('"').to_owned(),
    }
}

/// Where texts go.
struct OutputFiles {
    /// Files that are known to be writable, by recording.
    files: HashMap<usize, Output>,
}

impl OutputFiles {
    /// Looks at all places before the work begins.
    fn new(arguments: &Args, places: &[TranscriptPath]) -> Result<Self> {
        let (format, files) = (arguments.format.unwrap_or_default(), &arguments.audio_files);
        let Some(folder) = &arguments.output else {
            if files.len() > 1 && !format.is_appendable() {
                return Err(Error::Captions { format: format.name() });
            }
            return Ok(Self { files: HashMap::new() });
        };
        let mut inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        inputs.push(&arguments.checkpoint);
        inputs.extend(arguments.search.files().map(PathBuf::as_path));
        let outputs = outputs::in_folder(folder, places, &inputs)?;
        Ok(Self { files: outputs.into_iter().enumerate().collect() })
    }
}

/// Recordings on their way to text.
struct Transcriber<'a> {
    recogniser: &'a Recognizer,
    arguments: &'a Args,
    writer: TranscriptionWriter,
    written: OutputFiles,
    /// Recordings without a text.
    bad: usize,
}

impl Transcriber<'_> {
    fn run(mut self) -> Result<ExitCode> {
        let files = &self.arguments.audio_files;
        let bar = bar(files.len());
        for first in (0..files.len()).step_by(TOGETHER) {
            let numbers = first..files.len().min(first + TOGETHER);
            let mut sounds = Vec::new();
            let heard: Vec<_> = numbers.clone().map(|at| self.hear(&files[at], &mut sounds)).collect();
            let mut texts = self.recogniser.transcribe_all(&sounds).into_iter();
            for (at, heard) in numbers.zip(heard) {
                let found = match heard {
                    Err(message) => Err(message),
                    Ok((heard, changes)) => {
                        for change in changes {
                            warnln!("note: {}: {change}", files[at].display());
                        }
                        match heard {
                            Some(text) => Ok(text),
                            None => texts
                                .next()
                                .unwrap_or_else(|| Ok(Transcription::default()))
                                .map_err(|error| format!("{}: {}", files[at].display(), chain(&error))),
                        }
                    }
                };
                match found {
                    Ok(found) => bar.suspend(|| self.write(at, &found))?,
                    Err(message) => {
                        bar.suspend(|| warnln!("error: {message}"));
                        self.bad += 1;
                        bar.suspend(|| self.write_left_out(at, &message))?;
                    }
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let fine = self.bad <= recognizer::max_bad_count(files.len(), self.arguments.max_bad);
        Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(2) })
    }

    /// Lists a recording without a text where all of them are listed: in JSON.
    fn write_left_out(&self, at: usize, reason: &str) -> Result<()> {
        if self.arguments.format != Some(TranscriptFormat::Json) || self.arguments.output.is_some() {
            return Ok(());
        }
        let id = recording_id(&self.arguments.audio_files[at]);
        formatted(&format!("{}\n", serde_json::json!({ "id": id, "left_out": reason })))
    }

    /// Appends a short recording to `sounds`, or returns the text of a long one, and what was done to it; or the message of an error.
    fn hear(
        &self,
        path: &Path,
        sounds: &mut Vec<Audio>,
    ) -> std::result::Result<(Option<Transcription>, Vec<AudioChange>), String> {
        let (recogniser, long) = (self.recogniser, &self.arguments.long);
        let advised = |error: recognizer::Error| chain(&self.arguments.audio.advise(error));
        let rate = recogniser.model().config().input.features.sample_rate;
        let open = || AudioChunks::open(path, rate, recogniser.conversion());
        let mut pieces = open().map_err(|error| advised(error.into()))?;
        let streams = recogniser.search().streams();
        let most = if streams { (long.long * f64::from(rate)) as usize } else { usize::MAX };
        let samples = pieces.read_up_to(most).map_err(|error| advised(error.into()))?;
        if samples.len() > most {
            // What was read is read again, so that it need not be held.
            drop(samples);
            let pieces = open().map_err(|error| advised(error.into()))?;
            let changes = pieces.changes().to_vec();
            let found = recogniser.transcribe_chunks(pieces, long.window());
            let found = found.map_err(|error| match error {
                // These name the file themselves.
                error @ recognizer::Error::Model(model::Error::Speech(_)) => advised(error),
                error => format!("{}: {}", path.display(), chain(&error)),
            })?;
            return Ok((Some(found), changes));
        }
        let changes = pieces.changes().to_vec();
        sounds.push(Audio { samples, sample_rate: rate });
        Ok((None, changes))
    }

    fn write(&mut self, at: usize, found: &Transcription) -> Result<()> {
        let path = &self.arguments.audio_files[at];
        if found.silence {
            warnln!("note: {}: text was discarded as silence; --silence 0 keeps it", path.display());
        }
        let id = recording_id(path);
        if let Some(output) = self.written.files.remove(&at) {
            return Ok(output.write(self.writer.write(&id, found).as_bytes())?);
        }
        match self.arguments.format {
            Some(_) => {
                let text = self.writer.write(&id, found);
                let end = if text.ends_with('\n') { "" } else { "\n" };
                formatted(&(text + end))
            }
            None => {
                outln!("{id}: {}", found.text)?;
                for token in found.tokens.iter().filter(|_| self.arguments.times) {
                    let (start, sure) = (token.start, token.log_prob.exp());
                    outln!("  {start:8.2} s  {:<12} {sure:.3}", token.text)?;
                }
                Ok(())
            }
        }
    }
}

/// A progress bar over many files, for a person.
fn bar(files: usize) -> ProgressBar {
    if files <= TOGETHER || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} recordings, {eta} left");
    ProgressBar::new(files as u64).with_style(style.expect("the template is well-formed"))
}
