//! Tests of the coverage of a recording and of the second search.
use std::sync::atomic::AtomicBool;

use recognizer::{
    Coverage, CoverageKind, CoverageOptions, GapStatus, Recognizer, Transcription, WindowConfig,
};
use speech::Audio;
use training::{StartMode, train};

use super::streaming_recognition::trained_model;
use super::toy::{RATE, Toy};

/// The words of the toy corpus last 0.2 s.
const OPTIONS: CoverageOptions = CoverageOptions { search_seconds: 0.15, tolerance_seconds: 0.15 };

fn silence(seconds: f64) -> Vec<f32> {
    vec![0.0; (seconds * f64::from(RATE)) as usize]
}

/// An utterance of the toy corpus, made quieter.
fn quieter(index: usize, decibels: f32) -> Vec<f32> {
    let gain = 10f32.powf(-decibels / 20.0);
    trained_model(false).utterances[index].iter().map(|sample| gain * sample).collect()
}

fn audio(parts: &[Vec<f32>]) -> Audio {
    Audio { samples: parts.concat(), sample_rate: RATE }
}

/// The coverage, after checks of what holds for every recording.
fn checked<'a>(audio: &Audio, before: &Transcription, after: &'a Transcription) -> &'a Coverage {
    let coverage = after.coverage.as_ref().unwrap();
    let duration = audio.samples.len() as f64 / f64::from(RATE);
    // 1. The segments tile the recording, and the totals are their sums.
    assert_eq!(coverage.duration, duration);
    assert_eq!((coverage.segments[0].start, coverage.segments.last().unwrap().end), (0.0, duration));
    assert!(coverage.segments.windows(2).all(|pair| pair[0].end == pair[1].start));
    let total = |kind| {
        let segments = coverage.segments.iter().filter(|segment| segment.kind == kind);
        segments.map(|segment| segment.end - segment.start).sum::<f64>()
    };
    let seconds = coverage.seconds;
    let totals = [
        (CoverageKind::Words, seconds.words),
        (CoverageKind::Recovered, seconds.recovered),
        (CoverageKind::Silence, seconds.silence),
        (CoverageKind::Gap, seconds.gap),
    ];
    assert!(totals.iter().all(|(kind, seconds)| (total(*kind) - seconds).abs() < 1e-9), "{coverage:?}");
    assert!((totals.iter().map(|(_, seconds)| seconds).sum::<f64>() - duration).abs() < 1e-9);
    // 2. Words are only added, and the added ones are listed.
    let (recovered, kept): (Vec<_>, Vec<_>) = after.words.iter().partition(|word| word.is_recovered);
    assert!(kept.into_iter().eq(&before.words), "{:?} {:?}", after.words, before.words);
    let times = |word: &recognizer::TimedWord| (word.text.clone(), word.start, word.end);
    let listed: Vec<_> =
        coverage.recovered.iter().map(|word| (word.text.clone(), word.start, word.end)).collect();
    assert_eq!(recovered.into_iter().map(times).collect::<Vec<_>>(), listed);
    // 3. Every gap is a segment.
    let gaps = coverage.segments.iter().filter(|segment| segment.kind == CoverageKind::Gap);
    let gaps: Vec<_> = gaps.map(|gap| (gap.start, gap.end)).collect();
    assert_eq!(coverage.gaps.iter().map(|gap| (gap.start, gap.end)).collect::<Vec<_>>(), gaps);
    coverage
}

/// The transcriptions of a recording without and with its coverage.
fn covered(recognizer: &Recognizer, audio: &Audio) -> (Transcription, Transcription) {
    let before = recognizer.transcribe(audio).unwrap();
    let after = recognizer.transcribe_covered(audio, &OPTIONS).unwrap();
    checked(audio, &before, &after);
    (before, after)
}

