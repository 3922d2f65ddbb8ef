//! `panda transcribe --stream` and `-`: transcribes audio as it arrives.
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kernels::Printable;
use recognizer::{
    EndpointConfig, Recognizer, StreamingOptions, StreamingRecognizer, StreamingUpdate, TimedWord,
    TranscriptFormat, Transcription, TranscriptionWriter,
};
use serde::Serialize;
use speech::AudioChunks;

use super::duration_histogram::DurationHistogram;
use super::stdin::StdinChunks;
use super::{Args, recording_id};
use crate::error::{Error, Result};
use crate::printing::{outln, print_machine_readable, print_unescaped, warnln};
use crate::{numbers, signals};

/// Returns to the start of the terminal's line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Characters of an unfinished line that a terminal shows.
const MAX_PARTIAL_CHARACTERS: usize = 100;
/// Default of `--pace`: real time.
const DEFAULT_PACE: f64 = 1.0;
/// Default of `--chunk`.
const DEFAULT_CHUNK_MS: u32 = 200;
/// Default of `--latest`.
const DEFAULT_LATEST_SECONDS: f64 = 1.0;

/// Arguments of streaming recognition.
#[derive(clap::Args)]
pub(super) struct StreamingArguments {
    /// Print words as soon as they are final; read files in real time
    #[arg(long)]
    stream: bool,
    /// With --stream: read at this multiple of real time; 0 reads without pauses [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = numbers::pace)]
    pace: Option<f64>,
    /// With --stream: process audio in chunks of this many milliseconds [default: 200]
    #[arg(long, value_name = "MS", value_parser = numbers::within("expected a number from 1 to 60000", 1..=60_000_u32))]
    chunk: Option<u32>,
    /// With --stream: end an utterance after this many seconds without a word; 0 never ends it
    /// [default: 1.2]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::pause)]
    pause: Option<f64>,
    /// With --stream and --beam: commit a word after this many seconds even if the beam disagrees;
    /// 0 waits for agreement, so that the text equals offline decoding [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::pause)]
    latest: Option<f64>,
}

impl StreamingArguments {
    /// Returns true with `--stream` or if standard input is given.
    pub(super) fn is_streaming(&self, files: &[PathBuf]) -> bool {
        self.stream || files.iter().any(|file| is_stdin(file))
    }

    /// Fails if a streaming argument is given without streaming.
    pub(super) fn expect_defaults(&self) -> Result<()> {
        let given = [
            ("--pace", self.pace.is_some()),
            ("--chunk", self.chunk.is_some()),
            ("--pause", self.pause.is_some()),
            ("--latest", self.latest.is_some()),
        ];
        match given.into_iter().find_map(|(argument, is_given)| is_given.then_some(argument)) {
            None => Ok(()),
            Some(argument) => {
                let expected = "streaming audio (--stream, or -)";
                Err(Error::Unsupported { argument, expected, found: "whole recordings" })
            }
        }
    }
}

/// Returns true for the name of standard input.
fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// Fails for arguments that streaming does not support, before any work.
pub(super) fn check_arguments(arguments: &Args) -> Result<()> {
    let files = &arguments.audio_files;
    if arguments.format.is_some_and(|format| !format.is_appendable()) || arguments.output.is_some() {
        return Err(Error::StreamingOutput);
    }
    if arguments.times {
        let expected = "whole recordings, or --format json";
        return Err(Error::Unsupported { argument: "--times", expected, found: "streaming audio" });
    }
    arguments.search.check_streaming()?;
    if !files.iter().any(|file| is_stdin(file)) {
        return Ok(());
    }
    if let Some(argument) = arguments.audio.first_given() {
        return Err(Error::Unsupported {
            argument,
            expected: "an audio file with a header",
            found: "raw samples of one channel at the model's rate (-)",
        });
    }
    if files.len() > 1 { Err(Error::StdinWithFiles) } else { Ok(()) }
}

