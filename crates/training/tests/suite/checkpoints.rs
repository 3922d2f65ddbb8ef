//! Checkpoint files, good and bad.
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use model::Checkpoint;
use recognizer::Recognizer;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use training::{Error, Observer, StartMode, train};

use super::toy::{Toy, leftovers};

/// A checkpoint of one epoch.
fn good() -> (Toy, PathBuf) {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    train(&recipe, None, &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    (toy, folder.join("last.safetensors"))
}

/// Both ways of reading must refuse the file, naming it, what was expected and what was found.
fn refused(path: &Path, expected: &str, found: &str) {
    let error = Recognizer::load(path).err().expect("a bad file").to_string();
    let start = format!("checkpoint {}: expected ", path.display());
    assert!(error.starts_with(&start), "{error}");
    assert!(error.contains(expected) && error.contains(found), "{error}");
}

/// The file with other metadata.
fn with_metadata(bytes: &[u8], change: impl Fn(&str) -> String) -> Vec<u8> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let header = change(&metadata.metadata().as_ref().unwrap()["panda"]);
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    let views = tensors.iter().map(|(name, view)| (name.to_owned(), view));
    safetensors::serialize(views, Some(HashMap::from([("panda".to_owned(), header)]))).unwrap()
}

#[test]
fn what_is_written_is_read_bit_for_bit() {
    let (toy, path) = good();
    let checkpoint = Checkpoint::read(&path).unwrap();
    let again = toy.path("again.safetensors");
    checkpoint.write(&again).unwrap();
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
    assert_eq!((checkpoint.progress.epoch, checkpoint.progress.batch), (1, 0));
    assert!(checkpoint.average.is_some());
}