#[test]
fn silence_is_neither_words_nor_a_gap() {
    let recognizer = &trained_model(false).recognizer;
    // 0.5 s of silence before the first word, which begins after 0.1 s.
    let leading = audio(&[silence(0.5), quieter(5, 0.0)]);
    let (before, after) = covered(recognizer, &leading);
    assert_eq!((before.text.as_str(), after.text.as_str()), ("high middle low low", "high middle low low"));
    let coverage = after.coverage.unwrap();
    let first = coverage.segments[0];
    assert_eq!(first.kind, CoverageKind::Silence);
    assert!((first.end - 0.6).abs() < 0.1, "{coverage:?}");
    assert!(coverage.gaps.is_empty() && coverage.recovered.is_empty(), "{coverage:?}");

    // A pause of 10 s.
    let paused = audio(&[quieter(2, 0.0), silence(10.0), quieter(5, 0.0)]);
    let (_, after) = covered(recognizer, &paused);
    assert_eq!(after.text, "middle high middle high middle low low");
    let coverage = after.coverage.unwrap();
    let is_pause = |start: f64, end: f64| end - start > 9.7 && start < 1.1;
    assert!(coverage.segments.iter().any(|s| s.kind == CoverageKind::Silence && is_pause(s.start, s.end)));
    assert!(coverage.gaps.is_empty(), "{coverage:?}");

    // Nothing but silence.
    let (_, after) = covered(recognizer, &audio(&[silence(2.0)]));
    assert_eq!((after.text.as_str(), after.coverage.unwrap().fractions.silence), ("", 1.0));
}

#[test]
fn a_quiet_middle_is_recovered() {
    let recognizer = &trained_model(false).recognizer;
    let mut num_lost = 0;
    for decibels in [20.0, 30.0, 40.0, 50.0] {
        let parts = [quieter(5, 0.0), silence(0.5), quieter(2, decibels), silence(0.5), quieter(5, 0.0)];
        let (before, after) = covered(recognizer, &audio(&parts));
        let expected = "high middle low low middle high middle high middle low low";
        assert_eq!(after.text, expected, "{decibels} dB, ordinary search: {}", before.text);
        assert!(after.coverage.unwrap().gaps.is_empty(), "{decibels} dB");
        num_lost += usize::from(before.text != expected);
    }
    // The ordinary search loses words; otherwise this test would be void.
    assert!(num_lost > 1, "{num_lost}");
}

#[test]
fn two_speakers_are_covered() {
    let recognizer = &trained_model(false).recognizer;
    let turns = [(5, 0.0), (2, 35.0), (1, 0.0), (3, 35.0), (2, 0.0)];
    let parts: Vec<Vec<f32>> =
        turns.iter().flat_map(|&(index, decibels)| [silence(0.4), quieter(index, decibels)]).collect();
    let (before, after) = covered(recognizer, &audio(&parts));
    let expected = "high middle low low middle high middle high low low low high middle high middle";
    assert_eq!(after.text, expected, "ordinary search: {}", before.text);
    assert_eq!(after.tokens.len(), after.words.len());
}

#[test]
fn removed_words_are_found_again() {
    let model = trained_model(false);
    let recording = Audio { samples: model.recording(4000), sample_rate: RATE };
    let complete = model.recognizer.transcribe(&recording).unwrap();
    for removed in 0..complete.words.len() {
        let mut incomplete = complete.clone();
        incomplete.words.remove(removed);
        incomplete.tokens.remove(removed);
        let after = model.recognizer.cover(&recording, incomplete.clone(), &OPTIONS).unwrap();
        let coverage = checked(&recording, &incomplete, &after);
        assert_eq!(after.text, complete.text, "{removed} {coverage:?}");
        let (found, word) = (&coverage.recovered[0], &complete.words[removed]);
        assert_eq!((coverage.recovered.len(), &found.text), (1, &word.text));
        assert!((found.start - word.start).abs() < 0.2 && found.posterior > 0.2, "{found:?} {word:?}");
    }
    // Without any word, in chunks.
    let window = WindowConfig { seconds: 2.0, overlap: 1.0 };
    let chunks = recording.samples.chunks(999).map(|chunk| Ok(chunk.to_vec()));
    let chunked = model.recognizer.transcribe_chunks(chunks, window).unwrap();
    let after = model.recognizer.cover(&recording, chunked.clone(), &OPTIONS).unwrap();
    checked(&recording, &chunked, &after);
    assert_eq!(after.text, complete.text);
}

