//! `panda transcribe CHECKPOINT AUDIO...`: transcribes files, or audio as it arrives.
mod coverage;
mod duration_histogram;
mod stdin;
mod streaming;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use recognizer::{OutputIds, Recognizer, TranscriptFormat, Transcription, TranscriptionWriter, WindowConfig};
use speech::{Audio, AudioChange, AudioChunks};
use training::files::OutputFile;

use crate::audio::{AudioArguments, SilenceArguments};
use crate::captions::CaptionArguments;
use crate::error::{Error, Result, message_with_causes};
use crate::numbers;
use crate::output_files::{self, TranscriptPath};
use crate::printing::{outln, print_machine_readable, warnln};
use crate::search::SearchArguments;
use crate::shard::{self, Shard};

/// Number of short recordings in a batch.
const BATCH_SIZE: usize = 16;

/// Arguments of `panda transcribe`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A checkpoint, for example runs/digits/best.safetensors
    checkpoint: PathBuf,
    /// Audio files: WAV, FLAC, MP3, AAC, M4A, Ogg, Opus, AIFF, CAF; `-` is standard input: raw
    /// 16-bit samples at the model's sample rate
    #[arg(required = true, value_name = "AUDIO")]
    audio_files: Vec<PathBuf>,
    /// Print the time in seconds and the confidence of each token
    #[arg(long, conflicts_with = "format")]
    times: bool,
    /// Write txt, json (one line per recording), ctm, srt or vtt
    #[arg(long, value_name = "FORMAT")]
    format: Option<TranscriptFormat>,
    /// Write one file per recording into this folder: the recording's name with the extension of
    /// the format
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Process only part I of N parts of the recordings, for example 2/5; `panda merge` joins the
    /// outputs of all parts
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Fail if more than this share of recordings is unreadable, rounded up; the others are
    /// transcribed in any case
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = numbers::share)]
    max_bad: f64,
    /// Leave special words, such as <unk>, out of the transcripts
    #[arg(long)]
    omit_special: bool,
    #[command(flatten)]
    long: LongArguments,
    #[command(flatten)]
    captions: CaptionArguments,
    #[command(flatten)]
    coverage: coverage::CoverageArguments,
    #[command(flatten)]
    streaming: streaming::StreamingArguments,
    #[command(flatten)]
    search: SearchArguments,
    #[command(flatten)]
    audio: AudioArguments,
    #[command(flatten)]
    silence: SilenceArguments,
}

/// Arguments for long recordings.
#[derive(clap::Args)]
pub(crate) struct LongArguments {
    /// Transcribe recordings longer than this in chunks, with constant memory. Supported by greedy
    /// search and by --beam with modified or maes, without --nbest and --ctc-weight; other searches
    /// process the whole recording
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = numbers::seconds)]
    long: f64,
    /// Length of the overlapping windows for bidirectional models; other models carry their state
    /// from chunk to chunk
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = WindowConfig::default().seconds,
        value_parser = numbers::positive_seconds
    )]
    window: f64,
    /// Overlap of consecutive windows [default: a quarter of --window, at most 5]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::seconds)]
    overlap: Option<f64>,
}

impl LongArguments {
    /// Fails unless the overlap is shorter than the window; the model checks other limits.
    fn check(&self) -> Result<()> {
        let WindowConfig { seconds: window, overlap } = self.window();
        if overlap < window {
            return Ok(());
        }
        let expected = "of seconds from 0, less than the --window";
        Err(Error::Argument { argument: "--overlap", expected, found: overlap })
    }

    fn window(&self) -> WindowConfig {
        WindowConfig::with_seconds(self.window, self.overlap)
    }
}

