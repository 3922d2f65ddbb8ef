//! Tests of runs that adapt a model: frozen parameters, other tokens, recipes from a checkpoint.
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use distributed::ProcessGroup;
use model::Checkpoint;
use training::recipe::RecipeOverrides;
use training::{Result, StartMode, train_with};

use super::toy::{RECIPE, Toy};

/// Trains a number of epochs, optionally from a checkpoint.
pub(crate) fn run(
    recipe: &Path,
    from: Option<PathBuf>,
    folder: &Path,
    epochs: u64,
    start: StartMode,
) -> Result<()> {
    let overrides = RecipeOverrides { from, epochs: Some(epochs), ..RecipeOverrides::default() };
    let stop = AtomicBool::new(false);
    train_with(recipe, overrides, folder, start, &mut ProcessGroup::single(), &mut (), &stop).map(drop)
}

pub(crate) fn read_last(folder: &Path) -> Checkpoint {
    Checkpoint::read(&folder.join("last.safetensors")).unwrap()
}

/// A toy corpus with a trained model in `first`.
fn toy_with_trained_model() -> (Toy, Checkpoint) {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("ema = 0.9", "ema = 0.0")]);
    run(&recipe, None, &toy.path("first"), 1, StartMode::Fresh).unwrap();
    let checkpoint = read_last(&toy.path("first"));
    (toy, checkpoint)
}

fn with_init(init: &str) -> String {
    format!("[init]\nweights = \"first/last.safetensors\"\n{init}\n[optimizer]")
}

#[test]
fn frozen_parameters_keep_their_bits_and_resumed_runs_equal_others() {
    let (toy, first) = toy_with_trained_model();
    let init = with_init("frozen = [\"encoder\", \"predictor.layers.0..1\"]");
    let recipe = toy.recipe(&[("[optimizer]", &init), ("ema = 0.9", "ema = 0.5\ndecay = \"hold\"")]);
    let is_frozen = |name: &str| name.starts_with("encoder.") || name.starts_with("predictor.layers.0.");
    run(&recipe, None, &toy.path("unbroken"), 2, StartMode::Fresh).unwrap();
    let unbroken = read_last(&toy.path("unbroken"));
    for (name, values) in &unbroken.weights {
        assert_eq!(*values == first.weights[name], is_frozen(name), "{name}");
        assert_eq!(unbroken.optimizer_state["first"].contains_key(name), !is_frozen(name), "{name}");
    }
    run(&recipe, None, &toy.path("parts"), 1, StartMode::Fresh).unwrap();
    run(&recipe, None, &toy.path("parts"), 2, StartMode::Resume).unwrap();
    let parts = read_last(&toy.path("parts"));
    assert!(parts.weights == unbroken.weights && parts.optimizer_state == unbroken.optimizer_state);
    recognizer::Recognizer::load(&toy.path("unbroken/last.safetensors")).unwrap();
}

#[test]
fn bad_names_of_frozen_parameters_are_errors() {
    let (toy, _) = toy_with_trained_model();
    for (frozen, expected) in [
        ("[\"encodr\"]", "init.frozen: expected names of this model's parameters or modules"),
        ("[\"encoder\", \"predictor\", \"joint\", \"ctc\"]", "at least one parameter that is not frozen"),
    ] {
        let init = with_init(&format!("frozen = {frozen}"));
        let recipe = toy.recipe(&[("[optimizer]", &init)]);
        let error = run(&recipe, None, &toy.path("second"), 1, StartMode::Fresh).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let init = "[init]\nfrozen = [\"encoder\"]\n[optimizer]";
    let recipe = toy.recipe(&[("[optimizer]", init)]);
    let error = run(&recipe, None, &toy.path("second"), 1, StartMode::Fresh).unwrap_err().to_string();
    assert!(error.contains("init.frozen: expected none without init.weights"), "{error}");
}

#[test]
fn rows_of_equal_tokens_are_read_by_token() {
    let (toy, first) = toy_with_trained_model();
    // The word "low" is missing, so that the tokens are "high", "middle" instead of "high", "low",
    // "middle".
    let manifest = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    let lines: Vec<&str> = manifest.lines().filter(|line| !line.contains("low")).collect();
    toy.write("train.jsonl", &(lines.join("\n") + "\n"));
    let init = with_init("match_tokens = true");
    let changes = [("[optimizer]", init.as_str()), ("learning_rate = 1e-2", "learning_rate = 1e-30")];
    run(&toy.recipe(&changes), None, &toy.path("second"), 1, StartMode::Fresh).unwrap();
    let second = read_last(&toy.path("second"));
    // Rows of high, middle and the blank in the first model.
    for (name, width) in [("joint.head.weight", 16), ("predictor.embedding.weight", 8), ("ctc.bias", 1)] {
        let (rows, first_rows) = (&second.weights[name], &first.weights[name]);
        assert_eq!(rows.len(), 3 * width, "{name}");
        for (row, first_row) in [0, 2, 3].into_iter().enumerate() {
            assert_eq!(rows[row * width..][..width], first_rows[first_row * width..][..width], "{name}");
        }
    }
}

#[test]
fn a_recipe_takes_missing_sections_from_the_checkpoint() {
    let (toy, first) = toy_with_trained_model();
    let section = |name: &str| {
        let start = RECIPE.find(&format!("[{name}]")).unwrap();
        let end = RECIPE[start + 1..].find("\n[").map_or(RECIPE.len(), |end| start + 1 + end);
        &RECIPE[start..=end]
    };
    let sections = ["data", "optimizer", "batch"].map(section).concat();
    let recipe = toy.write("short.toml", &format!("seed = 1\n{sections}[training]\nepochs = 1\n"));
    let model = toy.path("first/last.safetensors");
    run(&recipe, Some(model.clone()), &toy.path("second"), 1, StartMode::Fresh).unwrap();
    let second = read_last(&toy.path("second"));
    assert_eq!((&second.tokenizer, &second.shapes), (&first.tokenizer, &first.shapes));
    assert!(second.recipe.contains("keep_tokens = true"), "{}", second.recipe);
    // The same command resumes the run.
    run(&recipe, Some(model.clone()), &toy.path("second"), 2, StartMode::Resume).unwrap();
    // Other tokens have their own head.
    let text = format!("seed = 1\n{sections}[tokens]\nkind = \"characters\"\n[training]\nepochs = 1\n");
    let recipe = toy.write("characters.toml", &text);
    run(&recipe, Some(model.clone()), &toy.path("third"), 1, StartMode::Fresh).unwrap();
    let third = read_last(&toy.path("third"));
    assert!(third.recipe.contains("match_tokens = true"), "{}", third.recipe);
    assert_ne!(third.shapes["joint.head.weight"], first.shapes["joint.head.weight"]);
    assert_eq!(third.shapes["joint.encoder.weight"], first.shapes["joint.encoder.weight"]);
    // Errors.
    let recipe = toy.recipe(&[("[optimizer]", &with_init(""))]);
    let error = run(&recipe, Some(model), &toy.path("fourth"), 1, StartMode::Fresh).unwrap_err().to_string();
    assert!(error.contains("init.weights: expected none with --from"), "{error}");
    let error = run(&recipe, Some(recipe.clone()), &toy.path("fourth"), 1, StartMode::Fresh).unwrap_err();
    assert!(error.to_string().contains("recipe.toml"), "{error}");
}