#[test]
fn remaining_gaps_are_listed_with_their_evidence() {
    let recognizer = &trained_model(false).recognizer;
    let recording = audio(&[quieter(0, 0.0), silence(1.0), quieter(2, 0.0), silence(0.5)]);
    let words = recognizer.transcribe(&recording).unwrap();
    assert_eq!(words.text, "low middle high middle");
    let mut incomplete = words.clone();
    incomplete.words.truncate(1);
    incomplete.tokens.truncate(1);
    // The gap is too short to be searched, or the silence filter discards all words.
    let short = CoverageOptions { search_seconds: 5.0, ..OPTIONS };
    let strict = trained_model(false).with_search(recognizer.search().clone()).with_silence(1.0).unwrap();
    for (recognizer, options, status) in
        [(recognizer, short, GapStatus::Short), (&strict, OPTIONS, GapStatus::Unrecovered)]
    {
        let after = recognizer.cover(&recording, incomplete.clone(), &options).unwrap();
        let coverage = checked(&recording, &incomplete, &after);
        assert!(coverage.recovered.is_empty() && after.words == incomplete.words);
        let gap = coverage.gaps[0];
        assert_eq!((coverage.gaps.len(), gap.status), (1, status), "{coverage:?}");
        // The second utterance begins at 1.36 s; its words begin 0.1 s later and end at 2.19 s.
        assert!((gap.start - 1.46).abs() < 0.15 && (gap.end - 2.19).abs() < 0.15, "{gap:?}");
        assert!((40.0..=70.0).contains(&gap.energy_db), "{gap:?}");
        assert!(gap.posterior.unwrap() > 0.5, "{gap:?}");
    }
    // Silence is discarded by the second search, too.
    let noise = (0..RATE).map(|n| ((n as f32 * 12.9898).sin() * 43_758.547).fract() * 0.1);
    let noisy = audio(&[silence(1.0), noise.collect(), silence(1.0)]);
    let after = strict.transcribe_covered(&noisy, &OPTIONS).unwrap();
    assert!(after.words.is_empty(), "{}", after.text);
    let error = recognizer.cover(&recording, words, &CoverageOptions { search_seconds: -1.0, ..OPTIONS });
    assert!(error.unwrap_err().to_string().starts_with("search_seconds: expected a number of seconds"));
}

#[test]
fn a_model_without_a_ctc_head_has_posteriors_of_the_second_search() {
    let toy = Toy::new();
    let repeated = format!("train = {:?}", ["train.jsonl"; 40]);
    let recipe = toy.recipe(&[
        ("train = [\"train.jsonl\"]", repeated.as_str()),
        ("perturb = { speed = 0.1 }", ""),
        ("max_utterances = 2", "max_utterances = 6"),
        ("max_frames = 200", "max_frames = 400"),
        ("ctc_weight = 0.3\n", ""),
    ]);
    let folder = toy.path("run");
    train(&recipe, Some(24), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let load = || Recognizer::load(&folder.join("best.safetensors")).unwrap();
    let recording = audio(&[quieter(0, 0.0), silence(1.0), quieter(2, 0.0), silence(0.5)]);
    let posteriors = |recognizer: &Recognizer, options: &CoverageOptions| {
        let after = recognizer.cover(&recording, Transcription::default(), options).unwrap();
        let coverage = checked(&recording, &Transcription::default(), &after);
        let gaps = coverage.gaps.iter().map(|gap| (gap.status, gap.posterior.map(|p| p > 0.5))).collect();
        (after.text.clone(), gaps)
    };
    let all = ("low middle high middle".to_owned(), Vec::new());
    assert_eq!(posteriors(&load(), &OPTIONS), all);
    let short = CoverageOptions { search_seconds: 5.0, ..OPTIONS };
    assert_eq!(posteriors(&load(), &short), (String::new(), vec![(GapStatus::Short, None); 2]));
    let strict = load().with_silence(1.0).unwrap();
    let unrecovered = (String::new(), vec![(GapStatus::Unrecovered, Some(true)); 2]);
    assert_eq!(posteriors(&strict, &OPTIONS), unrecovered);
}
