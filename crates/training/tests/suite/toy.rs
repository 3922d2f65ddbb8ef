//! Test helper: a small corpus with tones as words, and its recipe.
//!
//! The tests of the crate `cli` use it as well.
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Sample rate of the recordings in Hz.
pub(crate) const RATE: u32 = 8000;

/// Each word is a tone.
const WORDS: [(&str, f32); 3] = [("low", 400.0), ("middle", 900.0), ("high", 1900.0)];

// Lengths in samples.
const PAUSE_BEFORE_WORDS: usize = 800;
const WORD_SAMPLES: usize = 1600;
const EDGE_SAMPLES: f32 = 200.0;
const PAUSE_AFTER_WORD: usize = 500;

/// Largest value of a sample.
const AMPLITUDE: f32 = 9000.0;

/// The texts of the utterances.
const SENTENCES: [&str; 6] =
    ["low", "high low", "middle high middle", "low low high", "middle", "high middle low low"];

/// The recipe, with three epochs.
pub(crate) const RECIPE: &str = r#"
seed = 7
[data]
train = ["train.jsonl"]
dev = ["train.jsonl"]
test = ["train.jsonl"]
[features]
sample_rate = 8000
mels = 12
[augment]
perturb = { speed = 0.1 }
mask = { freq_masks = 1, freq_width = 2 }
[tokens]
kind = "words"
[encoder]
stack = 4
stride = 4
layers = 1
hidden = 16
bidirectional = true
dropout = 0.1
[predictor]
kind = "lstm"
embedding = 8
hidden = 16
layers = 1
[joint]
width = 16
[optimizer]
learning_rate = 1e-2
weight_decay = 0.01
ema = 0.9
[batch]
max_frames = 200
max_utterances = 2
[training]
epochs = 3
ctc_weight = 0.3
"#;

/// A temporary folder with audio, `train.jsonl` and `recipe.toml`.
pub(crate) struct Toy(TempDir);

impl Toy {
    pub(crate) fn new() -> Self {
        let toy = Toy(tempfile::tempdir().unwrap());
        let mut manifest = String::new();
        for (index, text) in SENTENCES.iter().enumerate() {
            let samples = synthesize_words(text);
            write_wav(&toy.path(&format!("{index}.wav")), RATE, &samples);
            let (count, subset) = (samples.len(), if index % 2 == 0 { "even" } else { "odd" });
            let speaker = ["flute", "kettle", "wind"][index / 2];
            manifest += &format!(
                "{{\"id\": \"toy-{index}\", \"file\": \"{index}.wav\", \"text\": \"{text}\", \"subset\": \"{subset}\", \
                 \"speaker\": \"{speaker}\", \"num_samples\": {count}, \"sample_rate\": {RATE}}}\n"
            );
        }
        toy.write("train.jsonl", &manifest);
        toy
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Writes the recipe with these replacements.
    pub(crate) fn recipe(&self, changes: &[(&str, &str)]) -> PathBuf {
        let mut text = RECIPE.to_owned();
        for (old, new) in changes {
            assert!(text.contains(old), "{old}");
            text = text.replace(old, new);
        }
        self.write("recipe.toml", &text)
    }
}

/// The words of a text as tones with soft edges, with pauses.
fn synthesize_words(text: &str) -> Vec<i16> {
    let mut samples = vec![0; PAUSE_BEFORE_WORDS];
    for word in text.split(' ') {
        let pitch = WORDS.iter().find(|(name, _)| *name == word).unwrap().1;
        let (length, start) = (WORD_SAMPLES, samples.len());
        samples.extend((0..length).map(|n| {
            let edge = (n.min(length - n) as f32 / EDGE_SAMPLES).min(1.0);
            let wave = (std::f32::consts::TAU * pitch * (start + n) as f32 / RATE as f32).sin();
            (AMPLITUDE * edge * wave) as i16
        }));
        samples.extend([0; PAUSE_AFTER_WORD]);
    }
    samples
}

pub(crate) fn write_wav(path: &Path, sample_rate: u32, samples: &[i16]) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).unwrap();
    samples.iter().for_each(|&sample| writer.write_sample(sample).unwrap());
    writer.finalize().unwrap();
}

/// Unfinished files (`*.tmp`) in a folder and its subfolders.
pub(crate) fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let unfinished = files.into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "tmp"));
    unfinished.chain(folders.iter().flat_map(|folder| leftovers(folder))).collect()
}
