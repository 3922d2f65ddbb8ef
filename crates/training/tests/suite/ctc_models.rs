//! Tests of CTC models (`loss.kind = "ctc"`), from recipe to text.
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use candle_core::{Device, Tensor};
use decoding::{BeamOptions, CtcBeamOptions, GreedyOptions};
use model::{Checkpoint, LabeledRows, LossSessions, Model, ModelConfig};
use recognizer::{
    LatticeSearch, Recognizer, SearchConfig, StreamingOptions, TokenFilter, WindowConfig, evaluate,
};
use speech::Audio;
use training::{Error, Recipe, StartMode, train};

use super::streaming_recognition::recognize_pieces;
use super::toy::{RATE, RECIPE, Toy};

const PREDICTOR: &str = "[predictor]\nkind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1\n";
const JOINT: &str = "[joint]\nwidth = 16\n";

/// Changes of the toy recipe for a CTC model.
fn ctc_changes(loss: &str) -> [(&'static str, String); 3] {
    let loss = format!("[loss]\nkind = \"ctc\"\n{loss}");
    [(PREDICTOR, String::new()), (JOINT, String::new()), ("ctc_weight = 0.3", loss)]
}

/// The toy recipe for a CTC model.
fn recipe_text(loss: &str) -> String {
    ctc_changes(loss).iter().fold(RECIPE.to_owned(), |text, (old, new)| text.replace(old, new))
}

fn parse(text: &str) -> training::Result<Recipe> {
    Recipe::parse(text, Path::new("ctc.toml"))
}

/// A trained CTC model and its corpus.
struct TrainedModel {
    toy: Toy,
    checkpoint: PathBuf,
    /// Error rate on the training data.
    wer: f64,
    /// Losses of the first and the last epoch.
    losses: [f64; 2],
}

impl TrainedModel {
    fn load(&self) -> Recognizer {
        Recognizer::load(&self.checkpoint).unwrap()
    }

    fn utterances(&self) -> Vec<speech::Utterance> {
        speech::read_manifest(&self.toy.path("train.jsonl")).unwrap()
    }
}

/// Trains a CTC model whose encoder is causal or bidirectional.
fn trained_model(is_causal: bool) -> &'static TrainedModel {
    static MODELS: [OnceLock<TrainedModel>; 2] = [OnceLock::new(), OnceLock::new()];
    MODELS[usize::from(is_causal)].get_or_init(|| {
        let toy = Toy::new();
        let repeated = format!("train = {:?}", ["train.jsonl"; 40]);
        let training = "epochs = 3\nselect = \"last\"\nlabel_smoothing = 1e-3\nz_loss = 1e-4";
        let mut changes = vec![
            ("train = [\"train.jsonl\"]", repeated),
            ("perturb = { speed = 0.1 }", String::new()),
            ("max_utterances = 2", "max_utterances = 6".into()),
            ("max_frames = 200", "max_frames = 400".into()),
            ("epochs = 3", training.into()),
            ("stack = 4\nstride = 4", "stack = 3\nstride = 3".into()),
        ];
        changes.extend(ctc_changes(""));
        changes.push(("mels = 12", "mels = 12\nnormalize = \"running\"\nfloor_db = 100.0".into()));
        if is_causal {
            changes.push(("bidirectional = true", "bidirectional = false".into()));
        }
        let changes: Vec<_> = changes.iter().map(|(old, new)| (*old, new.as_str())).collect();
        let (recipe, folder) = (toy.recipe(&changes), toy.path("run"));
        let outcome =
            train(&recipe, Some(36), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
        let metrics = std::fs::read_to_string(folder.join("metrics.csv")).unwrap();
        let column = metrics.lines().next().unwrap().split(',').position(|name| name == "loss").unwrap();
        let loss = |line: &str| line.split(',').nth(column).unwrap().parse().unwrap();
        let losses = [metrics.lines().nth(1), metrics.lines().last()].map(|line| loss(line.unwrap()));
        let wer = outcome.test.unwrap().overall.wer;
        TrainedModel { checkpoint: folder.join("last.safetensors"), toy, wer, losses }
    })
}

/// Classes and probabilities of the best path of an utterance.
fn best_path(recognizer: &Recognizer, audio: &Audio) -> Vec<(u32, f64)> {
    let (model, features) = (recognizer.model(), &recognizer.model().config().input.features);
    let features = speech::FrontEnd::new(features).unwrap().log_mel(audio).unwrap();
    let (rows, lengths) = model::collate(&[&features], &model.config().input.rows).unwrap();
    let (encoded, _) = model.encoder().forward(&rows, &lengths, None).unwrap();
    let logits: Vec<Vec<Vec<f32>>> = model.ctc_logits(&encoded).unwrap().unwrap().to_vec3().unwrap();
    let best = |row: &Vec<f32>| {
        let class = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let sum: f64 = row.iter().map(|&score| f64::from(score - row[class]).exp()).sum();
        (class as u32, 1.0 / sum)
    };
    logits[0].iter().map(best).collect()
}

#[test]
fn a_ctc_model_learns_and_recognizes() {
    for is_causal in [false, true] {
        let trained = trained_model(is_causal);
        let [first, last] = trained.losses;
        assert!(last < 0.2 * first && trained.wer == 0.0, "{first} {last} {}", trained.wer);
        let (recognizer, utterances) = (trained.load(), trained.utterances());
        assert!(matches!(recognizer.search(), SearchConfig::Ctc(None)));
        assert!(recognizer.model().is_ctc() && recognizer.decoder().is_none());
        let evaluation = evaluate(&recognizer, &utterances).unwrap();
        let frame_seconds = recognizer.model().config().frame_ms() / 1000.0;
        let aligned = recognizer.align(&utterances).unwrap();
        assert_eq!(aligned.without_path, [] as [String; 0]);
        for ((utterance, transcript), aligned) in
            utterances.iter().zip(&evaluation.transcripts).zip(&aligned.utterances)
        {
            // Labels of the best path: the first frame of each run that is no blank.
            let audio = utterance.audio(RATE).unwrap();
            let path = best_path(&recognizer, &audio);
            let (blank, tokens) = (recognizer.model().blank(), recognizer.tokenizer().tokens());
            let is_first = |t: usize| path[t].0 != blank && (t == 0 || path[t - 1].0 != path[t].0);
            let starts: Vec<usize> = (0..path.len()).filter(|&t| is_first(t)).collect();
            let single = recognizer.transcribe(&audio).unwrap();
            assert_eq!((&single.text, &single.text), (&transcript.hypothesis, &utterance.text));
            assert_eq!(single.tokens.len(), starts.len());
            for (token, &t) in single.tokens.iter().zip(&starts) {
                let (class, probability) = path[t];
                assert_eq!(token.text, tokens[class as usize]);
                assert!((token.start - t as f64 * frame_seconds).abs() < 1e-9, "{token:?} {t}");
                assert!((token.confidence - probability).abs() < 1e-5, "{token:?} {probability}");
                assert!((token.log_prob - probability.ln()).abs() < 1e-5, "{token:?} {probability}");
            }
            // The alignment of the known text begins at the same frames.
            let starts: Vec<f64> = single.tokens.iter().map(|token| token.start).collect();
            let aligned_starts: Vec<f64> = aligned.tokens.iter().map(|token| token.start).collect();
            assert_eq!(starts.len(), aligned_starts.len());
            let mut pairs = starts.iter().zip(&aligned_starts);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-9), "{starts:?} {aligned_starts:?}");
            assert!(aligned.log_likelihood >= aligned.best_path && aligned.words.len() == starts.len());
            for token in &aligned.tokens {
                assert!(token.confidence > 0.3 && token.confidence <= 1.0, "{is_causal} {token:?}");
            }
        }
        // Beams return n-best lists.
        let beam = CtcBeamOptions { width: 6, nbest: 3, ..CtcBeamOptions::default() };
        let recognizer = trained.load().with_search(SearchConfig::Ctc(Some(beam))).unwrap();
        let evaluation = evaluate(&recognizer, &utterances).unwrap();
        assert_eq!(evaluation.overall.wer, 0.0);
        assert!(evaluation.transcripts.iter().all(|transcript| transcript.transcription.nbest.len() == 3));
    }
}

