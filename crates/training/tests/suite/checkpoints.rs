//! Tests of checkpoint files: valid ones are read bit for bit, damaged ones are errors.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use model::{Checkpoint, Model};
use recognizer::Recognizer;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use training::{Error, Observer, Recipe, StartMode, train};

use super::toy::{Toy, leftovers};

/// A checkpoint after one epoch.
fn valid_checkpoint() -> (Toy, PathBuf) {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    train(&recipe, None, &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    (toy, folder.join("last.safetensors"))
}

/// Asserts that reading the file is an error with both texts.
fn expect_error(path: &Path, expected: &str, found: &str) {
    let error = Recognizer::load(path).err().expect("a bad file").to_string();
    let start = format!("checkpoint {}: expected ", path.display());
    assert!(error.starts_with(&start), "{error}");
    assert!(error.contains(expected) && error.contains(found), "{error}");
}

/// The file with changed metadata.
fn with_metadata(bytes: &[u8], change: impl Fn(&str) -> String) -> Vec<u8> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let header = change(&metadata.metadata().as_ref().unwrap()["panda"]);
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    let views = tensors.iter().map(|(name, view)| (name.to_owned(), view));
    safetensors::serialize(views, Some(HashMap::from([("panda".to_owned(), header)]))).unwrap()
}

#[test]
fn a_checkpoint_is_read_with_the_bits_that_were_written() {
    let (toy, path) = valid_checkpoint();
    let checkpoint = Checkpoint::read(&path).unwrap();
    let copy = toy.path("copy.safetensors");
    checkpoint.write(&copy).unwrap();
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&copy).unwrap());
    assert_eq!((checkpoint.progress.epoch, checkpoint.progress.batch), (1, 0));
    assert!(checkpoint.average.is_some());
}

/// A checkpoint with this `[loss]`, and the shapes that it adds.
fn checkpoint_with_loss(loss: &str) -> (Toy, PathBuf, Vec<(String, Vec<usize>)>) {
    let toy = Toy::new();
    let loss = format!("ctc_weight = 0.3\n[loss]\n{loss}");
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1"), ("ctc_weight = 0.3", &loss)]);
    let folder = toy.path("run");
    train(&recipe, None, &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let path = folder.join("last.safetensors");
    let (_default_toy, default) = valid_checkpoint();
    let default = Checkpoint::read(&default).unwrap();
    let shapes = Checkpoint::read(&path).unwrap().shapes;
    let added = shapes.into_iter().filter(|(name, shape)| default.shapes.get(name) != Some(shape)).collect();
    (toy, path, added)
}

#[test]
fn parameters_of_every_loss_are_written_and_read() {
    type Shapes<'a> = &'a [(&'a str, &'a [usize])];
    // Three labels and the blank; both directions of 16 make encoder rows of 32.
    let shapes = |names: Shapes| -> Vec<(String, Vec<usize>)> {
        names.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
    };
    let cases: [(&str, Shapes); 4] = [
        (
            "kind = \"tdt\"\ndurations = [0, 1, 2]",
            &[("joint.durations.bias", &[3]), ("joint.durations.weight", &[3, 16])],
        ),
        (
            "kind = \"multi-blank\"\ndurations = [2, 3]",
            &[("joint.head.bias", &[6]), ("joint.head.weight", &[6, 16])],
        ),
        (
            "kind = \"pruned\"",
            &[
                ("simple.encoder.bias", &[4]),
                ("simple.encoder.weight", &[4, 32]),
                ("simple.predictor.bias", &[4]),
                ("simple.predictor.weight", &[4, 16]),
            ],
        ),
        ("kind = \"rnnt\"\nfactored_blank = true", &[]),
    ];
    for (loss, names) in cases {
        let (toy, path, added) = checkpoint_with_loss(loss);
        assert_eq!(added, shapes(names), "{loss}");
        let checkpoint = Checkpoint::read(&path).unwrap();
        let copy = toy.path("copy.safetensors");
        checkpoint.write(&copy).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&copy).unwrap());
        let recognizer = Recognizer::load(&copy).unwrap();
        // Weights of the encoder are packed: they are compared by their checksums.
        let model = recognizer.model();
        let complete = Model::new(model.config(), recognizer.tokenizer().size()).unwrap();
        complete.parameters().set(checkpoint.average.as_ref().unwrap()).unwrap();
        assert_eq!(model.weight_checksums().unwrap(), complete.weight_checksums().unwrap(), "{loss}");

        if let Some((name, _)) = added.first() {
            // The recipe of a plain transducer does not match the parameters.
            let mut mismatched = checkpoint;
            mismatched.recipe = mismatched.recipe.split("[loss]").next().unwrap().to_owned();
            mismatched.write(&copy).unwrap();
            expect_error(
                &copy,
                if name == "joint.head.bias" { "joint.head.bias of shape [4]" } else { "only" },
                "",
            );
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = Recognizer::load(Path::new("no/such.safetensors")).err().unwrap();
    assert!(matches!(error, recognizer::Error::Model(model::Error::Io { .. })));
    assert!(error.to_string().starts_with("no/such.safetensors: could not read the checkpoint"), "{error}");
}

#[test]
fn truncated_files_are_errors_at_every_length() {
    let (toy, path) = valid_checkpoint();
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 4, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        let truncated = toy.path("truncated.safetensors");
        std::fs::write(&truncated, &bytes[..length]).unwrap();
        expect_error(&truncated, "a whole safetensors file", "");
    }
}