/// Transcribes the recordings one after the other as their audio arrives.
pub(super) fn run(
    recognizer: &Recognizer,
    arguments: &Args,
    writer: &TranscriptionWriter,
) -> Result<ExitCode> {
    // Options: defaults, and 0 for none.
    let StreamingArguments { pace, chunk, pause, latest, .. } = arguments.streaming;
    let (pace, chunk, latest) = (
        pace.unwrap_or(DEFAULT_PACE),
        chunk.unwrap_or(DEFAULT_CHUNK_MS),
        latest.unwrap_or(DEFAULT_LATEST_SECONDS),
    );
    let pause = pause.unwrap_or(EndpointConfig::default().silence_after_words);
    let latest = Some(latest).filter(|latest| *latest > 0.0);
    let endpoint =
        (pause > 0.0).then(|| EndpointConfig { silence_after_words: pause, ..EndpointConfig::default() });
    let stop = signals::watch("finishing; press Ctrl-C again to exit immediately")?;
    let options = StreamingOptions { window: arguments.long.window(), endpoint, latest };
    for path in &arguments.audio_files {
        // Prepare the recognizer and its output.
        let stream = recognizer.stream(&options)?;
        if !stream.is_immediate() {
            warnln!(
                "note: this model is bidirectional: words arrive {} s late, one window at a time",
                arguments.long.window
            );
        }
        let (sample_rate, format) = (stream.sample_rate(), arguments.format);
        let id = recording_id(path);
        let printer = Printer {
            id,
            format,
            writer,
            is_terminal: std::io::stdout().is_terminal(),
            line: Transcription::default(),
        };
        let chunk_samples = (u64::from(sample_rate) * u64::from(chunk) / 1000).max(1) as usize;
        let mut player = Player {
            stream: Some(stream),
            printer,
            sample_rate,
            chunk_samples,
            pending_samples: Vec::new(),
            start: Instant::now(),
            played_samples: 0,
            durations: DurationHistogram::new(),
        };
        // Play the audio. An error is returned after the words before it are printed.
        let mut input_error = None;
        if is_stdin(path) {
            for samples in StdinChunks::new(Arc::clone(&stop))? {
                match samples {
                    // The writer of the pipe sets the pace.
                    Ok(samples) => player.play(&samples, 0.0)?,
                    Err(error) if player.is_empty() => return Err(error),
                    Err(error) => {
                        input_error = Some(error);
                        break;
                    }
                }
            }
        } else {
            let chunks = AudioChunks::open(path, sample_rate, recognizer.conversion());
            let chunks = chunks.map_err(|error| arguments.audio.advise(error.into()))?;
            for change in chunks.changes() {
                warnln!("note: {}: {change}", path.display());
            }
            for samples in chunks {
                match samples {
                    Ok(samples) => player.play(&samples, pace)?,
                    Err(error) => input_error = Some(error.into()),
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        // Print the rest, then report the error.
        player.finish()?;
        if let Some(error) = input_error {
            return Err(error);
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitCode::from(signals::STOPPED_STATUS));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes audio to a streaming recognizer in chunks, at a given pace.
struct Player<'a> {
    /// Recognizer; none after `finish`.
    stream: Option<StreamingRecognizer>,
    printer: Printer<'a>,
    /// Sample rate in Hz.
    sample_rate: u32,
    /// Number of samples of a chunk.
    chunk_samples: usize,
    /// Samples of the next, incomplete chunk.
    pending_samples: Vec<f32>,
    start: Instant,
    /// Number of processed samples.
    played_samples: usize,
    /// Processing times of the chunks.
    durations: DurationHistogram,
}

impl Player<'_> {
    /// Returns true before the first sample.
    fn is_empty(&self) -> bool {
        self.played_samples == 0 && self.pending_samples.is_empty()
    }

    /// Processes the complete chunks of the samples so far; waits for their end with a pace.
    fn play(&mut self, samples: &[f32], pace: f64) -> Result<()> {
        self.pending_samples.extend_from_slice(samples);
        let mut chunk_start = 0;
        while self.pending_samples.len() - chunk_start >= self.chunk_samples {
            if pace > 0.0 {
                let end_seconds =
                    (self.played_samples + self.chunk_samples) as f64 / f64::from(self.sample_rate) / pace;
                let wait_time = Duration::from_secs_f64(end_seconds).saturating_sub(self.start.elapsed());
                std::thread::sleep(wait_time);
            }
            self.process(chunk_start..chunk_start + self.chunk_samples)?;
            chunk_start += self.chunk_samples;
        }
        self.pending_samples.drain(..chunk_start);
        Ok(())
    }

    /// Recognizes a range of the pending samples and prints the updates.
    fn process(&mut self, range: std::ops::Range<usize>) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let start = Instant::now();
        self.played_samples += range.len();
        let updates = stream.push_split(&self.pending_samples[range])?;
        self.durations.add(start.elapsed());
        updates.into_iter().try_for_each(|update| self.printer.print(update))
    }

    /// Processes the last chunk; prints the final words and the times.
    fn finish(mut self) -> Result<()> {
        self.process(0..self.pending_samples.len())?;
        let Some(stream) = self.stream.take() else { return Ok(()) };
        let start = Instant::now();
        let mut updates = stream.finish_split()?;
        self.durations.add(start.elapsed());
        let has_discarded = updates.last().is_some_and(|update| update.has_discarded);
        if let Some(last) = updates.last_mut() {
            last.endpoint = true;
            last.partial.clear();
        }
        updates.into_iter().try_for_each(|update| self.printer.print(update))?;
        if has_discarded {
            warnln!("note: {}: text was discarded as silence; --silence 0 keeps it", self.printer.id);
        }
        let (seconds, durations) =
            (self.played_samples as f64 / f64::from(self.sample_rate), &self.durations);
        warnln!(
            "note: {}: {seconds:.1} s of audio in {:.2} s; a chunk of {:.0} ms took {:.1} ms (median), {:.1} ms (95 %), {:.1} ms (maximum)",
            self.printer.id,
            durations.total().as_secs_f64(),
            1000.0 * self.chunk_samples as f64 / f64::from(self.sample_rate),
            1000.0 * durations.quantile(0.5),
            1000.0 * durations.quantile(0.95),
            1000.0 * durations.quantile(1.0)
        );
        Ok(())
    }
}

/// Prints the words of one recording as text, JSON or CTM.
struct Printer<'a> {
    id: String,
    format: Option<TranscriptFormat>,
    writer: &'a TranscriptionWriter,
    is_terminal: bool,
    /// Final words of the current utterance.
    line: Transcription,
}

/// JSON line of an update.
#[derive(Serialize)]
struct UpdateEvent<'a> {
    id: &'a str,
    words: &'a [TimedWord],
    partial: &'a str,
    endpoint: bool,
}

