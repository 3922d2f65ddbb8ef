//! Tests of runs that start from pretrained weights (`init.weights`).
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use model::Checkpoint;
use training::{Error, Observer, Result, StartMode, train};

use super::toy::Toy;

/// Collects notes and warnings.
#[derive(Debug, Default)]
struct Messages {
    notes: Vec<String>,
    warnings: Vec<String>,
}

impl Observer for Messages {
    fn on_note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    fn on_warning(&mut self, warning: &str) {
        self.warnings.push(warning.to_owned());
    }
}

fn run(recipe: &Path, folder: &Path, start: StartMode) -> Result<Messages> {
    let mut messages = Messages::default();
    train(recipe, None, folder, start, &mut messages, &AtomicBool::new(false))?;
    Ok(messages)
}

/// Reads the last checkpoint of a run.
fn read_last(folder: &Path) -> Checkpoint {
    Checkpoint::read(&folder.join("last.safetensors")).unwrap()
}

/// A learning rate that leaves the weights as they are.
const CONSTANT_WEIGHTS: (&str, &str) = ("learning_rate = 1e-2", "learning_rate = 1e-30");
const ONE_EPOCH: (&str, &str) = ("epochs = 3", "epochs = 1");

/// A recipe with this `[init]` table.
fn recipe_with_init(toy: &Toy, init: &str, changes: &[(&str, &str)]) -> std::path::PathBuf {
    let init = format!("[optimizer]\n{init}").replace("[optimizer]\n[init]", "[init]") + "\n[optimizer]";
    toy.recipe(&[&[("[optimizer]", init.as_str()), ONE_EPOCH, CONSTANT_WEIGHTS], changes].concat())
}

/// A toy corpus with a trained model in `first`.
fn toy_with_trained_model() -> (Toy, Checkpoint) {
    let toy = Toy::new();
    run(&toy.recipe(&[ONE_EPOCH]), &toy.path("first"), StartMode::Fresh).unwrap();
    let checkpoint = read_last(&toy.path("first"));
    (toy, checkpoint)
}

const INIT: &str = "[init]\nweights = \"first/last.safetensors\"";

#[test]
fn a_run_starts_from_the_averaged_weights_of_a_checkpoint_and_resumes_without_it() {
    let (toy, first) = toy_with_trained_model();
    let average = first.average.clone().unwrap();
    assert_ne!(average, first.weights);
    let (recipe, folder) = (recipe_with_init(&toy, INIT, &[]), toy.path("second"));
    let messages = run(&recipe, &folder, StartMode::Fresh).unwrap();
    let (count, note) = (first.weights.len(), &messages.notes[0]);
    assert!(
        note.ends_with(&format!("{count} of {count} parameters are initialized with its averaged weights")),
        "{note}"
    );
    assert!(
        messages.notes[1].starts_with("  read from the file: ctc.bias, ctc.weight, encoder."),
        "{:?}",
        messages.notes
    );
    assert_eq!((messages.notes.len(), messages.warnings.len()), (2, 0), "{:?}", messages.warnings);
    let second = read_last(&folder);
    // The moving average starts from them too.
    assert_eq!(second.weights, average);
    for (name, values) in second.average.as_ref().unwrap() {
        values
            .iter()
            .zip(&average[name])
            .for_each(|(a, b)| assert!((a - b).abs() <= 1e-6 * b.abs(), "{name}"));
    }
    assert_eq!(second.progress.epoch, 1);

    // A resumed run neither reads the file nor compares its path.
    std::fs::rename(toy.path("first"), toy.path("elsewhere")).unwrap();
    let moved = recipe_with_init(&toy, "[init]\nweights = \"no/such/file\"", &[]);
    assert!(run(&moved, &folder, StartMode::Resume).unwrap().notes.is_empty());
    assert_eq!(read_last(&folder).weights, average);
    // A new run reads the file before it writes anything.
    let error = run(&moved, &toy.path("third"), StartMode::Fresh).unwrap_err();
    assert!(
        matches!(&error, Error::Model(model::Error::Io { path, .. }) if path.ends_with("no/such/file")),
        "{error}"
    );
    assert!(!toy.path("third").exists());
}