/// A checkpoint of an epoch with this `[loss]`, and the shapes in it that a plain one does not have.
fn with_loss(loss: &str) -> (Toy, PathBuf, Vec<(String, Vec<usize>)>) {
    let toy = Toy::new();
    let loss = format!("ctc_weight = 0.3\n[loss]\n{loss}");
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1"), ("ctc_weight = 0.3", &loss)]);
    let folder = toy.path("run");
    train(&recipe, None, &folder, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    let path = folder.join("last.safetensors");
    let (_plain_toy, plain) = good();
    let plain = Checkpoint::read(&plain).unwrap();
    let own = Checkpoint::read(&path).unwrap().shapes;
    let own = own.into_iter().filter(|(name, shape)| plain.shapes.get(name) != Some(shape)).collect();
    (toy, path, own)
}

#[test]
fn the_parameters_of_every_kind_of_loss_come_back() {
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
        let (toy, path, own) = with_loss(loss);
        assert_eq!(own, shapes(names), "{loss}");
        let checkpoint = Checkpoint::read(&path).unwrap();
        let again = toy.path("again.safetensors");
        checkpoint.write(&again).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
        let model = Recognizer::load(&again).unwrap();
        let values = model.model().parameters().values().unwrap();
        assert_eq!(Some(values), checkpoint.average, "{loss}");

        if let Some((name, _)) = own.first() {
            let mut other = checkpoint;
            other.recipe = other.recipe.split("[loss]").next().unwrap().to_owned();
            other.write(&again).unwrap();
            refused(
                &again,
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
fn truncated_files_are_refused_wherever_they_end() {
    let (toy, path) = good();
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 4, 8, 100, bytes.len() / 2, bytes.len() - 1] {
        let cut = toy.path("cut.safetensors");
        std::fs::write(&cut, &bytes[..length]).unwrap();
        refused(&cut, "a whole safetensors file", "");
    }
}

#[test]
fn foreign_files_are_refused() {
    let (toy, path) = good();
    let bytes = std::fs::read(&path).unwrap();
    let foreign = toy.write("foreign.safetensors", "This is no checkpoint, but a letter to a friend.");
    refused(&foreign, "a whole safetensors file", "");

    let numbers = [0u8; 8];
    let view = || TensorView::new(Dtype::F32, vec![2], &numbers).unwrap();
    let write = |bytes: Vec<u8>| std::fs::write(&foreign, bytes).unwrap();
    write(safetensors::serialize([("weight/w", view())], None).unwrap());
    refused(&foreign, "metadata with the key panda", "none: a foreign file");

    write(with_metadata(&bytes, |_| "no JSON".into()));
    refused(&foreign, "metadata in JSON", "");
    write(with_metadata(&bytes, |header| header.replace("panda checkpoint", "another format")));
    refused(&foreign, "format \"panda checkpoint\", version 3", "another format");
    write(with_metadata(&bytes, |header| header.replace("\"version\":3", "\"version\":4")));
    refused(&foreign, "version 3", "version 4");
    // Parameters had other names and layouts then.
    write(with_metadata(&bytes, |header| header.replace("\"version\":3", "\"version\":1")));
    refused(&foreign, "version 3", "version 1, whose parameters have other names: train it again");
    write(with_metadata(&bytes, |header| header.replace("\"step\"", "\"stop\"")));
    refused(&foreign, "metadata with recipe, tokenizer and progress", "stop");
    let other_tokenizer = |fields: &mut serde_json::Value| fields["tokenizer"] = "{}".into();
    write(with_metadata(&bytes, |header| changed(header, other_tokenizer)));
    refused(&foreign, "the metadata with the checksum", "damaged");
    write(with_metadata(&bytes, |header| changed(&unsummed(header), other_tokenizer)));
    refused(&foreign, "a tokenizer", "");
}

fn changed(header: &str, change: impl Fn(&mut serde_json::Value)) -> String {
    let mut fields: serde_json::Value = serde_json::from_str(header).unwrap();
    change(&mut fields);
    fields.to_string()
}

/// The metadata as version 2 had it.
fn unsummed(header: &str) -> String {
    changed(header, |fields| {
        fields["version"] = 2.into();
        fields.as_object_mut().unwrap().retain(|key, _| !["checksums", "data"].contains(&key.as_str()));
    })
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (toy, path) = good();
    let bytes = std::fs::read(&path).unwrap();
    let damaged = toy.path("damaged.safetensors");
    // An odd step through the whole file: all places of a byte, the header and every tensor.
    let bits = 8 * bytes.len();
    let step = (bits / 997) | 1;
    for bit in (0..bits).step_by(step) {
        let mut damage = bytes.clone();
        damage[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&damaged, damage).unwrap();
        assert!(Checkpoint::read(&damaged).is_err(), "bit {bit} of {bits}");
    }
    let mut swapped = Checkpoint::read(&path).unwrap();
    assert!(swapped.has_checksums);
    swapped.weights.values_mut().next().unwrap()[0] += 1.0;
    swapped.write(&damaged).unwrap();
    assert!(Checkpoint::read(&damaged).unwrap().has_checksums);
}

#[test]
fn files_without_checksums_are_read_and_named() {
    let (toy, path) = good();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, with_metadata(&bytes, unsummed)).unwrap();
    let old = Checkpoint::read(&path).unwrap();
    assert!(!old.has_checksums && old.data.is_none());
    assert!(Recognizer::load(&path).unwrap().warning().unwrap().contains("no checksums"));
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let mut heard = Heard::default();
    train(&recipe, None, &toy.path("run"), StartMode::Resume, &mut heard, &AtomicBool::new(false)).unwrap();
    assert!(heard.0.iter().any(|warning| warning.contains("no checksums")), "{:?}", heard.0);
}

/// Collects warnings.
#[derive(Default)]
struct Heard(Vec<String>);

impl Observer for Heard {
    fn on_warning(&mut self, warning: &str) {
        self.0.push(warning.to_owned());
    }
}

#[test]
fn tensors_that_do_not_belong_are_named() {
    let (toy, path) = good();
    let bytes = std::fs::read(&path).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = metadata.metadata().clone();
    let bad = toy.path("bad.safetensors");
    let numbers = [0u8; 16];
    let with = |name: &str, dtype, shape: &[usize]| {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let bytes = &numbers[..shape.iter().product::<usize>() * if dtype == Dtype::F64 { 8 } else { 4 }];
        let extra = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let old = tensors.iter().filter(|(known, _)| *known != name);
        let views = old.map(|(name, view)| (name.to_owned(), view)).chain([(name.to_owned(), extra)]);
        std::fs::write(&bad, safetensors::serialize(views, metadata.clone()).unwrap()).unwrap();
    };
    with("something", Dtype::F32, &[2]);
    refused(&bad, "tensors named weight/, average/, first/ or second/", "something");
    with("weight/joint.encoder.bias", Dtype::F64, &[2]);
    refused(&bad, "weight/joint.encoder.bias of F32", "F64");
    with("weight/joint.encoder.bias", Dtype::F32, &[4]);
    refused(&bad, "weight/joint.encoder.bias of shape [16]", "[4]");
    with("weight/extra", Dtype::F32, &[4]);
    refused(&bad, "the recipe's parameters only", "weight/extra");
}

#[test]
fn values_that_do_not_fit_the_recipe_are_named() {
    let (toy, path) = good();
    let bad = toy.path("bad.safetensors");
    let with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = Checkpoint::read(&path).unwrap();
        change(&mut checkpoint);
        checkpoint.write(&bad).unwrap();
    };
    with(&|c| c.weights.get_mut("joint.head.weight").unwrap()[5] = f32::NAN);
    refused(&bad, "finite values in weight/joint.head.weight", "NaN at 5");
    with(&|c| {
        c.optimizer_state.get_mut("second").unwrap().get_mut("joint.head.weight").unwrap()[0] = f32::INFINITY
    });
    refused(&bad, "finite values in second/joint.head.weight", "inf at 0");
    with(&|c| c.shapes.get_mut("joint.head.weight").unwrap().reverse());
    refused(&bad, "joint.head.weight of shape [4, 16]", "[16, 4]");
    with(&|c| {
        c.optimizer_state.get_mut("first").unwrap().remove("joint.head.weight");
    });
    refused(&bad, "first/joint.head.weight of shape [4, 16]", "none");
    with(&|c| c.weights.clear());
    refused(&bad, "tensors named weight/", "none");
    with(&|c| c.recipe = c.recipe.replace("width = 16", "width = 17"));
    refused(&bad, "shape", "16");
    with(&|c| c.recipe = c.recipe.replace("width = 16", "width = 0"));
    let error = Recognizer::load(&bad).err().unwrap();
    let recognizer::Error::Model(model::Error::Inside { source, .. }) = &error else { panic!("{error}") };
    assert!(matches!(**source, model::Error::RecipeValue { .. }));
    assert!(
        error.to_string().starts_with(&format!("{}: recipe key joint.width: ", bad.display())),
        "{error}"
    );
}

#[test]
fn a_run_goes_on_from_its_own_checkpoint_only() {
    let (toy, path) = good();
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
        error.contains("expected 1, as the checkpoint has, found 2") && error.contains("--epochs 2"),
        "{error}"
    );
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let mut beyond = Checkpoint::read(&path).unwrap();
    beyond.progress.epoch = 0;
    beyond.progress.batch = 1000;
    beyond.write(&path).unwrap();
    let error = resume(&recipe, None).unwrap_err().to_string();
    assert!(error.contains("found 1000"), "{error}");
    let mut bare = Checkpoint::read(&path).unwrap();
    bare.average = None;
    bare.write(&path).unwrap();
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