#[test]
fn other_files_are_errors() {
    let (toy, path) = valid_checkpoint();
    let bytes = std::fs::read(&path).unwrap();
    let other_file = toy.write("other.safetensors", "This is no checkpoint, but a letter to a friend.");
    expect_error(&other_file, "a whole safetensors file", "");

    let numbers = [0u8; 8];
    let view = || TensorView::new(Dtype::F32, vec![2], &numbers).unwrap();
    let write = |bytes: Vec<u8>| std::fs::write(&other_file, bytes).unwrap();
    write(safetensors::serialize([("weight/w", view())], None).unwrap());
    expect_error(&other_file, "metadata with the key panda", "none: a file of another program");

    write(with_metadata(&bytes, |_| "no JSON".into()));
    expect_error(&other_file, "metadata in JSON", "");
    write(with_metadata(&bytes, |header| header.replace("panda checkpoint", "another format")));
    expect_error(&other_file, "format \"panda checkpoint\", version 3", "another format");
    write(with_metadata(&bytes, |header| header.replace("\"version\":3", "\"version\":4")));
    expect_error(&other_file, "version 3", "version 4");
    // Parameters of version 1 have other names and layouts.
    write(with_metadata(&bytes, |header| header.replace("\"version\":3", "\"version\":1")));
    expect_error(
        &other_file,
        "version 3",
        "version 1, whose parameters have other names; train the model again",
    );
    write(with_metadata(&bytes, |header| header.replace("\"step\"", "\"stop\"")));
    expect_error(&other_file, "metadata with recipe, tokenizer and progress", "stop");
    let other_tokenizer = |fields: &mut serde_json::Value| fields["tokenizer"] = "{}".into();
    write(with_metadata(&bytes, |header| with_fields(header, other_tokenizer)));
    expect_error(&other_file, "the metadata with the checksum", "damaged");
    write(with_metadata(&bytes, |header| with_fields(&without_checksums(header), other_tokenizer)));
    expect_error(&other_file, "a tokenizer", "");
}

/// The metadata with changed fields.
fn with_fields(header: &str, change: impl Fn(&mut serde_json::Value)) -> String {
    let mut fields: serde_json::Value = serde_json::from_str(header).unwrap();
    change(&mut fields);
    fields.to_string()
}

/// The metadata in version 2 of the format, which has no checksums.
fn without_checksums(header: &str) -> String {
    with_fields(header, |fields| {
        fields["version"] = 2.into();
        fields.as_object_mut().unwrap().retain(|key, _| !["checksums", "data"].contains(&key.as_str()));
    })
}

#[test]
fn a_flipped_bit_anywhere_is_an_error() {
    let (toy, path) = valid_checkpoint();
    let bytes = std::fs::read(&path).unwrap();
    let damaged = toy.path("damaged.safetensors");
    // About a thousand bits. As the step is odd, they have all positions in a byte, and are in the
    // header and in every tensor.
    let num_bits = 8 * bytes.len();
    let step = (num_bits / 997) | 1;
    for bit in (0..num_bits).step_by(step) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&damaged, flipped).unwrap();
        assert!(Checkpoint::read(&damaged).is_err(), "bit {bit} of {num_bits}");
    }
    let mut changed = Checkpoint::read(&path).unwrap();
    assert!(changed.has_checksums);
    changed.weights.values_mut().next().unwrap()[0] += 1.0;
    changed.write(&damaged).unwrap();
    assert!(Checkpoint::read(&damaged).unwrap().has_checksums);
}