#[test]
fn all_parameters_are_listed_and_shapes_must_match() {
    let (toy, first) = toy_with_trained_model();
    let expect_error = |init: &str, changes: &[(&str, &str)], parts: &[&str]| {
        let error =
            run(&recipe_with_init(&toy, init, changes), &toy.path("second"), StartMode::Fresh).unwrap_err();
        assert!(matches!(error, Error::Model(model::Error::Pretrained { .. })), "{error}");
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert!(!toy.path("second").exists());
    };
    // Shapes that differ, and names to skip that no parameter has.
    let wider = ("embedding = 8", "embedding = 9");
    let shape =
        ["predictor.embedding.weight of shape [4, 9]", "found [4, 8] (also predictor.layers.0.", "init.skip"];
    expect_error(INIT, &[wider], &shape);
    let skip = |names: &str| format!("{INIT}\nskip = [{names}]");
    expect_error(
        &skip("\"predictor.embedding\""),
        &[wider],
        &["predictor.layers.0.weight_ih_l0", "found [64, 8];"],
    );
    expect_error(&skip("\"joint.hea\""), &[], &["init.skip", "\"joint.hea\""]);
    expect_error(&skip("\"encoder\", \"predictor\", \"joint\", \"ctc\""), &[], &["at least one parameter"]);
    let none = run(
        &toy.recipe(&[("[optimizer]", "[init]\nskip = [\"ctc\"]\n[optimizer]")]),
        &toy.path("x"),
        StartMode::Fresh,
    );
    assert!(none.err().unwrap().to_string().contains("init.skip"));

    // A model with a longer encoder and without a CTC head.
    let changes = [
        wider,
        ("layers = 1\nhidden = 16\nbidirectional", "layers = 2\nhidden = 16\nbidirectional"),
        ("ctc_weight = 0.3", ""),
    ];
    let folder = toy.path("second");
    let recipe = recipe_with_init(
        &toy,
        &skip("\"predictor.embedding\", \"predictor.layers.0.weight_ih_l0\""),
        &changes,
    );
    let messages = run(&recipe, &folder, StartMode::Fresh).unwrap();
    let second = read_last(&folder);
    let lines: BTreeMap<&str, Vec<&str>> = messages.notes[1..]
        .iter()
        .map(|line| line.split_once(": ").unwrap())
        .map(|(kind, names)| (kind.trim(), names.split(", ").collect()))
        .collect();
    assert_eq!(
        lines["skipped (init.skip), initialized at random"],
        ["predictor.embedding.weight", "predictor.layers.0.weight_ih_l0"]
    );
    assert_eq!(lines["in the file only, not used"], ["ctc.bias", "ctc.weight"]);
    let missing = &lines["not in the file, initialized at random"];
    let listed: usize = lines.values().map(Vec::len).sum();
    assert_eq!(listed, second.weights.len() + 2);
    // Parameters that are not from the file are those of a run without it.
    let without_init = toy.recipe(&[&changes[..], &[ONE_EPOCH, CONSTANT_WEIGHTS]].concat());
    run(&without_init, &toy.path("random"), StartMode::Fresh).unwrap();
    let random = read_last(&toy.path("random"));
    let skipped = &lines["skipped (init.skip), initialized at random"];
    for (name, values) in &second.weights {
        let is_random = missing.contains(&&**name) || skipped.contains(&&**name);
        let expected = if is_random { &random.weights[name] } else { &first.average.as_ref().unwrap()[name] };
        assert!(values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-20), "{name}");
    }
}

#[test]
fn other_tokens_and_other_features_give_warnings() {
    let (toy, _) = toy_with_trained_model();
    let manifest = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    toy.write("train.jsonl", &manifest.replace("high", "alto"));
    let recipe = recipe_with_init(&toy, INIT, &[("mels = 12", "mels = 12\nlow_hz = 50.0")]);
    let warnings = run(&recipe, &toy.path("second"), StartMode::Fresh).unwrap().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let tokens = "another token list (3 tokens here, 3 there; labels that differ: 1, first label 0 is \"alto\" here and \"high\" there)";
    assert!(warnings[0].contains(tokens), "{}", warnings[0]);
    assert!(warnings[1].contains("features.low_hz = 0.0 where this has 50.0"), "{}", warnings[1]);
    // Fewer tokens change a shape.
    toy.write("train.jsonl", &manifest.replace("high", "low"));
    let error = run(&recipe_with_init(&toy, INIT, &[]), &toy.path("third"), StartMode::Fresh)
        .unwrap_err()
        .to_string();
    assert!(error.contains("ctc.bias of shape [3], found [4]"), "{error}");
}

