//! Runs that keep to a budget.
use std::path::Path;
use std::sync::atomic::AtomicBool;

use training::recipe::RecipeOverrides;
use training::{
    Error, Observer, Result, RunOutcome, RunPlan, RunReport, StartMode, StepReport, check_step_bytes,
    train_with,
};

use crate::toy::{RATE, Toy, write_wav};

/// Steps, and the plan.
#[derive(Default)]
struct Diary(u64, Option<RunPlan>);

impl Observer for Diary {
    fn on_start(&mut self, report: &RunReport) {
        self.1 = report.plan;
    }

    fn on_step(&mut self, _: &StepReport) {
        self.0 += 1;
    }
}

fn run(recipe: &Path, memory: Option<usize>, folder: &Path) -> (Result<RunOutcome>, Diary) {
    let (mut diary, stop) = (Diary::default(), AtomicBool::new(false));
    let changes = RecipeOverrides { epochs: Some(1), memory, ..RecipeOverrides::default() };
    let outcome = train_with(
        recipe,
        changes,
        folder,
        StartMode::Fresh,
        &mut distributed::ProcessGroup::single(),
        &mut diary,
        &stop,
    );
    (outcome, diary)
}

#[test]
fn a_budget_that_is_too_small_names_the_smallest_that_would_do() {
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

    let (whole, free) = run(&recipe, None, &toy.path("free"));
    assert!(whole.is_ok() && free.1.is_none());
    let (least, tight) = run(&recipe, Some(smallest + (64 << 10)), &toy.path("least"));
    least.unwrap();
    let plan = tight.1.unwrap();
    assert!(plan.peak() <= plan.budget && plan.baseline > 0 && plan.step > 0, "{plan:?}");
    // What fits alone only is computed alone.
    assert!(tight.0 > free.0, "{} steps, {} without a budget", tight.0, free.0);
    let (wide, loose) = run(&recipe, Some(1 << 30), &toy.path("wide"));
    wide.unwrap();
    assert_eq!(loose.0, free.0);
    let metrics = std::fs::read_to_string(toy.path("wide").join("metrics.csv")).unwrap();
    let (names, values) = metrics.split_once('\n').unwrap();
    let at = names.split(',').position(|name| name == "planned_bytes").unwrap();
    assert_eq!(values.trim().split(',').nth(at), Some((loose.1.unwrap().peak()).to_string().as_str()));
}

#[test]
fn what_a_run_is_judged_by_is_planned_too() {
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
    // Half a minute is a few hundred rows of a hundred numbers more.
    assert!(smallest("long") > smallest("train") + (1 << 19));
}

#[test]
fn a_budget_that_no_loss_can_keep_is_found_before_the_first_step() {
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
        let enough = format!("[loss]\nkind = \"rnnt\"\nbudget = \"{}\"\n[training]", smallest + 4096);
        let recipe = toy.recipe(&[("[training]", &enough), (train, &format!("{more}{train}"))]);
        run(&recipe, None, &toy.path(&format!("enough-{streams}"))).0.unwrap();
    }
}

#[test]
fn parts_that_do_not_say_what_they_take_are_named() {
    let toy = Toy::new();
    for (keys, part) in [
        (("[training]", "[loss]\nkind = \"rnnt\"\nbudget = \"unlimited\"\n[training]"), "loss.budget"),
        (("max_utterances = 2", "max_utterances = 2\nmemory = \"lots\""), "expected a number of bytes"),
    ] {
        let error = run(&toy.recipe(&[keys]), Some(1 << 30), &toy.path("run")).0.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let (recipe, _) = training::Recipe::read(&toy.recipe(&[]), None).unwrap();
    assert!(check_step_bytes(&model::Model::new(&recipe.model(), 3).unwrap()).is_ok());
}

#[test]
fn batches_of_buckets_that_wait_and_utterances_that_are_stretched_count() {
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
