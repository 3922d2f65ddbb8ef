//! Tests of runs with low-rank adapters and learning rates by part.
use std::path::{Path, PathBuf};

use model::{Adapter, Checkpoint, merge_adapter, remove_adapter};
use recognizer::Recognizer;
use training::StartMode;

use super::adapting::{read_last, run};
use super::toy::Toy;

/// Replaces the encoder of the toy recipe by a Conformer.
const CONFORMER: (&str, &str) = (
    "layers = 1\nhidden = 16\nbidirectional = true\n",
    "kind = \"conformer\"\nlayers = 1\nwidth = 8\nheads = 2\nfeed_forward = 16\nkernel = 3\n",
);

fn transcribe(toy: &Toy, checkpoint: &Path) -> String {
    let recognizer = Recognizer::load(checkpoint).unwrap();
    let text = |index| {
        let audio = speech::read_audio(&toy.path(&format!("{index}.wav"))).unwrap();
        recognizer.transcribe(&audio).unwrap().text
    };
    (0..6).map(text).collect::<Vec<_>>().join("|")
}

/// A toy corpus with a trained Conformer in `first`.
fn toy_with_trained_model() -> Toy {
    let toy = Toy::new();
    run(&toy.recipe(&[CONFORMER]), None, &toy.path("first"), 2, StartMode::Fresh).unwrap();
    toy
}

/// Writes a recipe that starts from the trained model.
fn recipe_from_first(toy: &Toy, sections: &str, changes: &[(&str, &str)]) -> PathBuf {
    let sections = format!("[init]\nweights = \"first/last.safetensors\"\n{sections}\n[optimizer]");
    toy.recipe(
        &[&[CONFORMER, ("[optimizer]", &sections), ("learning_rate = 1e-2", "learning_rate = 0.1")], changes]
            .concat(),
    )
}

#[test]
fn an_adapter_is_trained_resumed_extracted_and_merged() {
    let toy = toy_with_trained_model();
    let first_path = toy.path("first/last.safetensors");
    let first = read_last(&toy.path("first"));
    let base = first.average.as_ref().unwrap();
    let changes = [("ema = 0.9", "ema = 0.5\ndecay = \"hold\"")];
    let recipe = recipe_from_first(&toy, "[adapter]\nrank = 2\nalpha = 4.0", &changes);
    run(&recipe, None, &toy.path("unbroken"), 2, StartMode::Fresh).unwrap();
    let path = toy.path("unbroken/last.safetensors");
    let unbroken = read_last(&toy.path("unbroken"));
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (name, values) in &unbroken.weights {
        let is_adapter = name.contains(".lora_");
        let is_frozen = name.starts_with("encoder.") && !is_adapter;
        match base.get(name) {
            Some(base) => assert_eq!(bits(values) == bits(base), is_frozen, "{name}"),
            None => assert!(is_adapter && values.iter().any(|&x| x != 0.0), "{name}"),
        }
        assert_eq!(unbroken.optimizer_state["first"].contains_key(name), !is_frozen, "{name}");
    }
    assert_eq!(unbroken.weights.len(), base.len() + 8 * 2);
    run(&recipe, None, &toy.path("parts"), 1, StartMode::Fresh).unwrap();
    run(&recipe, None, &toy.path("parts"), 2, StartMode::Resume).unwrap();
    let parts = read_last(&toy.path("parts"));
    assert!(parts.weights == unbroken.weights && parts.optimizer_state == unbroken.optimizer_state);

    // Merged, applied and removed.
    let texts = transcribe(&toy, &path);
    merge_adapter(&path, &unbroken).unwrap().write(&toy.path("merged.safetensors")).unwrap();
    assert_eq!(transcribe(&toy, &toy.path("merged.safetensors")), texts);
    let adapter = Adapter::extract(&path, &unbroken).unwrap();
    let applied = adapter.apply(Path::new("adapter"), &first_path, &first).unwrap();
    applied.write(&toy.path("applied.safetensors")).unwrap();
    assert_eq!(transcribe(&toy, &toy.path("applied.safetensors")), texts);
    let removed = remove_adapter(&path, &applied).unwrap();
    assert!(removed.weights.iter().all(|(name, values)| bits(values) == bits(&base[name])));
    removed.write(&toy.path("removed.safetensors")).unwrap();
    assert_eq!(transcribe(&toy, &toy.path("removed.safetensors")), transcribe(&toy, &first_path));
    // Another run is another base.
    let weights_only = Checkpoint { average: None, ..first.clone() };
    let error = adapter.apply(Path::new("adapter"), &first_path, &weights_only).unwrap_err().to_string();
    assert!(error.contains("the base of adapter"), "{error}");
}

#[test]
fn recomputed_layers_train_an_adapter_to_the_same_weights() {
    let toy = toy_with_trained_model();
    let weights = |folder: &str, changes: &[(&str, &str)]| {
        let recipe = recipe_from_first(&toy, "[adapter]\nrank = 2", changes);
        run(&recipe, None, &toy.path(folder), 1, StartMode::Fresh).unwrap();
        read_last(&toy.path(folder)).weights
    };
    let recompute = ("epochs = 3", "epochs = 3\nrecompute = true");
    let (saved, recomputed) = (weights("saved", &[]), weights("recomputed", &[recompute]));
    assert!(
        saved.iter().filter(|(name, _)| name.ends_with(".lora_b")).any(|(_, b)| b.iter().any(|&x| x != 0.0))
    );
    assert_eq!(recomputed, saved);
}