#[test]
fn streams_give_the_words_of_the_whole_recording() {
    let trained = trained_model(true);
    let recognizer = trained.load();
    assert!(recognizer.supports_streams());
    let samples: Vec<f32> =
        trained.utterances().iter().flat_map(|utterance| utterance.audio(RATE).unwrap().samples).collect();
    let transcription =
        recognizer.transcribe(&Audio { samples: samples.clone(), sample_rate: RATE }).unwrap();
    assert!(transcription.words.len() > 8, "{}", transcription.text);
    assert!(recognizer.stream(&StreamingOptions::default()).unwrap().is_immediate());
    for sizes in [&[1600][..], &[1, 7, 4000, 0, 333], &[samples.len()], &[80]] {
        let streamed = recognize_pieces(&recognizer, &samples, sizes, &StreamingOptions::default()).0;
        assert_eq!(streamed, transcription, "{sizes:?}");
    }
    // Overlapping windows of a model that is not causal.
    let recognizer = trained_model(false).load();
    let expected = recognizer.transcribe(&Audio { samples: samples.clone(), sample_rate: RATE }).unwrap();
    assert!(expected.words.len() > 8, "{}", expected.text);
    for (seconds, overlap) in [(8.0, 4.0), (3.0, 1.0), (1.5, 0.5)] {
        let chunks = samples.chunks(900).map(|chunk| Ok(chunk.to_vec()));
        let long = recognizer.transcribe_chunks(chunks, WindowConfig { seconds, overlap }).unwrap();
        assert_eq!(long.text, expected.text, "{seconds} {overlap}");
    }
}