/// Prints or writes the transcript of each file; unreadable files are reported and skipped.
pub(crate) fn run(mut arguments: Args) -> Result<ExitCode> {
    // Names are computed from the whole list, so that all shards use the same ones.
    let ids: Vec<String> = arguments.audio_files.iter().map(|path| recording_id(path)).collect();
    let writer = TranscriptionWriter {
        format: arguments.format.unwrap_or_default(),
        ids: OutputIds::for_ctm(ids.iter().map(String::as_str)),
        captions: arguments.captions.options(arguments.format)?,
    };
    let paths = match &arguments.output {
        Some(folder) => output_files::transcript_paths(folder, &arguments.audio_files, writer.format)?,
        None => Vec::new(),
    };
    let paths = shard::select_part(paths, arguments.shard);
    arguments.audio_files = shard::select_part(arguments.audio_files, arguments.shard);
    let arguments = &arguments;
    // Check the arguments of files or of streaming audio.
    let is_streaming = arguments.streaming.is_streaming(&arguments.audio_files);
    if is_streaming {
        streaming::check_arguments(arguments)?;
    } else {
        arguments.streaming.expect_defaults()?;
    }
    arguments.coverage.check(is_streaming)?;
    arguments.long.check()?;
    // Open the outputs before the model is loaded.
    let outputs = match is_streaming {
        true => OutputFiles { files: HashMap::new() },
        false => OutputFiles::new(arguments, &paths)?,
    };
    let recognizer = arguments.audio.load(&arguments.checkpoint)?;
    let recognizer = arguments.silence.apply(recognizer)?;
    let recognizer = arguments.search.apply(recognizer)?.with_special_omitted(arguments.omit_special);
    if is_streaming {
        return streaming::run(&recognizer, arguments, &writer);
    }
    Transcriber { recognizer: &recognizer, arguments, writer, outputs, failures: 0 }.run()
}

/// Returns the id of a recording: its path as given, with bytes that are not UTF-8 escaped.
fn recording_id(path: &Path) -> String {
    match path.to_str() {
        Some(path) => path.to_owned(),
        None => format!("{path:?}").trim_matches('"').to_owned(),
    }
}

/// Output files of the recordings.
struct OutputFiles {
    /// Writable files by index of the recording; empty for standard output.
    files: HashMap<usize, OutputFile>,
}

impl OutputFiles {
    /// Opens all files before the first recording is transcribed.
    fn new(arguments: &Args, paths: &[TranscriptPath]) -> Result<Self> {
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
        let outputs = output_files::open_in_folder(folder, paths, &inputs)?;
        Ok(Self { files: outputs.into_iter().enumerate().collect() })
    }
}

/// A recording that was read.
struct LoadedRecording {
    /// Transcription of a long recording; short ones are transcribed in a batch.
    long_transcription: Option<Transcription>,
    /// Conversions of the audio.
    changes: Vec<AudioChange>,
}

/// Transcribes recordings and writes their transcripts.
struct Transcriber<'a> {
    recognizer: &'a Recognizer,
    arguments: &'a Args,
    writer: TranscriptionWriter,
    outputs: OutputFiles,
    /// Number of recordings that could not be transcribed.
    failures: usize,
}