#[test]
fn files_without_checksums_are_read_with_a_warning() {
    let (toy, path) = valid_checkpoint();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, with_metadata(&bytes, without_checksums)).unwrap();
    let old = Checkpoint::read(&path).unwrap();
    assert!(!old.has_checksums && old.data.is_none());
    assert!(Recognizer::load(&path).unwrap().warning().unwrap().contains("no checksums"));
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let mut collector = WarningCollector::default();
    train(&recipe, None, &toy.path("run"), StartMode::Resume, &mut collector, &AtomicBool::new(false))
        .unwrap();
    let warnings = collector.0;
    assert!(warnings.iter().any(|warning| warning.contains("no checksums")), "{warnings:?}");
}

/// Old and new names in the lines of a recipe.
const RENAMED: [(&str, &str); 4] = [
    ("[optimiser]", "[optimizer]"),
    ("normalise = \"none\"", "normalize = \"none\""),
    ("framing = \"centred\"", "framing = \"centered\""),
    ("\nshare = 0.5", "\nprobability = 0.5"),
];

#[test]
fn checkpoints_and_run_folders_with_old_names_of_recipe_keys_are_read() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[
        ("[data]", "[data]\nstream = true"),
        ("mels = 12", "mels = 12\nnormalize = \"none\"\nframing = \"centered\""),
        ("[tokens]", "[augment.speed]\nprobability = 0.5\n[tokens]"),
        ("epochs = 3", "epochs = 1\nkeep = 1"),
    ]);
    let folder = toy.path("run");
    train(&recipe, None, &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let path = folder.join("last.safetensors");
    let expected = Checkpoint::read(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let to_old_names = |text: &str| {
        RENAMED.iter().fold(text.to_owned(), |text, (old, new)| {
            assert!(text.contains(new), "{new}: {text}");
            text.replace(new, old)
        })
    };
    let with_old_names = |fields: &mut serde_json::Value| {
        let text = to_old_names(fields["recipe"].as_str().unwrap());
        assert!(Recipe::parse(&text, &path).is_err());
        fields["recipe"] = text.into();
    };
    let bytes = with_metadata(&bytes, |header| with_fields(&without_checksums(header), with_old_names));
    std::fs::write(&path, bytes).unwrap();
    let old = Checkpoint::read(&path).unwrap();
    let recipes = [&old, &expected].map(|checkpoint| Recipe::from_checkpoint(checkpoint, &path).unwrap());
    assert_eq!(recipes[0], recipes[1]);
    assert_eq!(old.model_config(&path).unwrap(), expected.model_config(&path).unwrap());
    assert!(Recognizer::load(&path).is_ok());

    let path = folder.join("recipe.toml");
    let text = to_old_names(&std::fs::read_to_string(&path).unwrap());
    assert_eq!(Recipe::parse_of_run(&text, &path).unwrap(), recipes[1]);
    std::fs::write(&path, text).unwrap();
    assert_eq!(training::select_checkpoints(&folder, 1, true).unwrap(), [folder.join("epoch-1.safetensors")]);
    train(&recipe, None, &folder, StartMode::Resume, &mut (), &AtomicBool::new(false)).unwrap();
}

/// Collects warnings.
#[derive(Default)]
struct WarningCollector(Vec<String>);

impl Observer for WarningCollector {
    fn on_warning(&mut self, warning: &str) {
        self.0.push(warning.to_owned());
    }
}

#[test]
fn unknown_tensors_are_errors() {
    let (toy, path) = valid_checkpoint();
    let bytes = std::fs::read(&path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = metadata.metadata().clone();
    let bad = toy.path("bad.safetensors");
    let numbers = [0u8; 16];
    let write_with = |name: &str, dtype, shape: &[usize]| {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let bytes = &numbers[..shape.iter().product::<usize>() * if dtype == Dtype::F64 { 8 } else { 4 }];
        let extra = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let old = tensors.iter().filter(|(known, _)| *known != name);
        let views = old.map(|(name, view)| (name.to_owned(), view)).chain([(name.to_owned(), extra)]);
        std::fs::write(&bad, safetensors::serialize(views, metadata.clone()).unwrap()).unwrap();
    };
    write_with("something", Dtype::F32, &[2]);
    expect_error(&bad, "tensors named weight/, average/, first/ or second/", "something");
    write_with("weight/joint.encoder.bias", Dtype::F64, &[2]);
    expect_error(&bad, "weight/joint.encoder.bias of F32", "F64");
    write_with("weight/joint.encoder.bias", Dtype::F32, &[4]);
    expect_error(&bad, "weight/joint.encoder.bias of shape [16]", "[4]");
    write_with("weight/extra", Dtype::F32, &[4]);
    expect_error(&bad, "the recipe's parameters only", "weight/extra");
}

#[test]
fn values_that_do_not_match_the_recipe_are_errors() {
    let (toy, path) = valid_checkpoint();
    let bad = toy.path("bad.safetensors");
    let write_with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = Checkpoint::read(&path).unwrap();
        change(&mut checkpoint);
        checkpoint.write(&bad).unwrap();
    };
    write_with(&|c| c.weights.get_mut("joint.head.weight").unwrap()[5] = f32::NAN);
    expect_error(&bad, "finite values in weight/joint.head.weight", "NaN at 5");
    write_with(&|c| {
        c.optimizer_state.get_mut("second").unwrap().get_mut("joint.head.weight").unwrap()[0] = f32::INFINITY
    });
    expect_error(&bad, "finite values in second/joint.head.weight", "inf at 0");
    write_with(&|c| c.shapes.get_mut("joint.head.weight").unwrap().reverse());
    expect_error(&bad, "joint.head.weight of shape [4, 16]", "[16, 4]");
    write_with(&|c| {
        c.optimizer_state.get_mut("first").unwrap().remove("joint.head.weight");
    });
    expect_error(&bad, "first/joint.head.weight of shape [4, 16]", "none");
    write_with(&|c| c.weights.clear());
    expect_error(&bad, "tensors named weight/", "none");
    write_with(&|c| c.recipe = c.recipe.replace("width = 16", "width = 17"));
    expect_error(&bad, "shape", "16");
    write_with(&|c| c.recipe = c.recipe.replace("width = 16", "width = 0"));
    let error = Recognizer::load(&bad).err().unwrap();
    let recognizer::Error::Model(model::Error::Inside { source, .. }) = &error else { panic!("{error}") };
    assert!(matches!(**source, model::Error::RecipeValue { .. }));
    assert!(
        error.to_string().starts_with(&format!("{}: recipe key joint.width: ", bad.display())),
        "{error}"
    );
}

#[test]
fn a_run_resumes_from_its_own_checkpoint_only() {
    let (toy, path) = valid_checkpoint();
    let folder = path.parent().unwrap();
    let resume = |recipe: &Path, epochs| {
        train(recipe, epochs, folder, StartMode::Resume, &mut (), &AtomicBool::new(false))
            .map(|outcome| outcome.steps)
    };
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let steps = resume(&recipe, None).unwrap();
    let before = std::fs::read(&path).unwrap();

    let error = resume(&toy.recipe(&[("epochs = 3", "epochs = 2")]), None).unwrap_err().to_string();
    assert!(
        error.contains("expected 1, as in the checkpoint, found 2") && error.contains("--epochs 2"),
        "{error}"
    );
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let mut beyond = Checkpoint::read(&path).unwrap();
    beyond.progress.epoch = 0;
    beyond.progress.batch = 1000;
    beyond.write(&path).unwrap();
    let error = resume(&recipe, None).unwrap_err().to_string();
    assert!(error.contains("found 1000"), "{error}");
    let mut without_average = Checkpoint::read(&path).unwrap();
    without_average.average = None;
    without_average.write(&path).unwrap();
    assert!(resume(&recipe, None).unwrap_err().to_string().contains("an average exactly if"));
    std::fs::write(&path, &before[..before.len() - 1]).unwrap();
    let error = resume(&recipe, None).unwrap_err();
    assert!(matches!(error, Error::Resume { best: true, .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("copy best.safetensors") && error.contains("--force"), "{error}");

    std::fs::write(&path, &before).unwrap();
    assert_eq!(resume(&recipe, None).unwrap(), steps);
    assert_eq!(leftovers(folder), [] as [PathBuf; 0]);
}