#[test]
fn a_token_filter_removes_words_of_searches_and_streams() {
    let trained = trained_model(true);
    let filter = TokenFilter::default().forbid_tokens(["low".to_owned()]);
    let utterance = &trained.utterances()[3];
    assert_eq!(utterance.text, "low low high");
    let audio = utterance.audio(RATE).unwrap();
    let beam = SearchConfig::Ctc(Some(CtcBeamOptions::default()));
    for search in [SearchConfig::Ctc(None), beam] {
        let recognizer = trained.load().with_search(search).unwrap().with_silence(0.0).unwrap();
        let recognizer = recognizer.with_tokens(&filter).unwrap();
        let text = recognizer.transcribe(&audio).unwrap().text;
        assert!(text.ends_with("high") && !text.contains("low"), "{text}");
        // All tokens allowed: as without a filter.
        let recognizer = recognizer.with_tokens(&TokenFilter::default()).unwrap();
        assert_eq!(recognizer.transcribe(&audio).unwrap().text, utterance.text);
    }
    let recognizer = trained.load().with_silence(0.0).unwrap().with_tokens(&filter).unwrap();
    let transcription = recognizer.transcribe(&audio).unwrap();
    let streamed = recognize_pieces(&recognizer, &audio.samples, &[700], &StreamingOptions::default()).0;
    assert_eq!(streamed, transcription);
}

