//! Tests of runs within a memory budget (`batch.memory`): plans and errors.
use std::path::Path;
use std::sync::atomic::AtomicBool;

use training::recipe::RecipeOverrides;
use training::{
    BatchShape, EncoderPass, Error, Observer, Recipe, Result, RunOutcome, RunPlan, RunReport, StartMode,
    StepReport, check_step_bytes, step_bytes, train_with,
};

use crate::toy::{RATE, Toy, write_wav};

/// Bytes by which budgets are above or below the smallest.
const MARGIN_BYTES: usize = 64 << 10;

/// Counts the steps and stores the plan.
#[derive(Default)]
struct PlanObserver {
    num_steps: u64,
    plan: Option<RunPlan>,
}

impl Observer for PlanObserver {
    fn on_start(&mut self, report: &RunReport) {
        self.plan = report.plan;
    }

    fn on_step(&mut self, _: &StepReport) {
        self.num_steps += 1;
    }
}

/// Trains one epoch with a memory budget in bytes.
fn run(recipe: &Path, memory: Option<usize>, folder: &Path) -> (Result<RunOutcome>, PlanObserver) {
    let (mut observer, stop) = (PlanObserver::default(), AtomicBool::new(false));
    let overrides = RecipeOverrides { epochs: Some(1), memory, ..RecipeOverrides::default() };
    let outcome = train_with(
        recipe,
        overrides,
        folder,
        StartMode::Fresh,
        &mut distributed::ProcessGroup::single(),
        &mut observer,
        &stop,
    );
    (outcome, observer)
}

#[test]
fn a_budget_that_is_too_small_is_an_error_with_the_smallest_possible() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[
        ("[training]", "[loss]\nkind = \"rnnt\"\nbudget = \"1MiB\"\n[training]"),
        ("max_utterances = 2", "max_utterances = 6"),
    ]);
    let (error, _) = run(&recipe, Some(1 << 20), &toy.path("small"));
    let Err(Error::Budget { budget, smallest }) = error else { panic!("{error:?}") };
    assert_eq!(budget, 1 << 20);
    assert!(!toy.path("small").exists());
    let (error, _) = run(&recipe, Some(smallest - MARGIN_BYTES), &toy.path("less"));
    assert!(matches!(error, Err(Error::Budget { .. })));

    let (outcome, without_budget) = run(&recipe, None, &toy.path("free"));
    assert!(outcome.is_ok() && without_budget.plan.is_none());
    let (outcome, with_smallest) = run(&recipe, Some(smallest + MARGIN_BYTES), &toy.path("least"));
    outcome.unwrap();
    let plan = with_smallest.plan.unwrap();
    assert!(plan.peak() <= plan.budget && plan.baseline > 0 && plan.step > 0, "{plan:?}");
    // Utterances that do not fit together are computed in separate steps.
    assert!(
        with_smallest.num_steps > without_budget.num_steps,
        "{} steps, {} without a budget",
        with_smallest.num_steps,
        without_budget.num_steps
    );
    let (outcome, with_large) = run(&recipe, Some(1 << 30), &toy.path("wide"));
    outcome.unwrap();
    assert_eq!(with_large.num_steps, without_budget.num_steps);
    let metrics = std::fs::read_to_string(toy.path("wide").join("metrics.csv")).unwrap();
    let (names, values) = metrics.split_once('\n').unwrap();
    let column = names.split(',').position(|name| name == "planned_bytes").unwrap();
    let planned_bytes = with_large.plan.unwrap().peak().to_string();
    assert_eq!(values.trim().split(',').nth(column), Some(planned_bytes.as_str()));
}

#[test]
fn layers_are_recomputed_if_the_budget_requires_it() {
    let toy = Toy::new();
    let conformer =
        "kind = \"conformer\"\nlayers = 6\nwidth = 32\nheads = 2\nfeed_forward = 128\nkernel = 3\n";
    let recipe = toy.recipe(&[
        ("layers = 1\nhidden = 16\nbidirectional = true\n", conformer),
        ("[training]", "[loss]\nkind = \"rnnt\"\nbudget = \"1MiB\"\n[training]"),
        ("max_utterances = 2", "max_utterances = 1"),
    ]);
    let Err(Error::Budget { smallest, .. }) = run(&recipe, Some(1 << 20), &toy.path("none")).0 else {
        panic!("1 MiB is enough")
    };
    let train = |memory: usize, folder: &str| {
        let (outcome, observer) = run(&recipe, Some(memory), &toy.path(folder));
        outcome.unwrap();
        let weights = model::Checkpoint::read(&toy.path(folder).join("last.safetensors")).unwrap().weights;
        (observer.plan.unwrap(), weights)
    };
    let (least, recomputed) = train(smallest + MARGIN_BYTES, "least");
    let (most, saved) = train(1 << 30, "most");
    assert_eq!((least.encoder_pass, most.encoder_pass), (EncoderPass::Recomputed, EncoderPass::Saved));
    assert!(least.to_string().contains("recomputed") && !most.to_string().contains("recomputed"));
    assert_eq!(recomputed, saved);
}