/// Writes tensors as a plain safetensors file.
fn write_tensors(path: &Path, tensors: &[(&str, safetensors::Dtype, Vec<usize>, Vec<u8>)]) {
    let view = |(name, dtype, shape, bytes): &(&str, safetensors::Dtype, Vec<usize>, Vec<u8>)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        (name.to_string(), view.data().to_vec(), view.dtype(), view.shape().to_vec())
    };
    let all: Vec<_> = tensors.iter().map(view).collect();
    let views = all.iter().map(|(name, bytes, dtype, shape)| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn tensors_of_other_programs_are_assigned_by_name() {
    use safetensors::Dtype::{BF16, F32, F64, I64};
    let toy = Toy::new();
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let doubles = |values: &[f64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let path = toy.path("other.safetensors");
    // Two tensors of the model in other formats; integers and an unknown name are not used.
    let head = ("joint.head.bias", F64, vec![4], doubles(&[1.0, 2.0, 3.0, 4.5]));
    let tensors = [
        head.clone(),
        ("ctc.bias", BF16, vec![4], vec![0x80, 0x3f, 0, 0, 0, 0, 0, 0xc0]),
        ("joint.encoder.bias", I64, vec![16], vec![0; 128]),
        ("decoder.weight", F32, vec![1], bytes(&[1.0])),
    ];
    write_tensors(&path, &tensors);
    let init = "[init]\nkind = \"plain\"\nweights = \"other.safetensors\"";
    let recipe = recipe_with_init(&toy, init, &[]);
    let notes = run(&recipe, &toy.path("run"), StartMode::Fresh).unwrap().notes;
    assert!(
        notes[0].contains(": 2 of ") && notes[0].ends_with("parameters are initialized with its tensors"),
        "{notes:?}"
    );
    assert!(notes[3].ends_with("not used: decoder.weight, joint.encoder.bias (I64)"), "{notes:?}");
    let weights = read_last(&toy.path("run")).weights;
    assert_eq!(weights["joint.head.bias"], [1.0, 2.0, 3.0, 4.5]);
    let is_close = |(a, b): (&f32, f32)| (a - b).abs() < 1e-20;
    assert!(weights["ctc.bias"].iter().zip([1.0, 0.0, 0.0, -2.0]).all(is_close), "{:?}", weights["ctc.bias"]);

    // Invalid values, no parameter of the model, and damaged files.
    let expect_error = |expected: &str| {
        let error = run(&recipe, &toy.path("none"), StartMode::Fresh).unwrap_err().to_string();
        assert!(error.contains("other.safetensors") && error.contains(expected), "{error}");
    };
    write_tensors(&path, &[head, ("ctc.bias", F32, vec![4], bytes(&[0.0, f32::NAN, 0.0, 0.0]))]);
    expect_error("finite values in ctc.bias, found NaN at 1");
    write_tensors(&path, &[("decoder.weight", F32, vec![1], bytes(&[1.0]))]);
    expect_error("found names such as \"decoder.weight\"");
    let file_bytes = std::fs::read(&path).unwrap();
    for length in [0, 4, 8, 20, file_bytes.len() - 1] {
        std::fs::write(&path, &file_bytes[..length]).unwrap();
        expect_error("");
    }
    std::fs::write(&path, "\u{feff}[weights]").unwrap();
    expect_error("safetensors file");
}

#[test]
fn a_run_does_not_overwrite_the_weights_that_it_starts_from() {
    let (toy, _) = toy_with_trained_model();
    for name in ["last", "best"] {
        let recipe = recipe_with_init(&toy, &format!("[init]\nweights = \"first/{name}.safetensors\""), &[]);
        let error = run(&recipe, &toy.path("first"), StartMode::Force).unwrap_err();
        assert!(matches!(error, Error::OutputIsInput { .. }), "{error}");
    }
    let with_epochs = [ONE_EPOCH, CONSTANT_WEIGHTS, ("ctc_weight = 0.3", "ctc_weight = 0.3\nkeep = 1")];
    run(&toy.recipe(&with_epochs), &toy.path("kept"), StartMode::Fresh).unwrap();
    let recipe = recipe_with_init(&toy, "[init]\nweights = \"kept/epoch-1.safetensors\"", &[]);
    let error = run(&recipe, &toy.path("kept"), StartMode::Force).unwrap_err();
    assert!(matches!(error, Error::OutputIsInput { .. }), "{error}");
    assert!(toy.path("kept/epoch-1.safetensors").exists());
}
