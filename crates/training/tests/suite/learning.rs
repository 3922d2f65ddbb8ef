//! A tiny model learns a tiny corpus by heart, and says the same alone as in a batch.
use std::{collections::HashMap, sync::atomic::AtomicBool};

use decoding::{Beam, BeamKind, CtcBeam};
use recognizer::{Recognizer, SearchConfig, evaluate};
use training::{Start, train};

use super::toy::{RECIPE, Toy};

/// The corpus many times over, so that an epoch, with its checkpoint at the end, is not over at once.
const OFTEN: usize = 40;

/// Returns the last epoch of `metrics.csv`, by column.
fn learns(changes: &[(&str, &str)]) -> HashMap<String, String> {
    let toy = Toy::new();
    let often = format!("train = {:?}", ["train.jsonl"; OFTEN]);
    let mut all = vec![
        ("train = [\"train.jsonl\"]", often.as_str()),
        ("perturb = { speed = 0.1 }", ""),
        ("max_utterances = 2", "max_utterances = 6"),
        ("max_frames = 200", "max_frames = 400"),
    ];
    all.extend(changes);
    let (recipe, folder) = (toy.recipe(&all), toy.path("run"));
    let outcome = train(&recipe, Some(24), &folder, Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let test = outcome.test.unwrap();
    assert_eq!(test.overall.wer, 0.0, "{:?}", test.transcripts);
    assert_eq!(outcome.dev.unwrap().overall.wer, 0.0);

    let recogniser = Recognizer::load(&folder.join("best.safetensors")).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let together = evaluate(&recogniser, &utterances).unwrap();
    assert_eq!(together, test);
    for (utterance, transcript) in utterances.iter().zip(&together.transcripts) {
        let audio = utterance.audio(8000).unwrap();
        let alone = recogniser.transcribe(&audio).unwrap();
        assert_eq!((&alone.text, &utterance.id), (&transcript.hypothesis, &transcript.id));
        let words: Vec<&str> = alone.tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(words.join(" "), alone.text);
        let times: Vec<f64> = alone.tokens.iter().map(|token| token.start).collect();
        assert!(times.is_sorted() && times.iter().all(|&time| time <= audio.seconds()), "{times:?}");
        assert!(alone.tokens.iter().all(|token| token.log_prob <= 0.0 && token.log_prob > -3.0));
    }

    // The best path of the known text emits most words where the search found them.
    let aligned = recogniser.align(&utterances).unwrap();
    assert_eq!(aligned.without_path, [] as [String; 0]);
    let mut apart = Vec::new();
    for (utterance, aligned) in utterances.iter().zip(&aligned.utterances) {
        let found = recogniser.transcribe(&utterance.audio(8000).unwrap()).unwrap().tokens;
        assert_eq!(aligned.tokens.len(), found.len());
        for (aligned, found) in aligned.tokens.iter().zip(&found) {
            assert_eq!(aligned.text, found.text);
            apart.push((aligned.start - found.start).abs());
        }
    }
    assert!(apart.iter().filter(|&&apart| apart < 0.05).count() >= 11, "{apart:?}");
    let metrics = std::fs::read_to_string(folder.join("metrics.csv")).unwrap();
    let cells = |line: Option<&str>| line.unwrap().split(',').map(str::to_owned).collect::<Vec<_>>();
    cells(metrics.lines().next()).into_iter().zip(cells(metrics.lines().last())).collect()
}

/// The same with a `[loss]` table.
fn learns_with(loss: &str, training: &str) -> HashMap<String, String> {
    let training = format!("epochs = 3\n{training}");
    let loss = format!("ctc_weight = 0.3\n[loss]\n{loss}");
    learns(&[("epochs = 3", &training), ("ctc_weight = 0.3", &loss)])
}

#[test]
fn both_directions_and_the_regular_topology() {
    learns(&[]);
}

#[test]
fn one_direction_a_stateless_predictor_and_the_modified_topology() {
    let lstm = "kind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1";
    let stateless = "kind = \"stateless\"\nembedding = 8\ncontext = 2";
    learns(&[
        (lstm, stateless),
        ("bidirectional = true", "time_reduction = { after_layer = 1, factor = 2 }"),
        ("stack = 4\nstride = 4\nlayers = 1", "stack = 3\nstride = 2\nlayers = 2"),
        ("epochs = 3", "epochs = 3\ntopology = \"modified\""),
    ]);
}

#[test]
fn tokens_with_durations() {
    learns_with("kind = \"tdt\"\ndurations = [0, 1, 2, 4]\nsigma = 0.05\nomega = 0.1", "");
}

#[test]
fn blanks_that_last() {
    learns_with("kind = \"multi-blank\"\ndurations = [2, 4]\nsigma = 0.05", "");
    learns_with("kind = \"multi-blank\"\ndurations = [3]", "topology = \"modified\"");
}

#[test]
fn a_pruned_lattice() {
    let scales = "lm_only_scale = 0.25\nam_only_scale = 0.1\nwarm_steps = 200";
    let last = learns_with(&format!("kind = \"pruned\"\ns_range = 2\n{scales}"), "topology = \"modified\"");
    // A joint network knows more than a trivial joiner.
    let [joint, trivial] = ["loss", "simple_loss"].map(|column| last[column].parse::<f64>().unwrap());
    assert!(0.0 < joint && joint < trivial, "{joint} {trivial}");
}

#[test]
fn smoothed_labels_that_are_early_and_small_scores() {
    let last = learns(&[(
        "ctc_weight = 0.3",
        "ctc_weight = 0.3\nlabel_smoothing = 1e-3\nz_loss = 1e-3\ndelay_penalty = 0.01",
    )]);
    assert_eq!(last["simple_loss"].parse(), Ok(0.0));
}

#[test]
fn a_factored_blank_and_the_constrained_topology() {
    learns_with("kind = \"rnnt\"\nfactored_blank = true", "topology = \"constrained\"");
}

#[test]
fn what_cannot_be_evaluated_or_transcribed_is_named() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    train(&recipe, None, &folder, Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let recogniser = Recognizer::load(&folder.join("last.safetensors")).unwrap();
    assert!(matches!(evaluate(&recogniser, &[]), Err(recognizer::Error::Empty { .. })));
    let transcribe = |samples: Vec<f32>, sample_rate| {
        recogniser.transcribe(&speech::Audio { samples, sample_rate }).unwrap_err().to_string()
    };
    assert!(transcribe(vec![0.1; 8000], 16_000).contains("expected audio at 8000 Hz, found 16000 Hz"));
    assert!(transcribe(Vec::new(), 8000).contains("at least one sample"));
    assert!(transcribe(vec![f32::NAN; 8000], 8000).contains("NaN"));
}

#[test]
fn a_ctc_head_that_outweighs_the_joint_finds_what_it_finds_alone() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[]), toy.path("run"));
    train(&recipe, Some(6), &folder, Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let recogniser = |search| {
        // A joint that is not sure of its words would call them silence.
        let recogniser = Recognizer::load(&folder.join("last.safetensors")).unwrap().with_silence(0.0);
        recogniser.unwrap().with_search(search).unwrap()
    };
    let texts = |search| {
        let transcripts = evaluate(&recogniser(search), &utterances).unwrap().transcripts;
        transcripts.into_iter().map(|one| one.hypothesis).collect::<Vec<_>>()
    };
    // So wide that all short texts are kept.
    let beam =
        Beam { kind: BeamKind::Malsd { max_symbols: 3 }, width: 400, normalise: false, ..Beam::default() };
    let with_ctc = |weight| SearchConfig::BeamWithCtc { beam: beam.clone(), weight };
    let alone = texts(SearchConfig::Beam(beam.clone()));
    assert_eq!(texts(with_ctc(0.0)), alone);
    let ctc = texts(SearchConfig::Ctc(Some(CtcBeam { width: 400, ..CtcBeam::default() })));
    assert_ne!(ctc, alone);
    assert_eq!(texts(with_ctc(1e3)), ctc);

    // The best texts are told where several are asked for.
    let few = SearchConfig::BeamWithCtc { beam: Beam { nbest: 3, ..beam.clone() }, weight: 1e3 };
    let evaluation = evaluate(&recogniser(few), &utterances).unwrap();
    for (one, ctc) in evaluation.transcripts.iter().zip(&ctc) {
        let nbest = &one.transcription.nbest;
        assert_eq!((nbest.len(), &nbest[0].text, &one.hypothesis), (3, ctc, ctc));
        assert!(nbest.is_sorted_by(|a, b| a.score >= b.score && a.text != b.text), "{nbest:?}");
    }
    let all = SearchConfig::Beam(Beam { nbest: 400, ..beam.clone() });
    let evaluation = evaluate(&recogniser(all), &utterances).unwrap();
    assert!(evaluation.overall.wer > 0.0 && evaluation.oracle().unwrap().wer == 0.0);
    assert_eq!(evaluate(&recogniser(with_ctc(1.0)), &utterances).unwrap().oracle(), None);

    // Batch mates and their padding have no say.
    let (alone, together) = (recogniser(with_ctc(0.7)), texts(with_ctc(0.7)));
    for (utterance, text) in utterances.iter().zip(&together) {
        assert_eq!(&alone.transcribe(&utterance.audio(8000).unwrap()).unwrap().text, text);
    }

    let recipe = toy.write("alone.toml", &RECIPE.replace("ctc_weight = 0.3", ""));
    train(&recipe, Some(1), &toy.path("alone"), Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let headless = Recognizer::load(&toy.path("alone").join("last.safetensors")).unwrap();
    let error = headless.with_search(with_ctc(0.5)).err().unwrap().to_string();
    assert!(error.contains("expected a model with training.ctc_weight"), "{error}");
}
