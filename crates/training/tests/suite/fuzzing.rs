//! Fuzz tests: a damaged recipe or checkpoint never causes a panic.
use std::path::Path;

use model::{Checkpoint, Model};
use training::Recipe;

use super::mutants::fuzz;
use super::toy::Toy;

#[test]
fn damaged_recipes_never_cause_a_panic() {
    let losses = [
        "",
        "[loss]\nkind = \"tdt\"\ndurations = [0, 1, 2]\nomega = 0.1",
        "[loss]\nkind = \"pruned\"\ns_range = 3",
    ];
    let toy = Toy::new();
    let read_recipe_with = |loss| {
        std::fs::read(toy.recipe(&[("ctc_weight = 0.3", &format!("ctc_weight = 0.3\n{loss}"))])).unwrap()
    };
    let valid_recipes = losses.map(read_recipe_with).to_vec();
    let words: &[&[u8]] = &[
        b"= 1e300\n",
        b"= 99999999999\n",
        b"= nan\n",
        b"[loss]\n",
        b"kind = \"multi-blank\"\n",
        b"durations = [2, 4]\n",
        b"topology = \"modified\"\n",
        b"budget = \"unlimited\"\n",
        b"layers = 100\n",
        b"hidden = 8192\n",
        b"[",
        b"\"",
    ];
    fuzz("recipe", valid_recipes, words, 2000, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match Recipe::parse(&text, Path::new("some.toml")) {
            // A valid recipe has a plan of its model, which costs no memory.
            Ok(recipe) => drop(Model::shapes(&recipe.model_config(), 30).unwrap()),
            Err(error) => assert!(error.to_string().len() < 2000 + bytes.len(), "{error}"),
        }
    });
}

#[test]
fn damaged_checkpoints_are_errors_or_have_the_values_that_were_written() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    training::train(&recipe, None, &toy.path("run"), training::StartMode::Fresh, &mut (), &stop).unwrap();
    let valid_bytes = std::fs::read(toy.path("run/last.safetensors")).unwrap();
    let valid = Checkpoint::read(&toy.path("run/last.safetensors")).unwrap();
    let words: &[&[u8]] = &[
        b"\"F32\"",
        b"\"F64\"",
        b"[0,1]",
        b"\"data_offsets\"",
        b"\"version\\\":2",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"weight/",
    ];
    let path = toy.path("mutant.safetensors");
    fuzz("checkpoint", vec![valid_bytes.clone()], words, 2000, move |bytes| {
        std::fs::write(&path, bytes).unwrap();
        // A file with checksums that can be read has the values that were written.
        if let Ok(read) = Checkpoint::read(&path)
            && read.has_checksums
        {
            assert!(
                read.weights == valid.weights
                    && read.recipe == valid.recipe
                    && read.optimizer_state == valid.optimizer_state
            );
            assert!(read.tokenizer == valid.tokenizer && read.progress == valid.progress);
        }
        let _ = recognizer::Recognizer::load(&path);
    });
}