#[test]
fn frozen_weights_have_no_moments_and_no_gradients_in_the_plan() {
    let toy = Toy::new();
    let loss = "[loss]\nkind = \"rnnt\"\nbudget = \"1MiB\"\n[training]";
    let (outcome, trained) = run(&toy.recipe(&[("[training]", loss)]), Some(1 << 30), &toy.path("trained"));
    outcome.unwrap();
    let base = toy.path("trained").join("best.safetensors");
    let init = format!("[init]\nweights = {base:?}\nfrozen = [\"encoder\"]\n{loss}");
    let (outcome, frozen) = run(&toy.recipe(&[("[training]", &init)]), Some(1 << 30), &toy.path("frozen"));
    outcome.unwrap();
    let weights = model::Checkpoint::read(&base).unwrap().weights;
    let encoder = weights.iter().filter(|(name, _)| name.starts_with("encoder."));
    let frozen_count: usize = encoder.map(|(_, values)| values.len()).sum();
    // Two moments, the gradients of a step and those of one backward pass.
    assert_eq!(trained.plan.unwrap().fixed - frozen.plan.unwrap().fixed, 4 * 4 * frozen_count);
}

#[test]
fn the_step_of_a_frozen_encoder_has_no_saved_activations() {
    let toy = Toy::new();
    let conformer =
        "kind = \"conformer\"\nlayers = 6\nwidth = 32\nheads = 2\nfeed_forward = 128\nkernel = 3\n";
    let encoder = ("layers = 1\nhidden = 16\nbidirectional = true\n", conformer);
    let frozen =
        ("[predictor]", "[init]\nweights = \"base.safetensors\"\nfrozen = [\"encoder\"]\n[predictor]");
    let loss = ("[training]", "[loss]\nkind = \"rnnt\"\nbudget = \"1MiB\"\n[training]");
    let bytes = |changes: &[(&str, &str)]| {
        let path = toy.recipe(&[changes, &[loss]].concat());
        let recipe = Recipe::read(&path, RecipeOverrides::default()).unwrap().0;
        let model = model::Model::new(&recipe.model_config(), 10).unwrap();
        step_bytes(&model, BatchShape { utterances: 4, rows: 400, labels: 20 })
    };
    let (trained, frozen) = (bytes(&[encoder]), bytes(&[encoder, frozen]));
    assert!(3 * frozen < 2 * trained, "{frozen} {trained}");
}

#[test]
fn the_plan_includes_evaluations() {
    let toy = Toy::new();
    write_wav(&toy.path("long.wav"), RATE, &vec![0; 30 * RATE as usize]);
    toy.write("long.jsonl", r#"{"id": "long", "file": "long.wav", "text": "low", "seconds": 30}"#);
    let smallest = |dev: &str| {
        let loss = ("[training]", "[loss]\nkind = \"rnnt\"\nbudget = \"1MiB\"\n[training]");
        let recipe = toy.recipe(&[loss, ("dev = [\"train.jsonl\"]", &format!("dev = [\"{dev}.jsonl\"]"))]);
        match run(&recipe, Some(1 << 20), &toy.path("none")).0 {
            Err(Error::Budget { smallest, .. }) => smallest,
            other => panic!("{other:?}"),
        }
    };
    // Half a minute has a few hundred encoder rows more, of a hundred values each.
    assert!(smallest("long") > smallest("train") + (1 << 19));
}

#[test]
fn a_loss_budget_that_is_too_small_is_an_error_before_the_first_step() {
    let toy = Toy::new();
    let train = "train = [\"train.jsonl\"]";
    for (stream_key, streams) in [("", false), ("stream = true\n", true)] {
        let loss = "[loss]\nkind = \"rnnt\"\nbudget = \"1KiB\"\n[training]";
        let recipe = toy.recipe(&[("[training]", loss), (train, &format!("{stream_key}{train}"))]);
        let (error, _) = run(&recipe, None, &toy.path("none"));
        let Err(Error::Model(model::Error::LossBudget { smallest, found, utterances })) = error else {
            panic!("{streams}: {error:?}")
        };
        assert!(found == 1024 && smallest > found && utterances.len() == 1, "{smallest} {utterances:?}");
        assert!(!toy.path("none").exists());
        let sufficient = format!("[loss]\nkind = \"rnnt\"\nbudget = \"{}\"\n[training]", smallest + 4096);
        let recipe = toy.recipe(&[("[training]", &sufficient), (train, &format!("{stream_key}{train}"))]);
        run(&recipe, None, &toy.path(&format!("enough-{streams}"))).0.unwrap();
    }
}

#[test]
fn plans_need_a_loss_budget_and_a_number_of_bytes() {
    let toy = Toy::new();
    for (keys, part) in [
        (("[training]", "[loss]\nkind = \"rnnt\"\nbudget = \"unlimited\"\n[training]"), "loss.budget"),
        (("max_utterances = 2", "max_utterances = 2\nmemory = \"lots\""), "expected a number of bytes"),
    ] {
        let error = run(&toy.recipe(&[keys]), Some(1 << 30), &toy.path("run")).0.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let (recipe, _) = training::Recipe::read(&toy.recipe(&[]), None).unwrap();
    assert!(check_step_bytes(&model::Model::new(&recipe.model_config(), 3).unwrap()).is_ok());
}

#[test]
fn the_plan_includes_waiting_batches_of_buckets_and_slower_speech() {
    let toy = Toy::new();
    let smallest = |changes: &[(&str, &str)]| {
        let budget = ("[training]", "[loss]\nkind = \"rnnt\"\nbudget = \"1MiB\"\n[training]");
        let recipe = toy.recipe(&[&[budget], changes].concat());
        let (error, _) = run(&recipe, Some(1 << 20), &toy.path("run"));
        let Err(Error::Budget { smallest, .. }) = error else { panic!("{error:?}") };
        smallest
    };
    let plain = smallest(&[]);
    assert!(smallest(&[("max_utterances = 2", "max_utterances = 6\nbuckets = 1")]) > plain);
    assert!(smallest(&[("speed = 0.1", "speed = 0.4, tempo = 0.2")]) > plain);
}
