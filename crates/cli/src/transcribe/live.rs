//! Text while a file is played or somebody speaks.
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

use super::durations::Durations;
use super::standard_input::StdinChunks;
use super::{Args, recording_id};
use crate::error::{Error, Result};
use crate::out::{formatted, outln, warnln, write};
use crate::{numbers, signals};

/// Returns to the start of the terminal's line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// How sound arrives.
#[derive(clap::Args)]
pub struct LiveArguments {
    /// Show words as soon as they are known, while a file is read at the pace at which it was spoken
    #[arg(long)]
    stream: bool,
    /// With --stream: how many times as fast as it was spoken a file is read; 0 is as fast as it goes [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = numbers::pace)]
    pace: Option<f64>,
    /// With --stream: milliseconds of sound that are listened to at once [default: 200]
    #[arg(long, value_name = "MS", value_parser = numbers::within("expected a number from 1 to 60000", 1..=60_000_u32))]
    chunk: Option<u32>,
    /// With --stream: seconds without a word after which an utterance is over; 0: none ever is [default: 1.2]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::pause)]
    pause: Option<f64>,
    /// With --stream and --beam: seconds after which a word is decided for, though the hypotheses of the beam do not agree on it; 0:
    /// never, so that words are those of the whole, however late [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::pause)]
    latest: Option<f64>,
}

impl LiveArguments {
    /// Whether to listen live: it is asked for, or there is no file to be read.
    pub fn is_asked(&self, files: &[PathBuf]) -> bool {
        self.stream || files.iter().any(|file| is_standard(file))
    }

    /// Fails for what only live sound knows.
    pub fn check_whole(&self) -> Result<()> {
        let asked = [
            ("--pace", self.pace.is_some()),
            ("--chunk", self.chunk.is_some()),
            ("--pause", self.pause.is_some()),
            ("--latest", self.latest.is_some()),
        ];
        match asked.into_iter().find_map(|(argument, asked)| asked.then_some(argument)) {
            None => Ok(()),
            Some(argument) => {
                let expected = "sound as it arrives (--stream, or -)";
                Err(Error::Search { argument, expected, search: "recordings as a whole" })
            }
        }
    }
}

fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Fails where live sound cannot go as asked for, before anything is made.
pub fn check(arguments: &Args) -> Result<()> {
    let files = &arguments.audio_files;
    if arguments.format.is_some_and(|format| !format.is_appendable()) || arguments.output.is_some() {
        return Err(Error::LiveOutput);
    }
    if arguments.times {
        let expected = "recordings as a whole, or --format json";
        return Err(Error::Search { argument: "--times", expected, search: "sound as it arrives" });
    }
    arguments.search.check_live()?;
    if !files.iter().any(|file| is_standard(file)) {
        return Ok(());
    }
    if let Some(argument) = arguments.audio.asked() {
        let expected = "a recording, which says what it is";
        return Err(Error::Search {
            argument,
            expected,
            search: "raw samples of one channel at the model's rate (-)",
        });
    }
    if files.len() > 1 { Err(Error::OneInput) } else { Ok(()) }
}

