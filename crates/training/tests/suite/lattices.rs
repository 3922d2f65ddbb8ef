//! Recognition lattices from recipe to text.
use std::path::Path;
use std::sync::atomic::AtomicBool;

use decoding::Beam;
use model::config::{AlignmentKind, LatticeNormalization};
use model::{Checkpoint, Model};
use recognizer::{LatticeSearch, Recognizer, SearchConfig, StreamingOptions, evaluate};
use training::{Error, Recipe, Start, train};

use super::toy::{RECIPE, Toy};

const PREDICTOR: &str = "[predictor]\nkind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1\n";

/// What makes a recognition lattice of the toy recipe.
fn changes(loss: &str) -> [(&'static str, String); 2] {
    let loss = format!("ctc_weight = 0.3\n[loss]\nkind = \"gnat\"\nembedding = 8\n{loss}");
    [(PREDICTOR, String::new()), ("ctc_weight = 0.3", loss)]
}

fn text(loss: &str) -> String {
    changes(loss).iter().fold(RECIPE.to_owned(), |text, (old, new)| text.replace(old, new))
}

fn parse(text: &str) -> training::Result<Recipe> {
    Recipe::parse(text, Path::new("lattice.toml"))
}

#[test]
fn a_budget_that_no_lattice_can_keep_is_found_before_the_first_step() {
    let toy = Toy::new();
    let all = changes("context = 1\nbudget = \"1KiB\"\n");
    let recipe = toy.recipe(&all.each_ref().map(|(old, new)| (*old, new.as_str())));
    let folder = toy.path("run");
    let error = train(&recipe, Some(1), &folder, Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap_err();
    let Error::Model(model::Error::LossBudget { smallest, found, utterances }) = error else {
        panic!("{error:?}")
    };
    assert!(found == 1024 && smallest > found && utterances.len() == 1, "{smallest} {utterances:?}");
    assert!(!folder.exists());
}

/// Trains a lattice on the corpus many times over; both searches must have learnt it by heart.
fn learns(loss: &str) {
    let toy = Toy::new();
    let often = format!("train = {:?}", ["train.jsonl"; 40]);
    let more = [
        ("train = [\"train.jsonl\"]", often),
        ("perturb = { speed = 0.1 }", String::new()),
        ("max_utterances = 2", "max_utterances = 6".into()),
        ("max_frames = 200", "max_frames = 400".into()),
    ];
    let all: Vec<_> = changes(loss).into_iter().chain(more).collect();
    let all: Vec<_> = all.iter().map(|(old, new)| (*old, new.as_str())).collect();
    let (recipe, folder) = (toy.recipe(&all), toy.path("run"));
    let outcome = train(&recipe, Some(24), &folder, Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let test = outcome.test.unwrap();
    assert_eq!(test.overall.wer, 0.0, "{loss}: {:?}", test.transcripts);

    let load = || Recognizer::load(&folder.join("best.safetensors")).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let recogniser = load();
    assert!(matches!(recogniser.search(), SearchConfig::Lattice(LatticeSearch::BestPath)));
    assert_eq!(evaluate(&recogniser, &utterances).unwrap(), test);
    for (utterance, transcript) in utterances.iter().zip(&test.transcripts) {
        let audio = utterance.audio(8000).unwrap();
        let alone = recogniser.transcribe(&audio).unwrap();
        assert_eq!(alone.text, transcript.hypothesis);
        let times: Vec<f64> = alone.tokens.iter().map(|token| token.start).collect();
        assert!(times.is_sorted() && times.iter().all(|&time| time <= audio.seconds()), "{times:?}");
    }
    let sums = load().with_search(SearchConfig::Lattice(LatticeSearch::Sum { beam: 4 })).unwrap();
    assert_eq!(evaluate(&sums, &utterances).unwrap().overall.wer, 0.0, "{loss}");
    let ctc = load().with_search(SearchConfig::Ctc(None)).unwrap();
    assert!(evaluate(&ctc, &utterances).unwrap().overall.wer < 0.5, "{loss}");
}

#[test]
fn a_globally_normalised_lattice_learns() {
    learns("context = 1");
}

#[test]
fn several_labels_a_frame_after_two_of_them() {
    learns("context = 2\nalignment = { labels_per_frame = 2 }\nbudget = \"3MiB\"");
}

#[test]
fn locally_normalised_lattices_learn() {
    learns("context = 2\nnormalise = \"hat\"");
    learns("context = 2\nnormalise = \"log-softmax\"");
}

#[test]
fn a_run_that_was_stopped_goes_on_bit_for_bit_and_the_file_has_the_names_of_last() {
    let toy = Toy::new();
    let of = changes("context = 1");
    let recipe = toy.recipe(&of.iter().map(|(old, new)| (*old, new.as_str())).collect::<Vec<_>>());
    let run = |folder: &str, start, stop: &AtomicBool| {
        train(&recipe, None, &toy.path(folder), start, &mut (), stop).unwrap()
    };
    run("whole", Start::Fresh, &AtomicBool::new(false));
    struct StopAfter<'a>(u64, &'a AtomicBool);
    impl training::Observer for StopAfter<'_> {
        fn on_step(&mut self, report: &training::StepReport) {
            self.1.store(report.step >= self.0, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let half =
        train(&recipe, None, &toy.path("half"), Start::Fresh, &mut StopAfter(3, &stop), &stop).unwrap();
    assert!(half.stopped);
    run("half", Start::Resume, &AtomicBool::new(false));
    let [whole, half] =
        ["whole", "half"].map(|folder| std::fs::read(toy.path(folder).join("last.safetensors")).unwrap());
    assert!(whole == half);

    let checkpoint = Checkpoint::read(&toy.path("whole").join("last.safetensors")).unwrap();
    let lattice =
        checkpoint.shapes.iter().filter_map(|(name, shape)| Some((name.strip_prefix("lattice.")?, shape)));
    let lattice: Vec<_> = lattice.map(|(name, shape)| (name, shape.as_slice())).collect();
    // Three labels; both directions of 16 make encoder rows of 32.
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
fn recipes_say_what_a_lattice_is() {
    let recipe =
        parse(&text("context = 2\nalignment = { labels_per_frame = 3 }\nnormalise = \"hat\"")).unwrap();
    let config = recipe.loss.kind.gnat().unwrap().clone();
    assert_eq!((config.context, config.embedding), (2, 8));
    assert_eq!(
        (config.alignment, config.normalise),
        (AlignmentKind::LabelsPerFrame(3), LatticeNormalization::Hat)
    );
    let plain = parse(&text("context = 0")).unwrap();
    let plain = plain.loss.kind.gnat().unwrap();
    assert_eq!(
        (plain.alignment, plain.normalise),
        (AlignmentKind::FrameDependent, LatticeNormalization::Global)
    );

    // What is written with another number of epochs is the same lattice.
    let toy = Toy::new();
    let path = toy.write("lattice.toml", &text("context = 2\nalignment = { labels_per_frame = 3 }"));
    let (recipe, written) = Recipe::read(&path, Some(9)).unwrap();
    assert_eq!(parse(&written).unwrap().loss, recipe.loss);
    assert_eq!(parse(&written).unwrap().predictor, None);
}

#[test]
fn what_no_lattice_has_is_named() {
    let wrong = |text: &str, key: &str, found: &str| {
        let error = parse(text).unwrap_err();
        let Error::Model(model::Error::RecipeValue { key: at, .. }) = &error else { panic!("{error}") };
        assert_eq!(at, key);
        assert!(error.to_string().contains(found), "{error}");
    };
    let plain = text("context = 1");
    wrong(&plain.replace("[joint]", &format!("{PREDICTOR}[joint]")), "predictor", "a predictor");
    wrong(&RECIPE.replace(PREDICTOR, ""), "predictor", "none");
    wrong(&plain.replace("width = 16", "width = 16\ndropout = 0.1"), "joint.dropout", "0.1");
    wrong(&text("context = 101"), "loss.context", "101");
    wrong(&text("context = 1\nskip = 0.1"), "loss.skip", "0.1");
    wrong(&text("context = 1\nclamp = 0.1"), "loss.clamp", "0.1");
    wrong(&text("context = 1\nactivation = \"relu\""), "loss.activation", "tanh");
    wrong(&plain.replace("embedding = 8", "embedding = 0"), "loss.embedding", "0");
    let labels = "loss.alignment.labels_per_frame";
    wrong(&text("context = 1\nalignment = { labels_per_frame = 0 }"), labels, "0");
    for (key, value) in [
        ("topology", "\"modified\""),
        ("precision", "\"bf16\""),
        ("fastemit", "0.1"),
        ("delay_penalty", "0.1"),
        ("label_smoothing", "0.1"),
        ("z_loss", "0.1"),
    ] {
        let text = plain.replace("epochs = 3", &format!("epochs = 3\n{key} = {value}"));
        wrong(&text, &format!("training.{key}"), value.trim_matches('"'));
    }
    assert!(matches!(
        parse(&text("context = 1\ndurations = [1]")),
        Err(Error::Model(model::Error::RecipeSyntax { .. }))
    ));
    assert!(matches!(parse(&text("")), Err(Error::Model(model::Error::RecipeSyntax { .. }))));

    // How many states there are depends on the labels.
    let deep = parse(&text("context = 60")).unwrap();
    let error = Model::new(&deep.model(), 3).err().unwrap().to_string();
    assert!(error.starts_with("recipe key loss.context") && error.contains("6.4e28 of 3 labels"), "{error}");
    let wide = parse(&text("context = 3")).unwrap();
    let error = Model::new(&wide.model(), 1200).err().unwrap().to_string();
    assert!(error.contains("loss.context = 3") && error.contains("[1729441201, 8]"), "{error}");
}

#[test]
fn what_only_transducers_can_is_refused() {
    let toy = Toy::new();
    let of = changes("context = 1");
    let recipe = toy.recipe(&of.iter().map(|(old, new)| (*old, new.as_str())).collect::<Vec<_>>());
    train(&recipe, Some(1), &toy.path("run"), Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let load = || Recognizer::load(&toy.path("run").join("last.safetensors")).unwrap();
    let refused = |error: Option<recognizer::Error>, part: &str| {
        let error = error.unwrap().to_string();
        assert!(error.contains(part), "{error}");
    };
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let lattice = "found a recognition lattice";
    refused(load().align(&utterances).err(), lattice);
    refused(load().joint_rows(&utterances).err(), lattice);
    refused(load().model().decoder().err().map(Into::into), lattice);
    refused(load().with_search(SearchConfig::default()).err(), lattice);
    refused(load().stream(&StreamingOptions::default()).err(), "search");
    refused(
        load().with_search(SearchConfig::Lattice(LatticeSearch::Sum { beam: 0 })).err(),
        "at least 1 string",
    );
    assert!(load().decoder().is_none());

    let recipe = toy.write("transducer.toml", RECIPE);
    train(&recipe, Some(1), &toy.path("other"), Start::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let transducer = Recognizer::load(&toy.path("other").join("last.safetensors")).unwrap();
    refused(
        transducer.with_search(SearchConfig::Lattice(LatticeSearch::BestPath)).err(),
        "found a transducer",
    );
    let with_ctc = SearchConfig::BeamWithCtc { beam: Beam::default(), weight: 0.5 };
    refused(load().with_search(with_ctc).err(), lattice);
}