#[test]
fn losses_are_sums_over_all_labelings() {
    let config = parse(&recipe_text("")).unwrap().model_config();
    let model = Model::new(&config, 3).unwrap();
    let width = config.input.width();
    let values: Vec<f32> = (0..2 * 5 * width).map(|i| (i as f32 * 0.71).sin()).collect();
    let rows = Tensor::from_vec(values, (2, 5, width), &Device::Cpu).unwrap();
    let (lengths, labels) = ([5, 3], [vec![1, 1, 0], vec![2, 2]]);
    let sessions = LossSessions::new(&config).unwrap();
    let batch = LabeledRows { rows: &rows, lengths: &lengths, labels: &labels };
    let losses = model.losses(&sessions, batch, 2, 0, None).unwrap();
    assert!(losses.ctc.is_none() && losses.simple.is_none());
    let (encoded, lengths) = model.encoder().forward(&rows, &lengths, None).unwrap();
    let log_probs = model.ctc_log_probabilities(&encoded).unwrap().unwrap();
    let log_probs: Vec<Vec<Vec<f32>>> = log_probs.to_vec3().unwrap();
    let mut mean = 0.0;
    for (b, (&frames, labels)) in lengths.iter().zip(&labels).enumerate() {
        let values: Vec<f64> = log_probs[b][..frames].concat().into_iter().map(f64::from).collect();
        let sum = oracle::ctc::sum_over_labelings(&values, frames, 4, labels, 3).unwrap();
        assert!((losses.transducer[b] + sum.log_likelihood).abs() < 1e-5, "{:?}", losses.transducer);
        mean -= sum.log_likelihood / 2.0;
    }
    assert!((losses.mean.to_scalar::<f64>().unwrap() - mean).abs() < 1e-5);
}