/// Recognises each recording as it comes.
pub fn run(recogniser: &Recognizer, arguments: &Args, writer: &TranscriptionWriter) -> Result<ExitCode> {
    let LiveArguments { pace, chunk, pause, latest, .. } = arguments.live;
    let (pace, chunk, latest) = (pace.unwrap_or(1.0), chunk.unwrap_or(200), latest.unwrap_or(1.0));
    let pause = pause.unwrap_or(EndpointConfig::default().silence_after_words);
    let latest = Some(latest).filter(|latest| *latest > 0.0);
    let endpoint =
        (pause > 0.0).then(|| EndpointConfig { silence_after_words: pause, ..EndpointConfig::default() });
    let stop = signals::watch("finishing; once more to stop at once")?;
    let options = StreamingOptions { window: arguments.long.window(), endpoint, latest };
    for path in &arguments.audio_files {
        let live = recogniser.stream(&options)?;
        if !live.is_immediate() {
            warnln!(
                "note: this model hears both ways: words come {} s late, window by window",
                arguments.long.window
            );
        }
        let (rate, format) = (live.sample_rate(), arguments.format);
        let id = recording_id(path);
        let shown = Shown {
            id,
            format,
            writer,
            terminal: std::io::stdout().is_terminal(),
            line: Transcription::default(),
        };
        let each = (u64::from(rate) * u64::from(chunk) / 1000).max(1) as usize;
        let (rest, took, started) = (Vec::new(), Durations::new(), Instant::now());
        let mut player = Player { live: Some(live), shown, rate, each, rest, started, played: 0, took };
        // What was heard before something broke is shown all the same.
        let mut broken = None;
        if is_standard(path) {
            for samples in StdinChunks::new(Arc::clone(&stop))? {
                match samples {
                    // Somebody else sets the pace.
                    Ok(samples) => player.play(&samples, 0.0)?,
                    Err(error) if player.has_heard_nothing() => return Err(error),
                    Err(error) => {
                        broken = Some(error);
                        break;
                    }
                }
            }
        } else {
            let pieces = AudioChunks::open(path, rate, recogniser.conversion());
            let pieces = pieces.map_err(|error| arguments.audio.advise(error.into()))?;
            for change in pieces.changes() {
                warnln!("note: {}: {change}", path.display());
            }
            for samples in pieces {
                match samples {
                    Ok(samples) => player.play(&samples, pace)?,
                    Err(error) => broken = Some(error.into()),
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
        player.finish()?;
        if let Some(error) = broken {
            return Err(error);
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitCode::from(signals::STOPPED));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives sound to a model, chunk by chunk.
struct Player<'a> {
    /// There until the end.
    live: Option<StreamingRecognizer>,
    shown: Shown<'a>,
    rate: u32,
    /// Samples of a chunk.
    each: usize,
    rest: Vec<f32>,
    started: Instant,
    played: usize,
    /// How long the chunks took.
    took: Durations,
}

impl Player<'_> {
    fn has_heard_nothing(&self) -> bool {
        self.played == 0 && self.rest.is_empty()
    }

    fn play(&mut self, samples: &[f32], pace: f64) -> Result<()> {
        self.rest.extend_from_slice(samples);
        let mut first = 0;
        while self.rest.len() - first >= self.each {
            if pace > 0.0 {
                let spoken = (self.played + self.each) as f64 / f64::from(self.rate) / pace;
                let due = Duration::from_secs_f64(spoken).saturating_sub(self.started.elapsed());
                std::thread::sleep(due);
            }
            self.chunk(first..first + self.each)?;
            first += self.each;
        }
        self.rest.drain(..first);
        Ok(())
    }

    fn chunk(&mut self, range: std::ops::Range<usize>) -> Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        let start = Instant::now();
        self.played += range.len();
        let updates = live.push_split(&self.rest[range])?;
        self.took.add(start.elapsed());
        updates.into_iter().try_for_each(|update| self.shown.show(update))
    }

    fn finish(mut self) -> Result<()> {
        self.chunk(0..self.rest.len())?;
        let Some(live) = self.live.take() else { return Ok(()) };
        let start = Instant::now();
        let mut updates = live.finish_split()?;
        self.took.add(start.elapsed());
        let left_out = updates.last().is_some_and(|update| update.has_discarded);
        if let Some(last) = updates.last_mut() {
            last.endpoint = true;
            last.partial.clear();
        }
        updates.into_iter().try_for_each(|update| self.shown.show(update))?;
        if left_out {
            warnln!("note: {}: text was discarded as silence; --silence 0 keeps it", self.shown.id);
        }
        let (heard, took) = (self.played as f64 / f64::from(self.rate), &self.took);
        warnln!(
            "note: {}: {heard:.1} s of sound in {:.2} s; a chunk of {:.0} ms took {:.1} ms (median), {:.1} ms (95 %), {:.1} ms (longest)",
            self.shown.id,
            took.total().as_secs_f64(),
            1000.0 * self.each as f64 / f64::from(self.rate),
            1000.0 * took.quantile(0.5),
            1000.0 * took.quantile(0.95),
            1000.0 * took.quantile(1.0)
        );
        Ok(())
    }
}

/// What a person or a program reads.
struct Shown<'a> {
    id: String,
    format: Option<TranscriptFormat>,
    writer: &'a TranscriptionWriter,
    terminal: bool,
    /// The utterance so far.
    line: Transcription,
}

/// A line of JSON.
#[derive(Serialize)]
struct Event<'a> {
    id: &'a str,
    words: &'a [TimedWord],
    partial: &'a str,
    endpoint: bool,
}

impl Shown<'_> {
    fn show(&mut self, update: StreamingUpdate) -> Result<()> {
        let StreamingUpdate { new, partial, endpoint, .. } = update;
        match self.format {
            Some(TranscriptFormat::Json) if !new.words.is_empty() || endpoint => {
                let event = Event { id: &self.id, words: &new.words, partial: &partial, endpoint };
                let text = serde_json::to_string(&event);
                formatted(&(text.expect("numbers and texts have a place in JSON") + "\n"))?;
            }
            Some(TranscriptFormat::Ctm) if !new.words.is_empty() => {
                formatted(&self.writer.write(&self.id, &new))?;
            }
            Some(TranscriptFormat::Json | TranscriptFormat::Ctm) => {}
            _ => self.text(new, &partial, endpoint)?,
        }
        Ok(())
    }

    /// An utterance a line; on a terminal it grows, with what is not sure yet at its end.
    fn text(&mut self, new: Transcription, partial: &str, endpoint: bool) -> Result<()> {
        self.line.append(new);
        if endpoint {
            let line = std::mem::take(&mut self.line);
            if self.terminal {
                write(format_args!("{CLEAR_LINE}"))?;
            }
            if let (Some(first), Some(last)) = (line.words.first(), line.words.last()) {
                outln!("[{:.2} - {:.2}] {}", first.start, last.end, line.text)?;
            }
        } else if self.terminal {
            let columns = 100;
            let text = format!("{} {partial}", self.line.text);
            let skip = text.chars().count().saturating_sub(columns);
            let tail: String = text.chars().skip(skip).collect();
            write(format_args!("{CLEAR_LINE}{}", Printable(tail.trim())))?;
        }
        Ok(())
    }
}
