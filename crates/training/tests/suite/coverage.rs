//! Tests of the coverage of a recording and of the second search.
use std::sync::Arc;

use decoding::{BeamKind, BeamOptions, ClassScores, CtcBeamOptions, Fusion, GreedyOptions};
use recognizer::{
    Coverage, CoverageKind, CoverageOptions, GapStatus, Recognizer, SearchConfig, Transcription, WindowConfig,
};
use speech::Audio;

use super::pause_model::{PauseModel, audio, model, say, silence};
use super::toy::RATE;

/// The words of the toy corpus last 0.2 s.
const OPTIONS: CoverageOptions = CoverageOptions { search_seconds: 0.15, tolerance_seconds: 0.2 };

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
    let recognizer = &model().recognizer();
    let (_, after) = covered(recognizer, &audio(&[silence(0.5), say("high middle low", 0.0)]));
    assert_eq!(after.text, "high middle low");
    let coverage = after.coverage.unwrap();
    let first = coverage.segments[0];
    assert!(first.kind == CoverageKind::Silence && (first.end - 0.5).abs() < 0.1, "{coverage:?}");
    assert!(coverage.gaps.is_empty(), "{coverage:?}");

    // A pause of 10 s.
    let paused = audio(&[silence(0.3), say("middle high", 0.0), silence(10.0), say("low high", 0.0)]);
    let (_, after) = covered(recognizer, &paused);
    assert_eq!(after.text, "middle high low high");
    let coverage = after.coverage.unwrap();
    let is_pause = |start: f64, end: f64| (start - 0.8).abs() < 0.2 && (end - 10.9).abs() < 0.2;
    let pauses = coverage.segments.iter().filter(|s| s.kind == CoverageKind::Silence);
    assert_eq!(pauses.filter(|s| is_pause(s.start, s.end)).count(), 1, "{coverage:?}");
    assert!(coverage.gaps.is_empty(), "{coverage:?}");

    // Nothing but silence.
    let (_, after) = covered(recognizer, &audio(&[silence(2.0)]));
    assert_eq!((after.text.as_str(), after.coverage.unwrap().fractions.silence), ("", 1.0));
}

#[test]
fn a_quiet_middle_is_recovered() {
    let recognizer = &model().recognizer();
    let mut num_lost = 0;
    for decibels in [20.0, 30.0, 40.0, 50.0] {
        let (loud, quiet) = (say("high middle low", 0.0), say("middle high middle", decibels));
        let parts = [silence(0.3), loud.clone(), silence(0.5), quiet, silence(0.5), loud];
        let (before, after) = covered(recognizer, &audio(&parts));
        let expected = "high middle low middle high middle high middle low";
        assert_eq!(after.text, expected, "{decibels} dB, ordinary search: {}", before.text);
        assert!(after.coverage.unwrap().gaps.is_empty(), "{decibels} dB");
        num_lost += usize::from(before.text != expected);
    }
    // The ordinary search loses words; otherwise this test would be void.
    assert!(num_lost > 1, "{num_lost}");
}

#[test]
fn two_speakers_are_covered() {
    let recognizer = &model().recognizer();
    let turns = [
        ("high low", 0.0),
        ("middle high", 35.0),
        ("low middle", 0.0),
        ("high middle low", 35.0),
        ("middle high", 0.0),
    ];
    let parts: Vec<Vec<f32>> =
        turns.iter().flat_map(|&(text, decibels)| [silence(0.4), say(text, decibels)]).collect();
    let (before, after) = covered(recognizer, &audio(&parts));
    let expected = turns.map(|(text, _)| text).join(" ");
    assert_ne!(before.text, expected);
    assert_eq!(after.text, expected, "ordinary search: {}", before.text);
    assert_eq!(after.tokens.len(), after.words.len());
}

#[test]
fn removed_words_are_found_again() {
    let recognizer = &model().recognizer();
    let parts = ["high", "low", "middle", "high", "middle", "low"]
        .map(|word| [silence(0.3), say(word, 0.0)].concat());
    let recording = audio(&parts);
    let complete = recognizer.transcribe(&recording).unwrap();
    assert_eq!(complete.text, "high low middle high middle low");
    for removed in 0..complete.words.len() {
        let mut incomplete = complete.clone();
        incomplete.words.remove(removed);
        incomplete.tokens.remove(removed);
        let after = recognizer.cover(&recording, incomplete.clone(), &OPTIONS).unwrap();
        let coverage = checked(&recording, &incomplete, &after);
        assert_eq!(after.text, complete.text, "{removed} {coverage:?}");
        let (recovered, word) = (&coverage.recovered[0], &complete.words[removed]);
        assert_eq!((coverage.recovered.len(), &recovered.text), (1, &word.text));
        let is_near = (recovered.start - word.start).abs() < 0.2;
        assert!(is_near && recovered.posterior > 0.2, "{recovered:?} {word:?}");
    }
    // The words of windows may be incomplete at first.
    let window = WindowConfig { seconds: 2.0, overlap: 1.0 };
    let chunks = recording.samples.chunks(999).map(|chunk| Ok(chunk.to_vec()));
    let chunked = recognizer.transcribe_chunks(chunks, window).unwrap();
    let after = recognizer.cover(&recording, chunked.clone(), &OPTIONS).unwrap();
    checked(&recording, &chunked, &after);
    assert_eq!(after.text, complete.text, "chunks: {}", chunked.text);
}

