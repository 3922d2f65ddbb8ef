//! Tests of recipes with feature presets, trimmed silence and waveform augmentation.
use std::sync::atomic::AtomicBool;

use model::Model;
use recognizer::Recognizer;
use speech::{Audio, Preset};
use training::{Error, Recipe, StartMode, train};

use super::toy::{RATE, Toy, write_wav};

#[test]
fn a_preset_is_written_with_all_keys_and_read_again() {
    let toy = Toy::new();
    let path = toy.recipe(&[
        ("mels = 12", "preset = \"mlperf\"\nmels = 12"),
        ("stack = 4", "stack = 4\nchannels = 64"),
    ]);
    let (recipe, _) = Recipe::read(&path, None).unwrap();
    let expected = speech::FeatureConfig { sample_rate: 8000, mels: 12, ..Preset::Mlperf.config() };
    assert_eq!(recipe.features, expected);
    // With another number of epochs the recipe is written again.
    let (_, text) = Recipe::read(&path, Some(5)).unwrap();
    let written = Recipe::parse(&text, &path).unwrap();
    assert_eq!((&written.features, &written.encoder.rows), (&recipe.features, &recipe.encoder.rows));
    assert_eq!(recipe.encoder.rows.width(12), 64);
    let count_weights = |config| {
        let weights = Model::new(config, 3).unwrap().parameters().values().unwrap();
        weights.values().map(|values| values.len()).sum::<usize>()
    };
    let (narrow, _) = Recipe::read(&toy.recipe(&[]), None).unwrap();
    // Two directions with four gates of 16 cells; the other recipe has 4 · 12 inputs.
    let additional_weights = count_weights(&recipe.model_config()) - count_weights(&narrow.model_config());
    assert_eq!(additional_weights, 2 * 4 * 16 * (64 - 48));
}

#[test]
fn times_include_trimmed_silence() {
    let toy = Toy::new();
    let repeated = format!("train = {:?}", ["train.jsonl"; 40]);
    let recipe = toy.recipe(&[
        ("train = [\"train.jsonl\"]", repeated.as_str()),
        ("mels = 12", "preset = \"mlperf\"\nmels = 12"),
        ("stack = 4", "stack = 4\nchannels = 64"),
        ("perturb = { speed = 0.1 }", ""),
        // With this seed the model recognizes a late word, which its data does not contain.
        ("seed = 7", "seed = 1"),
        ("max_utterances = 2", "max_utterances = 6"),
        ("max_frames = 200", "max_frames = 400"),
    ]);
    let folder = toy.path("run");
    train(&recipe, Some(24), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let recognizer = Recognizer::load(&folder.join("best.safetensors")).unwrap();
    let original = &speech::read_manifest(&toy.path("train.jsonl")).unwrap()[..1];
    let audio = original[0].audio(RATE).unwrap();
    let mut late = vec![0.0; 3 * RATE as usize];
    late.extend(&audio.samples);
    let [early, late] = [audio.samples, late].map(|samples| Audio { samples, sample_rate: RATE });
    let integers: Vec<i16> = late.samples.iter().map(|x| (x * 32768.0) as i16).collect();
    write_wav(&toy.path("late.wav"), RATE, &integers);
    toy.write("late.jsonl", r#"{"id": "late", "file": "late.wav", "seconds": 4.0, "text": "low"}"#);
    let delayed = speech::read_manifest(&toy.path("late.jsonl")).unwrap();

    let [early, late] = [early, late].map(|audio| recognizer.transcribe(&audio).unwrap());
    assert_eq!((early.text.as_str(), late.text.as_str()), ("low", "low"));
    // The bidirectional model emits the word at the first frame; trimming keeps 2047 samples, a
    // quarter of a second, before it.
    assert!((late.words[0].start - early.words[0].start - 3.0).abs() < 0.3, "{early:?} {late:?}");
    let [early, late] = [original, &delayed].map(|list| recognizer.align(list).unwrap().utterances.remove(0));
    assert!((late.words[0].start - early.words[0].start - 3.0).abs() < 0.3, "{early:?} {late:?}");
    assert!((late.tokens[0].expected - early.tokens[0].expected - 3.0).abs() < 0.3, "{early:?} {late:?}");
}

#[test]
fn changes_of_waveforms_are_applied_or_errors() {
    let toy = Toy::new();
    let run = |data: &str, augment: &str| {
        let changes = [("[data]", format!("[data]\n{data}")), ("[augment]", format!("[augment]\n{augment}"))];
        let recipe = toy.recipe(&changes.each_ref().map(|(old, new)| (*old, new.as_str())));
        train(&recipe, None, &toy.path("run"), StartMode::Fresh, &mut (), &AtomicBool::new(false))
            .unwrap_err()
    };
    let error = run("", "speed = {}");
    assert!(
        matches!(&error, Error::Model(model::Error::RecipeValue { key, .. }) if key == "augment"),
        "{error}"
    );
    write_wav(&toy.path("impulse.wav"), 16_000, &[9, 3, 1]);
    toy.write("impulses.jsonl", r#"{"file": "impulse.wav"}"#);
    let error = run("stream = true", "reverb = { manifest = \"impulses.jsonl\" }").to_string();
    assert!(error.contains("impulse.wav: expected audio at 8000 Hz, found 16000 Hz"), "{error}");
    let error =
        run("stream = true", "noise = { manifest = \"gone.jsonl\", snr_db = [0.0, 20.0] }").to_string();
    assert!(error.contains("gone.jsonl"), "{error}");
}
