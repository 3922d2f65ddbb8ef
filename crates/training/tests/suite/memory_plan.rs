//! Tests of runs within a memory budget (`batch.memory`).
use std::path::Path;
use std::sync::atomic::AtomicBool;

use training::recipe::RecipeOverrides;
use training::{
    Error, Observer, Result, RunOutcome, RunPlan, RunReport, StartMode, StepReport, check_step_bytes,
    train_with,
};

use crate::toy::{RATE, Toy, write_wav};

/// Counts the steps and stores the plan.
#[derive(Default)]
struct PlanObserver(u64, Option<RunPlan>);

impl Observer for PlanObserver {
    fn on_start(&mut self, report: &RunReport) {
        self.1 = report.plan;
    }

    fn on_step(&mut self, _: &StepReport) {
        self.0 += 1;
    }
}

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
    let (none, _) = run(&recipe, Some(smallest - (64 << 10)), &toy.path("less"));
    assert!(matches!(none, Err(Error::Budget { .. })));

    let (outcome, free) = run(&recipe, None, &toy.path("free"));
    assert!(outcome.is_ok() && free.1.is_none());
    let (least, tight) = run(&recipe, Some(smallest + (64 << 10)), &toy.path("least"));
    least.unwrap();
    let plan = tight.1.unwrap();
    assert!(plan.peak() <= plan.budget && plan.baseline > 0 && plan.step > 0, "{plan:?}");
    // Utterances that do not fit together are computed in separate steps.
    assert!(tight.0 > free.0, "{} steps, {} without a budget", tight.0, free.0);
    let (wide, loose) = run(&recipe, Some(1 << 30), &toy.path("wide"));
    wide.unwrap();
    assert_eq!(loose.0, free.0);
    let metrics = std::fs::read_to_string(toy.path("wide").join("metrics.csv")).unwrap();
    let (names, values) = metrics.split_once('\n').unwrap();
    let column = names.split(',').position(|name| name == "planned_bytes").unwrap();
    assert_eq!(values.trim().split(',').nth(column), Some((loose.1.unwrap().peak()).to_string().as_str()));
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
    for (more, streams) in [("", false), ("stream = true\n", true)] {
        let loss = "[loss]\nkind = \"rnnt\"\nbudget = \"1KiB\"\n[training]";
        let recipe = toy.recipe(&[("[training]", loss), (train, &format!("{more}{train}"))]);
        let (error, _) = run(&recipe, None, &toy.path("none"));
        let Err(Error::Model(model::Error::LossBudget { smallest, found, utterances })) = error else {
            panic!("{streams}: {error:?}")
        };
        assert!(found == 1024 && smallest > found && utterances.len() == 1, "{smallest} {utterances:?}");
        assert!(!toy.path("none").exists());
        let sufficient = format!("[loss]\nkind = \"rnnt\"\nbudget = \"{}\"\n[training]", smallest + 4096);
        let recipe = toy.recipe(&[("[training]", &sufficient), (train, &format!("{more}{train}"))]);
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
