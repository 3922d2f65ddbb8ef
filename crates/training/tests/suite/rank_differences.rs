//! Tests that differences between ranks are errors in all ranks.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use distributed::{Communicator, ProcessGroup, ThreadCommunicator, TransferFormat};
use training::recipe::RecipeOverrides;
use training::{Error, StartMode, train_with};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/digits");

/// The arguments of one rank.
#[derive(Clone)]
struct Arguments {
    recipe: PathBuf,
    run: PathBuf,
    start: StartMode,
    transfer: TransferFormat,
    epochs: u64,
}

/// A recipe for eight utterances of training data; `change` edits the lines of the set `set`.
fn recipe(folder: &Path, name: &str, set: &str, change: impl Fn(&mut Vec<String>)) -> PathBuf {
    let digits = Path::new(DIGITS).canonicalize().unwrap();
    let folder = folder.join(name);
    fs::create_dir_all(&folder).unwrap();
    for (part, count) in [("train", 8), ("dev", 2), ("test", 2)] {
        let text = fs::read_to_string(digits.join(format!("{part}.jsonl"))).unwrap();
        let audio = format!("\"file\": \"{}/", digits.display());
        let lines = text.lines().take(count).map(|line| line.replace("\"file\": \"", &audio));
        let mut lines: Vec<String> = lines.collect();
        if part == set {
            change(&mut lines);
        }
        fs::write(folder.join(format!("{part}.jsonl")), lines.join("\n")).unwrap();
    }
    let text = fs::read_to_string(digits.join("../../recipes/digits.toml")).unwrap();
    let path = folder.join("recipe.toml");
    fs::write(&path, text.replace("../data/digits/", "")).unwrap();
    path
}

/// The results of two ranks, of which the second has other arguments.
fn train(first: &Arguments, second: &Arguments) -> Vec<training::Result<training::RunOutcome>> {
    ThreadCommunicator::run(2, |communicator| {
        let rank = communicator.rank();
        let Arguments { recipe, run, start, transfer, epochs } = [first, second][rank];
        let mut group = ProcessGroup::new(communicator, *transfer);
        let overrides = RecipeOverrides { epochs: Some(*epochs), ..RecipeOverrides::default() };
        let stop = AtomicBool::new(false);
        train_with(recipe, overrides, run, *start, &mut group, &mut (), &stop)
    })
}

fn expect_difference(first: &Arguments, second: &Arguments, parts: &[&str]) {
    for outcome in train(first, second) {
        let error = outcome.unwrap_err();
        let Error::Rank { rank: 1, message } = &error else { panic!("{error}") };
        assert!(message.contains("as in rank 0, found"), "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    assert!(!first.run.join("metrics.csv").exists());
}

#[test]
fn differences_of_data_arguments_and_recipes_are_errors_in_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let same = recipe(folder, "same", "none", |_| {});
    let run = folder.join("run");
    let base =
        Arguments { recipe: same, run, start: StartMode::Fresh, transfer: TransferFormat::F32, epochs: 1 };
    let with = |name: &str, set: &str, change: &dyn Fn(&mut Vec<String>)| Arguments {
        recipe: recipe(folder, name, set, change),
        ..base.clone()
    };
    let fewer = with("fewer", "train", &|lines| drop(lines.pop()));
    expect_difference(&base, &fewer, &["data.train", "expected 8 utterances", "found 7"]);
    expect_difference(&fewer, &base, &["data.train", "expected 7 utterances", "found 8"]);
    let order = with("order", "train", &|lines| lines.swap(2, 3));
    expect_difference(&base, &order, &["data.train", "position 3"]);
    let text = with("text", "train", &|lines| {
        lines[4] = lines[4].replace("\"text\": \"", "\"text\": \"two ");
    });
    expect_difference(&base, &text, &["data.train", "position 5"]);
    for set in ["dev", "test"] {
        let fewer = with(set, set, &|lines| drop(lines.pop()));
        expect_difference(&base, &fewer, &[&format!("data.{set}"), "expected 2", "found 1"]);
    }
    let missing = with("missing", "test", &|lines| lines[1] = lines[1].replace("audio/", "none/"));
    let allowed = |arguments: &Arguments| {
        let text = fs::read_to_string(&arguments.recipe).unwrap();
        fs::write(&arguments.recipe, text.replace("[data]", "[data]\nmax_bad = 0.5")).unwrap();
    };
    [&base, &missing].into_iter().for_each(allowed);
    // The fingerprint contains the names of files, without their folders.
    expect_difference(
        &base,
        &missing,
        &["utterances left out: expected none", "data.test: digits-test-0001"],
    );

    expect_difference(&base, &Arguments { start: StartMode::Resume, ..base.clone() }, &["start", "--resume"]);
    expect_difference(&base, &Arguments { start: StartMode::Force, ..base.clone() }, &["start", "--force"]);
    let elsewhere = Arguments { run: folder.join("elsewhere"), ..base.clone() };
    expect_difference(&base, &elsewhere, &["--run", "elsewhere"]);
    let bf16 = Arguments { transfer: TransferFormat::Bf16, ..base.clone() };
    expect_difference(&base, &bf16, &["--transfer: expected f32", "bf16"]);
    let longer = Arguments { epochs: 2, ..base.clone() };
    expect_difference(&base, &longer, &["training.epochs = 1", "training.epochs = 2"]);
    assert!(!base.run.exists() && !elsewhere.run.exists());

    // Without a difference the two ranks train.
    for outcome in train(&base, &base) {
        outcome.unwrap();
    }
    assert!(base.run.join("metrics.csv").exists());
}

#[test]
fn ranks_leave_out_bad_recordings_of_their_shares() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let train_lines = |lines: &mut Vec<String>| lines[3] = lines[3].replace("audio/", "none/");
    for (name, keys) in [("memory", "max_bad = 0.5"), ("stream", "max_bad = 0.5\nstream = true")] {
        let recipe = recipe(folder, name, "train", train_lines);
        let text = fs::read_to_string(&recipe).unwrap();
        fs::write(&recipe, text.replace("[data]", &format!("[data]\n{keys}"))).unwrap();
        let run = folder.join(name).join("run");
        let arguments =
            Arguments { recipe, run, start: StartMode::Fresh, transfer: TransferFormat::F32, epochs: 1 };
        for outcome in train(&arguments, &arguments) {
            outcome.unwrap();
        }
        let text = fs::read_to_string(arguments.run.join("bad_items.json")).unwrap();
        assert!(text.contains("digits-train-0003"), "{text}");
    }
}