#[test]
fn a_stopped_run_resumes_to_the_same_bits_and_has_only_encoder_and_head() {
    let toy = Toy::new();
    let changes = ctc_changes("");
    let recipe = toy.recipe(&changes.each_ref().map(|(old, new)| (*old, new.as_str())));
    let run = |folder: &str, epochs, start| {
        let stop = AtomicBool::new(false);
        train(&recipe, epochs, &toy.path(folder), start, &mut (), &stop).unwrap()
    };
    run("whole", None, StartMode::Fresh);
    /// Sets the flag from the third step on.
    struct Stop<'a>(&'a AtomicBool);
    impl training::Observer for Stop<'_> {
        fn on_step(&mut self, report: &training::StepReport) {
            self.0.store(report.step >= 3, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let half = train(&recipe, None, &toy.path("half"), StartMode::Fresh, &mut Stop(&stop), &stop).unwrap();
    assert!(half.stopped);
    run("half", None, StartMode::Resume);
    let [uninterrupted, half] =
        ["whole", "half"].map(|folder| std::fs::read(toy.path(folder).join("last.safetensors")).unwrap());
    assert!(uninterrupted == half);

    let checkpoint = Checkpoint::read(&toy.path("whole").join("last.safetensors")).unwrap();
    let head: Vec<_> = checkpoint.shapes.iter().filter(|(name, _)| !name.starts_with("encoder.")).collect();
    let expected = [("ctc.bias".to_owned(), vec![4]), ("ctc.weight".to_owned(), vec![4, 32])];
    assert_eq!(head, expected.each_ref().map(|(name, shape)| (name, shape)));
    // A run within a memory budget.
    let text =
        recipe_text("budget = \"1MiB\"").replace("max_frames = 200", "memory = \"1GiB\"\nmax_frames = 200");
    let recipe = toy.write("planned.toml", &text);
    train(&recipe, Some(1), &toy.path("planned"), StartMode::Fresh, &mut (), &AtomicBool::new(false))
        .unwrap();
    let text = recipe_text("budget = \"1KiB\"");
    let recipe = toy.write("small.toml", &text);
    let error =
        train(&recipe, Some(1), &toy.path("small"), StartMode::Fresh, &mut (), &AtomicBool::new(false));
    assert!(matches!(error, Err(Error::Model(model::Error::LossBudget { found: 1024, .. }))), "{error:?}");
}

#[test]
fn settings_that_no_ctc_model_has_are_errors() {
    let plain = recipe_text("");
    let recipe = parse(&plain).unwrap();
    assert!(recipe.loss.kind.is_ctc() && recipe.joint.is_none() && recipe.predictor.is_none());
    let config = ModelConfig::from_recipe(&plain, Path::new("ctc.toml")).unwrap();
    assert_eq!(config, recipe.model_config());
    // The recipe with another number of epochs is the same model.
    let toy = Toy::new();
    let (_, written) = Recipe::read(&toy.write("ctc.toml", &plain), Some(9)).unwrap();
    assert_eq!(parse(&written).unwrap().model_config(), config);

    let expect_error = |text: &str, key: &str, found: &str| {
        let error = parse(text).unwrap_err();
        let Error::Model(model::Error::RecipeValue { key: name, .. }) = &error else { panic!("{error}") };
        assert_eq!(name, key);
        assert!(error.to_string().contains(found), "{error}");
    };
    expect_error(
        &plain.replace("[optimizer]", &format!("{PREDICTOR}[optimizer]")),
        "predictor",
        "a predictor",
    );
    expect_error(&plain.replace("[optimizer]", &format!("{JOINT}[optimizer]")), "joint", "a joint network");
    expect_error(&RECIPE.replace(JOINT, ""), "joint", "found none");
    expect_error(&recipe_text("skip = 0.1"), "loss.skip", "none with loss.kind = \"ctc\", found 0.1");
    expect_error(&recipe_text("activation = \"relu\""), "loss.activation", "tanh");
    for (key, value) in [("topology", "\"modified\""), ("ctc_weight", "0.3"), ("ctc_weight_end", "0.2")] {
        let text = plain.replace("epochs = 3", &format!("epochs = 3\n{key} = {value}"));
        expect_error(&text, &format!("training.{key}"), value.trim_matches('"'));
    }
    let text = plain.replace("epochs = 3", "epochs = 3\nfastemit = -1.0");
    expect_error(&text, "training.fastemit", "-1");
    assert!(matches!(
        parse(&recipe_text("durations = [1]")),
        Err(Error::Model(model::Error::RecipeSyntax { .. }))
    ));
    let supported = "epochs = 3\nfastemit = 0.01\ndelay_penalty = 0.01\nlabel_smoothing = 0.1\nz_loss = 0.1\nprecision = \"bf16\"";
    parse(&plain.replace("epochs = 3", supported)).unwrap();
    parse(&recipe_text("clamp = 1.0")).unwrap();
}

#[test]
fn operations_of_transducers_are_errors_for_ctc_models() {
    let trained = trained_model(false);
    let (load, utterances) = (|| trained.load(), trained.utterances());
    let expect_error = |error: Option<recognizer::Error>, expected: &str| {
        let error = error.unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let ctc = "found a CTC model (loss.kind = \"ctc\")";
    expect_error(load().joint_rows(&utterances).err(), ctc);
    expect_error(load().model().decoder().err().map(Into::into), ctc);
    expect_error(load().with_search(SearchConfig::Greedy(GreedyOptions::default())).err(), ctc);
    expect_error(load().with_search(SearchConfig::Beam(BeamOptions::default())).err(), ctc);
    let with_ctc = SearchConfig::BeamWithCtc { beam: BeamOptions::default(), weight: 0.5 };
    expect_error(load().with_search(with_ctc).err(), ctc);
    let lattice = SearchConfig::Lattice(LatticeSearch::BestPath);
    expect_error(load().with_search(lattice).err(), "found a CTC model");
    let beam = SearchConfig::Ctc(Some(CtcBeamOptions::default()));
    let recognizer = load().with_search(beam).unwrap();
    assert!(!recognizer.supports_streams());
    expect_error(
        recognizer.stream(&StreamingOptions::default()).err(),
        "search: expected a greedy search, for streaming",
    );
    expect_error(
        load().model().config().topology().err().map(Into::into),
        "expected a transducer, found ctc",
    );
    assert!(load().model().lattice_plan([1, 1, 1]).unwrap().is_none());
    // The auxiliary head of a transducer does not stream.
    let toy = Toy::new();
    let folder = toy.path("other");
    train(&toy.recipe(&[]), Some(1), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let transducer = Recognizer::load(&folder.join("last.safetensors")).unwrap();
    let transducer = transducer.with_search(SearchConfig::Ctc(None)).unwrap();
    assert!(!transducer.supports_streams() && !transducer.model().is_ctc());
    expect_error(transducer.stream(&StreamingOptions::default()).err(), "with the joint network only");
}