#[test]
fn a_word_with_a_late_label_is_not_found_twice() {
    let recognizer = &model().recognizer();
    let parts = ["high", "low", "middle", "high"].map(|word| [silence(0.4), say(word, 0.0)].concat());
    let recording = audio(&parts);
    let complete = recognizer.transcribe(&recording).unwrap();
    assert_eq!(complete.text, "high low middle high");
    for index in 0..complete.words.len() {
        let mut late = complete.clone();
        let (word, token) = (&mut late.words[index], &mut late.tokens[index]);
        [&mut word.start, &mut word.end, &mut token.start, &mut token.end]
            .into_iter()
            .for_each(|time| *time += 0.45);
        let after = recognizer.cover(&recording, late.clone(), &OPTIONS).unwrap();
        let coverage = checked(&recording, &late, &after);
        assert_eq!(after.text, complete.text, "{index}");
        // The sound without a label near it remains a gap.
        assert_eq!(coverage.gaps.len(), 1, "{index} {coverage:?}");
    }
}

#[test]
fn every_search_recovers_words() {
    let beam = BeamOptions { kind: BeamKind::Modified, ..BeamOptions::default() };
    let ctc_beam = CtcBeamOptions::default();
    let scores = || Arc::new(ClassScores::new(vec![0.0; model().recognizer().model().classes()]).unwrap());
    // Fusion adds the greedy search of the model only, which the silence filter uses.
    let fusion = vec![Fusion { scorer: scores(), weight: 1.0 }];
    for search in [
        SearchConfig::Greedy(GreedyOptions { fusion, ..GreedyOptions::default() }),
        SearchConfig::Beam(beam.clone()),
        SearchConfig::BeamWithCtc { beam, weight: 0.3 },
        SearchConfig::Ctc(None),
        SearchConfig::Ctc(Some(ctc_beam)),
    ] {
        let with_search = || model().recognizer().with_search(search.clone()).unwrap();
        let empty = Transcription::default();
        let after = with_search().cover(&two_phrases(), empty.clone(), &OPTIONS).unwrap();
        checked(&two_phrases(), &empty, &after);
        assert_eq!(after.text, "low middle high middle", "{search:?}");
        let strict = with_search().with_silence(1.0).unwrap();
        let after = strict.cover(&two_phrases(), empty, &OPTIONS).unwrap();
        assert_eq!(after.text, "", "{search:?}");
    }
}

/// "low" from 0.3 to 0.5 s; "middle high middle" from 1.6 to 2.4 s.
fn two_phrases() -> Audio {
    audio(&[silence(0.3), say("low", 0.0), silence(1.0), say("middle high middle", 0.0), silence(0.5)])
}

#[test]
fn remaining_gaps_are_listed_with_their_evidence() {
    let recognizer = &model().recognizer();
    let recording = two_phrases();
    let words = recognizer.transcribe(&recording).unwrap();
    assert_eq!(words.text, "low middle high middle");
    let mut incomplete = words.clone();
    incomplete.words.truncate(1);
    incomplete.tokens.truncate(1);
    // The gap is too short to be searched, or the silence filter discards all words.
    let short = CoverageOptions { search_seconds: 5.0, ..OPTIONS };
    let strict = model().recognizer().with_silence(1.0).unwrap();
    for (recognizer, options, status) in
        [(recognizer, short, GapStatus::Short), (&strict, OPTIONS, GapStatus::Unrecovered)]
    {
        let after = recognizer.cover(&recording, incomplete.clone(), &options).unwrap();
        let coverage = checked(&recording, &incomplete, &after);
        assert!(coverage.recovered.is_empty() && after.words == incomplete.words);
        let gap = coverage.gaps[0];
        assert_eq!((coverage.gaps.len(), gap.status), (1, status), "{coverage:?}");
        assert!((gap.start - 1.6).abs() < 0.2 && (gap.end - 2.4).abs() < 0.2, "{gap:?}");
        assert!((30.0..=70.0).contains(&gap.energy_db), "{gap:?}");
        assert!(gap.posterior.unwrap() > 0.5, "{gap:?}");
    }
    let error = recognizer.cover(&recording, words, &CoverageOptions { search_seconds: -1.0, ..OPTIONS });
    assert!(error.unwrap_err().to_string().starts_with("search_seconds: expected a number of seconds"));
}

#[test]
fn a_model_without_a_ctc_head_has_posteriors_of_the_second_search() {
    // Words are learned later than with a CTC head, on each processor in other steps.
    let model = PauseModel::new(&[("ctc_weight = 0.3\n", "")], 48);
    let recording = two_phrases();
    let cover = |recognizer: Recognizer, options: &CoverageOptions| {
        let after = recognizer.cover(&recording, Transcription::default(), options).unwrap();
        let coverage = checked(&recording, &Transcription::default(), &after);
        let gaps = coverage.gaps.iter().map(|gap| (gap.status, gap.posterior.map(|p| p > 0.5))).collect();
        (after.text.clone(), gaps)
    };
    assert_eq!(cover(model.recognizer(), &OPTIONS), ("low middle high middle".to_owned(), Vec::new()));
    let short = CoverageOptions { search_seconds: 5.0, ..OPTIONS };
    assert_eq!(cover(model.recognizer(), &short), (String::new(), vec![(GapStatus::Short, None); 2]));
    let strict = model.recognizer().with_silence(1.0).unwrap();
    let unrecovered = (String::new(), vec![(GapStatus::Unrecovered, Some(true)); 2]);
    assert_eq!(cover(strict, &OPTIONS), unrecovered);
}
