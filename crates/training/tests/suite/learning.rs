//! Tests that small models of every kind learn a small corpus.
use std::{collections::HashMap, sync::atomic::AtomicBool};

use decoding::{BeamKind, BeamOptions, CtcBeamOptions};
use recognizer::{Recognizer, SearchConfig, evaluate};
use training::{StartMode, train};

use super::toy::{RECIPE, Toy};

/// Repetitions of the corpus in one epoch: fewer epochs write fewer checkpoints.
const REPETITIONS: usize = 40;
/// Smallest number of words with the same time in alignment and search.
///
/// The corpus has 14 words.
const MIN_EQUAL_TIMES: usize = 11;

/// Trains until all texts are recognized; returns the last row of `metrics.csv`, by column.
fn expect_learning(changes: &[(&str, &str)]) -> HashMap<String, String> {
    let toy = Toy::new();
    let repeated = format!("train = {:?}", ["train.jsonl"; REPETITIONS]);
    let mut all_changes = vec![
        ("train = [\"train.jsonl\"]", repeated.as_str()),
        ("perturb = { speed = 0.1 }", ""),
        ("max_utterances = 2", "max_utterances = 6"),
        ("max_frames = 200", "max_frames = 400"),
    ];
    all_changes.extend(changes);
    let (recipe, folder) = (toy.recipe(&all_changes), toy.path("run"));
    let outcome =
        train(&recipe, Some(24), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let test = outcome.test.unwrap();
    assert_eq!(test.overall.wer, 0.0, "{:?}", test.transcripts);
    assert_eq!(outcome.dev.unwrap().overall.wer, 0.0);

    // The recognizer gives the texts of the final evaluation, in batches and one by one.
    let recognizer = Recognizer::load(&folder.join("best.safetensors")).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let batched = evaluate(&recognizer, &utterances).unwrap();
    assert_eq!(batched, test);
    for (utterance, transcript) in utterances.iter().zip(&batched.transcripts) {
        let audio = utterance.audio(8000).unwrap();
        let single = recognizer.transcribe(&audio).unwrap();
        assert_eq!((&single.text, &utterance.id), (&transcript.hypothesis, &transcript.id));
        let words: Vec<&str> = single.tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(words.join(" "), single.text);
        let times: Vec<f64> = single.tokens.iter().map(|token| token.start).collect();
        assert!(times.is_sorted() && times.iter().all(|&time| time <= audio.seconds()), "{times:?}");
        assert!(single.tokens.iter().all(|token| token.log_prob <= 0.0 && token.log_prob > -3.0));
    }

    // The alignment of the known text emits most words where the search emitted them.
    let aligned = recognizer.align(&utterances).unwrap();
    assert_eq!(aligned.without_path, [] as [String; 0]);
    let mut differences = Vec::new();
    for (utterance, aligned) in utterances.iter().zip(&aligned.utterances) {
        let recognized = recognizer.transcribe(&utterance.audio(8000).unwrap()).unwrap().tokens;
        assert_eq!(aligned.tokens.len(), recognized.len());
        for (aligned, recognized) in aligned.tokens.iter().zip(&recognized) {
            assert_eq!(aligned.text, recognized.text);
            differences.push((aligned.start - recognized.start).abs());
        }
    }
    let num_equal = differences.iter().filter(|&&difference| difference < 0.05).count();
    assert!(num_equal >= MIN_EQUAL_TIMES, "{differences:?}");
    let metrics = std::fs::read_to_string(folder.join("metrics.csv")).unwrap();
    let cells = |line: Option<&str>| line.unwrap().split(',').map(str::to_owned).collect::<Vec<_>>();
    cells(metrics.lines().next()).into_iter().zip(cells(metrics.lines().last())).collect()
}

/// The same with a `[loss]` table and keys of `[training]`.
fn expect_learning_with(loss: &str, training: &str) -> HashMap<String, String> {
    let training = format!("epochs = 3\n{training}");
    let loss = format!("ctc_weight = 0.3\n[loss]\n{loss}");
    expect_learning(&[("epochs = 3", &training), ("ctc_weight = 0.3", &loss)])
}

#[test]
fn a_bidirectional_encoder_and_the_regular_topology_learn() {
    expect_learning(&[]);
}

#[test]
fn a_causal_encoder_a_stateless_predictor_and_the_modified_topology_learn() {
    let lstm = "kind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1";
    let stateless = "kind = \"stateless\"\nembedding = 8\ncontext = 2";
    expect_learning(&[
        (lstm, stateless),
        ("bidirectional = true", "time_reduction = { after_layer = 1, factor = 2 }"),
        ("stack = 4\nstride = 4\nlayers = 1", "stack = 3\nstride = 2\nlayers = 2"),
        ("epochs = 3", "epochs = 3\ntopology = \"modified\""),
    ]);
}

#[test]
fn tokens_with_durations_learn() {
    expect_learning_with("kind = \"tdt\"\ndurations = [0, 1, 2, 4]\nsigma = 0.05\nomega = 0.1", "");
}

#[test]
fn blanks_with_durations_learn() {
    expect_learning_with("kind = \"multi-blank\"\ndurations = [2, 4]\nsigma = 0.05", "");
    expect_learning_with("kind = \"multi-blank\"\ndurations = [3]", "topology = \"modified\"");
}

#[test]
fn a_pruned_lattice_learns() {
    let scales = "lm_only_scale = 0.25\nam_only_scale = 0.1\nwarm_steps = 200";
    let last =
        expect_learning_with(&format!("kind = \"pruned\"\ns_range = 2\n{scales}"), "topology = \"modified\"");
    // The joint network can represent more than the simple joiner.
    let [joint, simple] = ["loss", "simple_loss"].map(|column| last[column].parse::<f64>().unwrap());
    assert!(0.0 < joint && joint < simple, "{joint} {simple}");
}

#[test]
fn label_smoothing_z_loss_and_delay_penalty_learn() {
    let last = expect_learning(&[(
        "ctc_weight = 0.3",
        "ctc_weight = 0.3\nlabel_smoothing = 1e-3\nz_loss = 1e-3\ndelay_penalty = 0.01",
    )]);
    assert_eq!(last["simple_loss"].parse(), Ok(0.0));
}

#[test]
fn a_factored_blank_and_the_constrained_topology_learn() {
    expect_learning_with("kind = \"rnnt\"\nfactored_blank = true", "topology = \"constrained\"");
}

#[test]
fn invalid_audio_and_empty_sets_are_errors() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    train(&recipe, None, &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let recognizer = Recognizer::load(&folder.join("last.safetensors")).unwrap();
    assert!(matches!(evaluate(&recognizer, &[]), Err(recognizer::Error::Empty { .. })));
    let transcribe = |samples: Vec<f32>, sample_rate| {
        recognizer.transcribe(&speech::Audio { samples, sample_rate }).unwrap_err().to_string()
    };
    assert!(transcribe(vec![0.1; 8000], 16_000).contains("expected audio at 8000 Hz, found 16000 Hz"));
    assert!(transcribe(Vec::new(), 8000).contains("at least one sample"));
    assert!(transcribe(vec![f32::NAN; 8000], 8000).contains("NaN"));
}

#[test]
fn a_ctc_head_with_a_large_weight_decides_like_a_ctc_search() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[]), toy.path("run"));
    train(&recipe, Some(6), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let recognizer = |search| {
        // The silence filter would remove the words of a joint that is not yet confident.
        let recognizer = Recognizer::load(&folder.join("last.safetensors")).unwrap().with_silence(0.0);
        recognizer.unwrap().with_search(search).unwrap()
    };
    let texts = |search| {
        let transcripts = evaluate(&recognizer(search), &utterances).unwrap().transcripts;
        transcripts.into_iter().map(|transcript| transcript.hypothesis).collect::<Vec<_>>()
    };
    // A beam that keeps all short texts.
    let beam = BeamOptions {
        kind: BeamKind::Malsd { max_symbols: 3 },
        width: 400,
        normalize_by_length: false,
        ..BeamOptions::default()
    };
    let with_ctc = |weight| SearchConfig::BeamWithCtc { beam: beam.clone(), weight };
    let joint_only = texts(SearchConfig::Beam(beam.clone()));
    assert_eq!(texts(with_ctc(0.0)), joint_only);
    let ctc = texts(SearchConfig::Ctc(Some(CtcBeamOptions { width: 400, ..CtcBeamOptions::default() })));
    assert_ne!(ctc, joint_only);
    assert_eq!(texts(with_ctc(1e3)), ctc);

    // The best texts are returned if several are requested.
    let three = SearchConfig::BeamWithCtc { beam: BeamOptions { nbest: 3, ..beam.clone() }, weight: 1e3 };
    let evaluation = evaluate(&recognizer(three), &utterances).unwrap();
    for (transcript, ctc) in evaluation.transcripts.iter().zip(&ctc) {
        let nbest = &transcript.transcription.nbest;
        assert_eq!((nbest.len(), &nbest[0].text, &transcript.hypothesis), (3, ctc, ctc));
        assert!(nbest.is_sorted_by(|a, b| a.score >= b.score && a.text != b.text), "{nbest:?}");
    }
    let all = SearchConfig::Beam(BeamOptions { nbest: 400, ..beam.clone() });
    let evaluation = evaluate(&recognizer(all), &utterances).unwrap();
    assert!(evaluation.overall.wer > 0.0 && evaluation.oracle().unwrap().wer == 0.0);
    assert_eq!(evaluate(&recognizer(with_ctc(1.0)), &utterances).unwrap().oracle(), None);

    // Other utterances of a batch and padding change nothing.
    let (single, batched) = (recognizer(with_ctc(0.7)), texts(with_ctc(0.7)));
    for (utterance, text) in utterances.iter().zip(&batched) {
        assert_eq!(&single.transcribe(&utterance.audio(8000).unwrap()).unwrap().text, text);
    }

    let recipe = toy.write("without-ctc.toml", &RECIPE.replace("ctc_weight = 0.3", ""));
    let folder = toy.path("without-ctc");
    train(&recipe, Some(1), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let without_ctc = Recognizer::load(&folder.join("last.safetensors")).unwrap();
    let error = without_ctc.with_search(with_ctc(0.5)).err().unwrap().to_string();
    assert!(error.contains("expected a model with a CTC head"), "{error}");
}
