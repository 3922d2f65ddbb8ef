//! Tests that memory of streaming recognition does not grow with time.
use std::path::Path;
use std::sync::Arc;

use panda::decoding::{BeamOptions, ClassScores, Fusion, GreedyOptions};
use panda::lattice::{AlignmentLattice, BestPathStream, FullNGram, RecognitionLattice, TableWeightFn};
use panda::model::{Checkpoint, Model, Progress};
use panda::recognizer::{EndpointConfig, Recognizer, SearchConfig, StreamingOptions, WindowConfig};
use panda::speech::{Tokenizer, TokenizerKind};
use panda::training::Recipe;

use crate::counting_allocator::{exclusive, live_bytes};

/// Samples per chunk: 10 ms, one frame.
const CHUNK_SAMPLES: usize = 80;
/// Chunks before the first and before the second measurement.
const FIRST_CHUNKS: usize = 1000;
const ALL_CHUNKS: usize = 10_000;
/// Allowed growth in bytes.
const MAX_GROWTH: usize = 4096;
/// Allowed growth in bytes of a beam: its open labels and unfinished words.
const MAX_BEAM_GROWTH: usize = 200_000;

/// An untrained model with a large bias for one class.
fn recognizer(kind: &str, preferred: Option<&str>, bidirectional: bool) -> Recognizer {
    let normalization = if bidirectional { "utterance" } else { "running" };
    let text = format!(
        r#"
        data = {{ train = ["none.jsonl"] }}
        features = {{ sample_rate = 8000, mels = 8, normalize = "{normalization}" }}
        tokens = {{ kind = "{kind}" }}
        encoder = {{ stack = 1, stride = 1, layers = 1, hidden = 8, bidirectional = {bidirectional} }}
        predictor = {{ kind = "stateless", embedding = 3, context = 1 }}
        joint = {{ width = 7 }}
        optimizer = {{ learning_rate = 1e-3 }}
        batch = {{ max_frames = 100, max_utterances = 4 }}
        training = {{ epochs = 1 }}
        "#
    );
    let recipe = Recipe::parse(&text, Path::new("test.toml")).unwrap();
    let kind = if kind == "words" { TokenizerKind::Words } else { TokenizerKind::Characters };
    let tokenizer = Tokenizer::train(kind, &["ab b a"]).unwrap();
    let model = Model::new(&recipe.model_config(), tokenizer.size()).unwrap();
    let mut weights = model.parameters().values().unwrap();
    let class = preferred
        .map_or(tokenizer.size(), |token| tokenizer.tokens().iter().position(|name| name == token).unwrap());
    let shapes = model.parameters().shapes();
    let is_bias = |name: &&String| name.ends_with("bias") && shapes[*name] == [model.classes()];
    let bias = weights.keys().find(is_bias).unwrap().clone();
    weights.get_mut(&bias).unwrap()[class] = 20.0;
    let checkpoint = Checkpoint {
        recipe: text,
        tokenizer: tokenizer.to_json().unwrap(),
        progress: Progress::default(),
        shapes,
        weights,
        average: None,
        optimizer_state: Default::default(),
        data: None,
        has_checksums: true,
        imported: None,
        adapter_base: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    checkpoint.write(&path).unwrap();
    Recognizer::load(&path).unwrap()
}

/// Live bytes after 1,000 and after 10,000 chunks, and the number of labels.
///
/// Run it on one thread: of several threads, two may first need a buffer at the same time in any
/// chunk.
fn measure_live_bytes(recognizer: &Recognizer, options: &StreamingOptions) -> ([usize; 2], usize) {
    let mut stream = recognizer.stream(options).unwrap();
    let mut chunk = vec![0.0; CHUNK_SAMPLES];
    let (mut bytes, mut labels) = ([0; 2], 0);
    for n in 0..ALL_CHUNKS {
        for (i, sample) in chunk.iter_mut().enumerate() {
            *sample = 0.1 * ((n * CHUNK_SAMPLES + i) as f32 * 0.3).sin();
        }
        let update = stream.push(&chunk).unwrap();
        labels += update.final_words.tokens.len();
        drop(update);
        if n + 1 == FIRST_CHUNKS {
            bytes[0] = live_bytes();
        }
    }
    bytes[1] = live_bytes();
    (bytes, labels)
}

/// Checks the growth of live bytes; returns the number of labels.
fn check_growth(name: &str, recognizer: &Recognizer, options: &StreamingOptions) -> usize {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let ([before, after], labels) = pool.install(|| measure_live_bytes(recognizer, options));
    let is_beam = matches!(recognizer.search(), SearchConfig::Beam(_));
    let tolerance = if is_beam { MAX_BEAM_GROWTH } else { MAX_GROWTH };
    assert!(after <= before + tolerance, "{name}: {before} bytes, then {after}; {labels} labels");
    labels
}

#[test]
fn memory_does_not_grow_with_the_number_of_chunks() {
    let _guard = exclusive();
    let endpoint =
        StreamingOptions { endpoint: Some(EndpointConfig::default()), ..StreamingOptions::default() };
    let latest = StreamingOptions { latest: Some(1.0), ..StreamingOptions::default() };
    let fusion = |classes: usize| {
        let bonus: Vec<f32> = (0..classes).map(|class| class as f32 * 0.1).collect();
        vec![Fusion { scorer: Arc::new(ClassScores::new(bonus).unwrap()), weight: 0.5 }]
    };
    for (kind, preferred) in
        [("words", None), ("words", Some("a")), ("characters", Some("a")), ("characters", Some(" "))]
    {
        let name = format!("{kind} {preferred:?}");
        let load = || recognizer(kind, preferred, false);
        let classes = load().model().classes();
        for silence in [0.0, 0.2] {
            let greedy = load().with_silence(silence).unwrap();
            let labels =
                check_growth(&format!("greedy {name} {silence}"), &greedy, &StreamingOptions::default());
            assert_eq!(
                labels > ALL_CHUNKS / 2,
                preferred.is_some_and(|token| token != " ") || silence == 0.0 && preferred.is_some(),
                "{name} {silence}: {labels}"
            );
            check_growth(&format!("greedy with endpoints {name} {silence}"), &greedy, &endpoint);
            let fused =
                SearchConfig::Greedy(GreedyOptions { fusion: fusion(classes), ..GreedyOptions::default() });
            let fused = load().with_search(fused).unwrap().with_silence(silence).unwrap();
            check_growth(&format!("fused {name} {silence}"), &fused, &StreamingOptions::default());
        }
        let beam = SearchConfig::Beam(BeamOptions { width: 3, ..BeamOptions::default() });
        let beam = load().with_search(beam).unwrap();
        for options in [&StreamingOptions::default(), &latest, &endpoint] {
            check_growth(&format!("beam {name}"), &beam, options);
        }
    }
    let window = WindowConfig { seconds: 2.0, overlap: 0.5 };
    let windows = StreamingOptions { window, ..StreamingOptions::default() };
    // With several threads, buffers are allocated when both directions of a layer first run at
    // once.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| check_growth("windows", &recognizer("words", Some("a"), true), &windows));
}

#[test]
fn a_best_path_stream_frees_what_is_final() {
    let _guard = exclusive();
    let (context, table) = (
        FullNGram::new(2, 1).unwrap(),
        TableWeightFn::new(&[0.3, 1.0, 0.1, -0.2, 0.9, 0.4, 0.0, 0.2, 0.7], &[1, 3, 3]),
    );
    let table = table.unwrap();
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    let mut stream = BestPathStream::new(&lattice, 1.0).unwrap();
    let (mut bytes, mut labels) = ([0; 2], 0);
    for n in 0..ALL_CHUNKS {
        labels += stream.push(&[0.0]).unwrap().len();
        bytes[usize::from(n >= FIRST_CHUNKS)] = live_bytes();
    }
    assert!(labels > ALL_CHUNKS / 2, "{labels}");
    assert!(bytes[1] <= bytes[0] + MAX_GROWTH, "{bytes:?}");
}
