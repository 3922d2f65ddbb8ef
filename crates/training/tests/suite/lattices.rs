//! Tests of recognition lattices (`loss.kind = "gnat"`), from recipe to text.
use std::path::Path;
use std::sync::atomic::AtomicBool;

use decoding::BeamOptions;
use model::config::{AlignmentKind, LatticeNormalization};
use model::{Checkpoint, Model};
use recognizer::{LatticeSearch, Recognizer, SearchConfig, StreamingOptions, evaluate};
use training::{Error, Recipe, StartMode, train};

use super::toy::{RECIPE, Toy};

const PREDICTOR: &str = "[predictor]\nkind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1\n";

/// The changes of the toy recipe for a recognition lattice.
fn lattice_changes(loss: &str) -> [(&'static str, String); 2] {
    let loss = format!("ctc_weight = 0.3\n[loss]\nkind = \"gnat\"\nembedding = 8\n{loss}");
    [(PREDICTOR, String::new()), ("ctc_weight = 0.3", loss)]
}

/// The toy recipe for a recognition lattice.
fn recipe_text(loss: &str) -> String {
    lattice_changes(loss).iter().fold(RECIPE.to_owned(), |text, (old, new)| text.replace(old, new))
}

fn parse(text: &str) -> training::Result<Recipe> {
    Recipe::parse(text, Path::new("lattice.toml"))
}

#[test]
fn a_budget_that_is_too_small_is_an_error_before_the_first_step() {
    let toy = Toy::new();
    let changes = lattice_changes("context = 1\nbudget = \"1KiB\"\n");
    let recipe = toy.recipe(&changes.each_ref().map(|(old, new)| (*old, new.as_str())));
    let folder = toy.path("run");
    let error =
        train(&recipe, Some(1), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap_err();
    let Error::Model(model::Error::LossBudget { smallest, found, utterances }) = error else {
        panic!("{error:?}")
    };
    assert!(found == 1024 && smallest > found && utterances.len() == 1, "{smallest} {utterances:?}");
    assert!(!folder.exists());
}

/// Trains a lattice until both searches recognize the training data without error.
fn expect_learning(loss: &str) {
    let toy = Toy::new();
    let repeated = format!("train = {:?}", ["train.jsonl"; 40]);
    let learning = [
        ("train = [\"train.jsonl\"]", repeated),
        ("perturb = { speed = 0.1 }", String::new()),
        ("max_utterances = 2", "max_utterances = 6".into()),
        ("max_frames = 200", "max_frames = 400".into()),
    ];
    let changes: Vec<_> = lattice_changes(loss).into_iter().chain(learning).collect();
    let changes: Vec<_> = changes.iter().map(|(old, new)| (*old, new.as_str())).collect();
    let (recipe, folder) = (toy.recipe(&changes), toy.path("run"));
    let outcome =
        train(&recipe, Some(24), &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let test = outcome.test.unwrap();
    assert_eq!(test.overall.wer, 0.0, "{loss}: {:?}", test.transcripts);

    let load = || Recognizer::load(&folder.join("best.safetensors")).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let recognizer = load();
    assert!(matches!(recognizer.search(), SearchConfig::Lattice(LatticeSearch::BestPath)));
    assert_eq!(evaluate(&recognizer, &utterances).unwrap(), test);
    for (utterance, transcript) in utterances.iter().zip(&test.transcripts) {
        let audio = utterance.audio(8000).unwrap();
        let single = recognizer.transcribe(&audio).unwrap();
        assert_eq!(single.text, transcript.hypothesis);
        let times: Vec<f64> = single.tokens.iter().map(|token| token.start).collect();
        assert!(times.is_sorted() && times.iter().all(|&time| time <= audio.seconds()), "{times:?}");
    }
    let sums = load().with_search(SearchConfig::Lattice(LatticeSearch::Sum { beam: 4 })).unwrap();
    assert_eq!(evaluate(&sums, &utterances).unwrap().overall.wer, 0.0, "{loss}");
    let ctc = load().with_search(SearchConfig::Ctc(None)).unwrap();
    assert!(evaluate(&ctc, &utterances).unwrap().overall.wer < 0.5, "{loss}");
}

#[test]
fn a_globally_normalized_lattice_learns() {
    expect_learning("context = 1");
}

#[test]
fn a_lattice_with_several_labels_a_frame_and_a_context_of_two_learns() {
    expect_learning("context = 2\nalignment = { labels_per_frame = 2 }\nbudget = \"3MiB\"");
}

#[test]
fn locally_normalized_lattices_learn() {
    expect_learning("context = 2\nnormalize = \"hat\"");
    expect_learning("context = 2\nnormalize = \"log-softmax\"");
}

#[test]
fn a_stopped_lattice_run_resumes_to_the_same_bits_and_has_parameter_names_of_last() {
    let toy = Toy::new();
    let changes = lattice_changes("context = 1");
    let recipe = toy.recipe(&changes.iter().map(|(old, new)| (*old, new.as_str())).collect::<Vec<_>>());
    let run = |folder: &str, start, stop: &AtomicBool| {
        train(&recipe, None, &toy.path(folder), start, &mut (), stop).unwrap()
    };
    run("whole", StartMode::Fresh, &AtomicBool::new(false));
    /// Sets the flag from a step on.
    struct StopAt<'a> {
        step: u64,
        stop: &'a AtomicBool,
    }
    impl training::Observer for StopAt<'_> {
        fn on_step(&mut self, report: &training::StepReport) {
            self.stop.store(report.step >= self.step, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let mut observer = StopAt { step: 3, stop: &stop };
    let half = train(&recipe, None, &toy.path("half"), StartMode::Fresh, &mut observer, &stop).unwrap();
    assert!(half.stopped);
    run("half", StartMode::Resume, &AtomicBool::new(false));
    let [uninterrupted, half] =
        ["whole", "half"].map(|folder| std::fs::read(toy.path(folder).join("last.safetensors")).unwrap());
    assert!(uninterrupted == half);

    let checkpoint = Checkpoint::read(&toy.path("whole").join("last.safetensors")).unwrap();
    let lattice =
        checkpoint.shapes.iter().filter_map(|(name, shape)| Some((name.strip_prefix("lattice.")?, shape)));
    let lattice: Vec<_> = lattice.map(|(name, shape)| (name, shape.as_slice())).collect();
    // Names of the program LAST. Three labels; both directions of 16 make encoder rows of 32.
    let expected: [(&str, &[usize]); 8] = [
        ("weight_fn.Dense_0.bias", &[1]),
        ("weight_fn.Dense_0.kernel", &[16, 1]),
        ("weight_fn.Dense_1.bias", &[3]),
        ("weight_fn.Dense_1.kernel", &[16, 3]),
        ("weight_fn.joint_bias", &[16]),
        ("weight_fn.project_context_embeddings.kernel", &[8, 16]),
        ("weight_fn.project_frame.kernel", &[32, 16]),
        ("weight_fn_cacher.context_embeddings", &[4, 8]),
    ];
    assert_eq!(lattice, expected);
    assert!(
        checkpoint.shapes.keys().all(|name| !name.starts_with("predictor") && !name.starts_with("joint"))
    );
}

#[test]
fn recipes_configure_lattices() {
    let recipe =
        parse(&recipe_text("context = 2\nalignment = { labels_per_frame = 3 }\nnormalize = \"hat\""))
            .unwrap();
    let config = recipe.loss.kind.gnat().unwrap().clone();
    assert_eq!((config.context, config.embedding), (2, 8));
    assert_eq!(
        (config.alignment, config.normalize),
        (AlignmentKind::LabelsPerFrame(3), LatticeNormalization::Hat)
    );
    let plain = parse(&recipe_text("context = 0")).unwrap();
    let plain = plain.loss.kind.gnat().unwrap();
    assert_eq!(
        (plain.alignment, plain.normalize),
        (AlignmentKind::FrameDependent, LatticeNormalization::Global)
    );

    // The recipe with another number of epochs has the same lattice.
    let toy = Toy::new();
    let path = toy.write("lattice.toml", &recipe_text("context = 2\nalignment = { labels_per_frame = 3 }"));
    let (recipe, written) = Recipe::read(&path, Some(9)).unwrap();
    assert_eq!(parse(&written).unwrap().loss, recipe.loss);
    assert_eq!(parse(&written).unwrap().predictor, None);
}

#[test]
fn settings_that_no_lattice_has_are_errors() {
    let expect_error = |text: &str, key: &str, found: &str| {
        let error = parse(text).unwrap_err();
        let Error::Model(model::Error::RecipeValue { key: name, .. }) = &error else { panic!("{error}") };
        assert_eq!(name, key);
        assert!(error.to_string().contains(found), "{error}");
    };
    let plain = recipe_text("context = 1");
    expect_error(&plain.replace("[joint]", &format!("{PREDICTOR}[joint]")), "predictor", "a predictor");
    expect_error(&RECIPE.replace(PREDICTOR, ""), "predictor", "none");
    expect_error(&plain.replace("width = 16", "width = 16\ndropout = 0.1"), "joint.dropout", "0.1");
    expect_error(&recipe_text("context = 101"), "loss.context", "101");
    expect_error(&recipe_text("context = 1\nskip = 0.1"), "loss.skip", "0.1");
    expect_error(&recipe_text("context = 1\nclamp = 0.1"), "loss.clamp", "0.1");
    expect_error(&recipe_text("context = 1\nactivation = \"relu\""), "loss.activation", "tanh");
    expect_error(&plain.replace("embedding = 8", "embedding = 0"), "loss.embedding", "0");
    let labels = "loss.alignment.labels_per_frame";
    expect_error(&recipe_text("context = 1\nalignment = { labels_per_frame = 0 }"), labels, "0");
    for (key, value) in [
        ("topology", "\"modified\""),
        ("precision", "\"bf16\""),
        ("fastemit", "0.1"),
        ("delay_penalty", "0.1"),
        ("label_smoothing", "0.1"),
        ("z_loss", "0.1"),
    ] {
        let text = plain.replace("epochs = 3", &format!("epochs = 3\n{key} = {value}"));
        expect_error(&text, &format!("training.{key}"), value.trim_matches('"'));
    }
    assert!(matches!(
        parse(&recipe_text("context = 1\ndurations = [1]")),
        Err(Error::Model(model::Error::RecipeSyntax { .. }))
    ));
    assert!(matches!(parse(&recipe_text("")), Err(Error::Model(model::Error::RecipeSyntax { .. }))));

    // The number of states depends on that of the labels.
    let deep = parse(&recipe_text("context = 60")).unwrap();
    let error = Model::new(&deep.model_config(), 3).err().unwrap().to_string();
    assert!(
        error.starts_with("recipe key loss.context") && error.contains("6.4e28 states with 3 labels"),
        "{error}"
    );
    let wide = parse(&recipe_text("context = 3")).unwrap();
    let error = Model::new(&wide.model_config(), 1200).err().unwrap().to_string();
    assert!(error.contains("loss.context = 3") && error.contains("[1729441201, 8]"), "{error}");
}

#[test]
fn operations_of_transducers_are_errors_for_lattices() {
    let toy = Toy::new();
    let changes = lattice_changes("context = 1");
    let recipe = toy.recipe(&changes.iter().map(|(old, new)| (*old, new.as_str())).collect::<Vec<_>>());
    train(&recipe, Some(1), &toy.path("run"), StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let load = || Recognizer::load(&toy.path("run").join("last.safetensors")).unwrap();
    let expect_error = |error: Option<recognizer::Error>, expected: &str| {
        let error = error.unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let lattice = "found a recognition lattice";
    expect_error(load().align(&utterances).err(), lattice);
    expect_error(load().joint_rows(&utterances).err(), lattice);
    expect_error(load().model().decoder().err().map(Into::into), lattice);
    expect_error(load().with_search(SearchConfig::default()).err(), lattice);
    expect_error(load().stream(&StreamingOptions::default()).err(), "search");
    expect_error(
        load().with_search(SearchConfig::Lattice(LatticeSearch::Sum { beam: 0 })).err(),
        "at least 1 string",
    );
    assert!(load().decoder().is_none());

    let recipe = toy.write("transducer.toml", RECIPE);
    train(&recipe, Some(1), &toy.path("other"), StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let transducer = Recognizer::load(&toy.path("other").join("last.safetensors")).unwrap();
    expect_error(
        transducer.with_search(SearchConfig::Lattice(LatticeSearch::BestPath)).err(),
        "found a transducer",
    );
    let with_ctc = SearchConfig::BeamWithCtc { beam: BeamOptions::default(), weight: 0.5 };
    expect_error(load().with_search(with_ctc).err(), lattice);
}