impl Transcriber<'_> {
    /// Transcribes all recordings, a batch of short ones at a time.
    fn run(mut self) -> Result<ExitCode> {
        let files = &self.arguments.audio_files;
        let bar = progress_bar(files.len());
        for batch_start in (0..files.len()).step_by(BATCH_SIZE) {
            // Load a batch; its long recordings are transcribed here.
            let batch_indices = batch_start..files.len().min(batch_start + BATCH_SIZE);
            let mut short_recordings = Vec::new();
            let load_results: Vec<_> =
                batch_indices.clone().map(|index| self.load(&files[index], &mut short_recordings)).collect();
            let transcriptions = self.recognizer.transcribe_all(&short_recordings).into_iter();
            let mut transcriptions = transcriptions.zip(&short_recordings).map(|(transcription, audio)| {
                self.arguments.coverage.apply(self.recognizer, audio, transcription?)
            });
            // Write the transcripts in the order of the files.
            for (index, load_result) in batch_indices.zip(load_results) {
                let result = match load_result {
                    Err(message) => Err(message),
                    Ok(LoadedRecording { long_transcription, changes }) => {
                        for change in changes {
                            warnln!("note: {}: {change}", files[index].display());
                        }
                        match long_transcription {
                            Some(transcription) => Ok(transcription),
                            None => transcriptions
                                .next()
                                .unwrap_or_else(|| Ok(Transcription::default()))
                                .map_err(|error| {
                                    format!("{}: {}", files[index].display(), message_with_causes(&error))
                                }),
                        }
                    }
                };
                match result {
                    Ok(transcription) => bar.suspend(|| self.write(index, &transcription))?,
                    Err(message) => {
                        bar.suspend(|| warnln!("error: {message}"));
                        self.failures += 1;
                        bar.suspend(|| self.write_excluded(index, &message))?;
                    }
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let is_success = self.failures <= recognizer::max_bad_count(files.len(), self.arguments.max_bad);
        Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::from(2) })
    }

    /// Writes why a recording was excluded (JSON lines only).
    fn write_excluded(&self, index: usize, reason: &str) -> Result<()> {
        if self.arguments.format != Some(TranscriptFormat::Json) || self.arguments.output.is_some() {
            return Ok(());
        }
        let id = recording_id(&self.arguments.audio_files[index]);
        print_machine_readable(&format!("{}\n", serde_json::json!({ "id": id, "left_out": reason })))
    }

    /// Reads a recording; appends a short one to `short_recordings`, transcribes a long one.
    ///
    /// # Errors
    /// The message of an error.
    fn load(
        &self,
        path: &Path,
        short_recordings: &mut Vec<Audio>,
    ) -> std::result::Result<LoadedRecording, String> {
        let (recognizer, long) = (self.recognizer, &self.arguments.long);
        let message = |error: recognizer::Error| message_with_causes(&self.arguments.audio.advise(error));
        let rate = recognizer.model().config().input.features.sample_rate;
        let open = || AudioChunks::open(path, rate, recognizer.conversion());
        let mut chunks = open().map_err(|error| message(error.into()))?;
        let supports_streams = recognizer.supports_streams();
        let max_samples = if supports_streams { (long.long * f64::from(rate)) as usize } else { usize::MAX };
        let samples = chunks.read_up_to(max_samples).map_err(|error| message(error.into()))?;
        if samples.len() > max_samples {
            // Read the start of the file again instead of keeping it in memory.
            drop(samples);
            let chunks = open().map_err(|error| message(error.into()))?;
            let changes = chunks.changes().to_vec();
            let transcription = self.transcribe_long(chunks, rate);
            let transcription = transcription.map_err(|error| match error {
                // These errors contain the path.
                error @ recognizer::Error::Model(model::Error::Speech(_)) => message(error),
                error => format!("{}: {}", path.display(), message_with_causes(&error)),
            })?;
            return Ok(LoadedRecording { long_transcription: Some(transcription), changes });
        }
        let changes = chunks.changes().to_vec();
        short_recordings.push(Audio { samples, sample_rate: rate });
        Ok(LoadedRecording { long_transcription: None, changes })
    }

    /// Transcribes a long recording in chunks; the coverage needs all of its samples in memory.
    fn transcribe_long(
        &self,
        mut chunks: AudioChunks,
        sample_rate: u32,
    ) -> recognizer::Result<Transcription> {
        let (recognizer, window) = (self.recognizer, self.arguments.long.window());
        let coverage = &self.arguments.coverage;
        if !coverage.is_given() {
            return recognizer.transcribe_chunks(chunks, window);
        }
        let audio = Audio { samples: chunks.read_up_to(usize::MAX)?, sample_rate };
        let chunks = audio.samples.chunks(sample_rate as usize).map(|chunk| Ok(chunk.to_vec()));
        let transcription = recognizer.transcribe_chunks(chunks, window)?;
        coverage.apply(recognizer, &audio, transcription)
    }

    /// Writes a transcript to its file, or prints it.
    fn write(&mut self, index: usize, transcription: &Transcription) -> Result<()> {
        let path = &self.arguments.audio_files[index];
        if transcription.is_discarded {
            warnln!("note: {}: text was discarded as silence; --silence 0 keeps it", path.display());
        }
        if let Some(coverage) = &transcription.coverage {
            coverage::print_notes(&path.display().to_string(), coverage);
        }
        let id = recording_id(path);
        if let Some(output) = self.outputs.files.remove(&index) {
            return Ok(output.write(self.writer.write(&id, transcription).as_bytes())?);
        }
        match self.arguments.format {
            Some(_) => {
                let text = self.writer.write(&id, transcription);
                let line_end = if text.ends_with('\n') { "" } else { "\n" };
                print_machine_readable(&(text + line_end))
            }
            None => {
                outln!("{id}: {}", transcription.text)?;
                for token in transcription.tokens.iter().filter(|_| self.arguments.times) {
                    let (start, confidence) = (token.start, token.log_prob.exp());
                    outln!("  {start:8.2} s  {:<12} {confidence:.3}", token.text)?;
                }
                Ok(())
            }
        }
    }
}

/// Returns a progress bar; hidden for few files and without a terminal.
fn progress_bar(files: usize) -> ProgressBar {
    if files <= BATCH_SIZE || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} recordings, {eta} left");
    ProgressBar::new(files as u64).with_style(style.expect("the template is well-formed"))
}