#[test]
fn a_run_from_an_adapted_checkpoint_continues_its_adapter() {
    let toy = toy_with_trained_model();
    let adapter = "frozen = [\"predictor\", \"joint\", \"ctc\"]\n[adapter]\nrank = 2";
    run(&recipe_from_first(&toy, adapter, &[]), None, &toy.path("second"), 1, StartMode::Fresh).unwrap();
    let (second, path) = (read_last(&toy.path("second")), toy.path("second/last.safetensors"));
    let names = second.optimizer_state["first"].keys();
    assert!(names.into_iter().all(|name| name.contains(".lora_")));
    assert_eq!(remove_adapter(&path, &second).unwrap().weights.len() + 16, second.weights.len());
    let from = |text: &str, folder: &str| {
        let recipe = toy.recipe(&[CONFORMER, ("[optimizer]", &format!("{text}\n[optimizer]"))]);
        run(&recipe, Some(path.clone()), &toy.path(folder), 1, StartMode::Fresh)
    };
    from("[init]\nkeep_tokens = true", "third").unwrap();
    let third = read_last(&toy.path("third"));
    assert!(third.recipe.contains("[adapter]\nrank = 2"), "{}", third.recipe);
    for (name, values) in &third.weights {
        let is_frozen = name.starts_with("encoder.") && !name.contains(".lora_");
        assert_eq!(*values == second.weights[name], is_frozen, "{name}");
    }
    for other in ["rank = 3", "rank = 2\nalpha = 1.0", "rank = 2\nmodules = [\"attention\"]"] {
        let error = from(&format!("[adapter]\n{other}"), "fourth").unwrap_err().to_string();
        assert!(error.contains("expected no adapter, or that of the recipe"), "{error}");
        assert!(error.contains("found another of rank 2"), "{error}");
    }
}

#[test]
fn adapters_without_weights_or_with_bad_values_are_errors() {
    let toy = toy_with_trained_model();
    let train =
        |recipe: &Path| run(recipe, None, &toy.path("second"), 1, StartMode::Fresh).unwrap_err().to_string();
    let error = train(&toy.recipe(&[CONFORMER, ("[optimizer]", "[adapter]\nrank = 2\n[optimizer]")]));
    assert!(error.contains("adapter: expected none without init.weights"), "{error}");
    let error = train(&recipe_from_first(&toy, "[adapter]\nrank = 0", &[]));
    assert!(error.contains("adapter.rank: expected 1 to 8192, found 0"), "{error}");
    let error = train(&recipe_from_first(&toy, "[adapter]\nrank = 1\nmodules = [\"conv\"]", &[]));
    assert!(error.contains("unknown variant `conv`"), "{error}");
    let lstm = (CONFORMER.1, CONFORMER.0);
    let error = train(&recipe_from_first(&toy, "[adapter]\nrank = 1", &[lstm]));
    assert!(error.contains("adapter: expected none with encoder.kind = \"lstm\""), "{error}");
    assert!(!toy.path("second").exists());
}

#[test]
fn parts_have_their_own_learning_rates_and_runs_resume() {
    let toy = Toy::new();
    let with_rates = |rates: &str| format!("decay = \"hold\"\nema = 0.0\nrates = {rates}");
    let train = |change: &str, folder: &str, epochs: u64, start| {
        let recipe = toy.recipe(&[("ema = 0.9", change)]);
        run(&recipe, None, &toy.path(folder), epochs, start)
    };
    let weights = |folder: &str| read_last(&toy.path(folder)).weights;
    train("decay = \"hold\"\nema = 0.0", "plain", 2, StartMode::Fresh).unwrap();
    // Factors of 1 change no bits.
    train(&with_rates("{ encoder = 1, \"joint.head\" = 1.0 }"), "ones", 2, StartMode::Fresh).unwrap();
    assert_eq!(weights("ones"), weights("plain"));
    // A tiny factor changes only its part.
    let rates = with_rates("{ encoder = 1e-30, predictor = 2.0 }");
    train(&rates, "unbroken", 2, StartMode::Fresh).unwrap();
    let initial = {
        let checkpoint = read_last(&toy.path("unbroken"));
        let config = checkpoint.model_config(Path::new("unbroken")).unwrap();
        model::Model::new(&config, 3).unwrap().parameters().values().unwrap()
    };
    for (name, values) in &weights("unbroken") {
        // Biases of 0 change by less than any weight can.
        let is_unchanged = values.iter().zip(&initial[name]).all(|(a, b)| (a - b).abs() < 1e-20);
        assert_eq!(is_unchanged, name.starts_with("encoder."), "{name}");
    }
    train(&rates, "parts", 1, StartMode::Fresh).unwrap();
    train(&rates, "parts", 2, StartMode::Resume).unwrap();
    assert_eq!(weights("parts"), weights("unbroken"));
    let error = train(&with_rates("{ encoder = 0.5 }"), "parts", 3, StartMode::Resume).unwrap_err();
    assert!(error.to_string().contains("optimizer.rates.encoder"), "{error}");
    for (rates, expected) in [
        ("{ encodr = 0.5 }", "optimizer.rates: expected names of trained parameters or modules"),
        ("{ \"encoder\" = 0.0 }", "optimizer.rates.\"encoder\": expected a factor above 0; init.frozen"),
    ] {
        let error = train(&with_rates(rates), "errors", 1, StartMode::Fresh).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!toy.path("errors").exists());
    }
}