impl Printer<'_> {
    /// Prints an update of the recognizer in the selected format.
    fn print(&mut self, update: StreamingUpdate) -> Result<()> {
        let StreamingUpdate { final_words, partial, endpoint, .. } = update;
        match self.format {
            Some(TranscriptFormat::Json) if !final_words.words.is_empty() || endpoint => {
                let event =
                    UpdateEvent { id: &self.id, words: &final_words.words, partial: &partial, endpoint };
                let text = serde_json::to_string(&event);
                print_machine_readable(&(text.expect("numbers and strings are valid JSON") + "\n"))?;
            }
            Some(TranscriptFormat::Ctm) if !final_words.words.is_empty() => {
                print_machine_readable(&self.writer.write(&self.id, &final_words))?;
            }
            Some(TranscriptFormat::Json | TranscriptFormat::Ctm) => {}
            _ => self.print_text(final_words, &partial, endpoint)?,
        }
        Ok(())
    }

    /// Prints one line per utterance; a terminal shows the partial line while it grows.
    fn print_text(&mut self, final_words: Transcription, partial: &str, endpoint: bool) -> Result<()> {
        self.line.append(final_words);
        if endpoint {
            let line = std::mem::take(&mut self.line);
            if self.is_terminal {
                print_unescaped(format_args!("{CLEAR_LINE}"))?;
            }
            if let (Some(first), Some(last)) = (line.words.first(), line.words.last()) {
                outln!("[{:.2} - {:.2}] {}", first.start, last.end, line.text)?;
            }
        } else if self.is_terminal {
            let text = format!("{} {partial}", self.line.text);
            let skipped = text.chars().count().saturating_sub(MAX_PARTIAL_CHARACTERS);
            let tail: String = text.chars().skip(skipped).collect();
            print_unescaped(format_args!("{CLEAR_LINE}{}", Printable(tail.trim())))?;
        }
        Ok(())
    }
}
