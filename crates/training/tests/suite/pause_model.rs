//! Test helper: a model of words with pauses, and recordings of its words.
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use recognizer::Recognizer;
use speech::Audio;
use training::{StartMode, train};

use super::toy::{RATE, Toy, write_wav};

/// Words with the recordings of the toy corpus that begin with them.
const WORDS: [(&str, &str); 3] = [("low", "0.wav"), ("middle", "4.wav"), ("high", "1.wav")];
/// Number of recordings of the training set.
const RECORDINGS: usize = 60;

/// A model of words with pauses, and the audio of each word.
pub(super) struct PauseModel {
    clips: Vec<Vec<i16>>,
    checkpoint: Vec<u8>,
}

impl PauseModel {
    /// Trains the model of a recipe with these changes for some epochs.
    pub(super) fn new(changes: &[(&str, &str)], epochs: u64) -> Self {
        let toy = Toy::new();
        // 1. The sound of each word, without the pauses before and after it.
        let clip = |(_, file): &(&str, &str)| {
            let mut reader = hound::WavReader::open(toy.path(file)).unwrap();
            let samples = reader.samples::<i16>().map(Result::unwrap);
            samples.skip(800).take(1600).collect::<Vec<i16>>()
        };
        let clips: Vec<Vec<i16>> = WORDS.iter().map(clip).collect();
        // 2. Recordings of one to four words with pauses of 0.05 to 0.9 s.
        let mut manifest = String::new();
        for index in 0..RECORDINGS {
            let pause = |position: usize| vec![0; 400 + 400 * ((7 * index + 5 * position) % 18)];
            let words: Vec<usize> = (0..1 + index % 4).map(|k| (index / 3usize.pow(k as u32)) % 3).collect();
            let mut samples = pause(0);
            for (position, &word) in words.iter().enumerate() {
                samples.extend([&clips[word][..], &pause(position + 1)].concat());
            }
            write_wav(&toy.path(&format!("pauses-{index}.wav")), RATE, &samples);
            let names: Vec<&str> = words.iter().map(|&word| WORDS[word].0).collect();
            manifest += &format!(
                "{{\"id\": \"{index}\", \"file\": \"pauses-{index}.wav\", \"text\": \"{}\", \"num_samples\": {}, \
                 \"sample_rate\": {RATE}}}\n",
                names.join(" "),
                samples.len()
            );
        }
        toy.write("train.jsonl", &manifest);
        // 3. Context 1: words are independent of each other.
        let repeated = format!("train = {:?}", ["train.jsonl"; 4]);
        let lstm = "kind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1";
        let common = [
            ("train = [\"train.jsonl\"]", repeated.as_str()),
            ("perturb = { speed = 0.1 }", ""),
            ("max_utterances = 2", "max_utterances = 6"),
            ("max_frames = 200", "max_frames = 2000"),
            ("epochs = 3", "epochs = 3\ntopology = \"modified\""),
            (lstm, "kind = \"stateless\"\nembedding = 8\ncontext = 1"),
        ];
        let (recipe, folder) = (toy.recipe(&[&common, changes].concat()), toy.path("run"));
        train(&recipe, Some(epochs), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
        PauseModel { clips, checkpoint: std::fs::read(folder.join("best.safetensors")).unwrap() }
    }

    pub(super) fn recognizer(&self) -> Recognizer {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, &self.checkpoint).unwrap();
        Recognizer::load(&path).unwrap()
    }
}

/// A model with a CTC head.
pub(super) fn model() -> &'static PauseModel {
    static MODEL: OnceLock<PauseModel> = OnceLock::new();
    MODEL.get_or_init(|| PauseModel::new(&[], 24))
}

pub(super) fn silence(seconds: f64) -> Vec<f32> {
    vec![0.0; (seconds * f64::from(RATE)) as usize]
}

/// The words of a text, quieter than in training.
///
/// Each word is followed by 0.1 s of silence.
pub(super) fn say(text: &str, decibels: f32) -> Vec<f32> {
    let gain = 10f32.powf(-decibels / 20.0) / 32_768.0;
    let clip = |word: &str| {
        let index = WORDS.iter().position(|(name, _)| *name == word).unwrap();
        let samples = model().clips[index].iter().map(|&sample| gain * f32::from(sample));
        samples.chain(silence(0.1)).collect::<Vec<f32>>()
    };
    text.split(' ').flat_map(clip).collect()
}

pub(super) fn audio(parts: &[Vec<f32>]) -> Audio {
    Audio { samples: parts.concat(), sample_rate: RATE }
}
