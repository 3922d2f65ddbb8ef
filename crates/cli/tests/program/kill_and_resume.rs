//! Tests that killed or interrupted training runs resume bit for bit.
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use super::toy::{Toy, leftovers};
use super::{panda, run_command, tfevents};

/// Number of times that a run is killed.
const KILLS: usize = 20;

/// Returns a corpus with a long run that saves every second step.
fn long_run_corpus() -> Toy {
    let toy = Toy::new();
    toy.recipe(&[("epochs = 3", "epochs = 60\nevaluate_every = 7\ncheckpoint_every = 2")]);
    toy
}

/// Starts or resumes the run `parts`.
fn start_resumed_run(toy: &Toy) -> Child {
    let mut command = panda(&toy.path(""), &["train", "recipe.toml", "--run", "parts", "--resume"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns the time of the last change of a file.
fn modification_time(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Waits for `count` new checkpoints; returns false if the run ends before.
fn wait_for_checkpoints(run: &mut Child, path: &Path, count: usize) -> bool {
    let (mut new_checkpoints, mut last_time) = (0, modification_time(path));
    let start = Instant::now();
    while run.try_wait().unwrap().is_none() {
        let current_time = modification_time(path);
        if current_time != last_time {
            (new_checkpoints, last_time) = (new_checkpoints + 1, current_time);
        }
        if new_checkpoints >= count {
            return true;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint in a minute");
        std::thread::sleep(Duration::from_micros(300));
    }
    false
}

/// Asserts that an uninterrupted and a resumed run wrote equal files.
///
/// Measured values (wall times and memory) are excluded.
fn assert_same_as_uninterrupted(toy: &Toy) {
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "whole"]));
    assert_eq!(code, Some(0), "{err}");
    let read = |run: &str, name: &str| std::fs::read(toy.path(run).join(name)).unwrap();
    for name in
        ["last.safetensors", "best.safetensors", "evaluation.json", "test.hypotheses.jsonl", "curve.svg"]
    {
        assert!(read("whole", name) == read("parts", name), "{name}");
    }
    let without_measured = |run| {
        let text = String::from_utf8(read(run, "metrics.csv")).unwrap();
        let cells = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
        let mut rows: Vec<Vec<String>> = cells.collect();
        for measured in ["seconds", "resident_bytes"] {
            let column = rows[0].iter().position(|name| name == measured).unwrap();
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
        rows
    };
    assert_eq!(without_measured("whole"), without_measured("parts"));
    assert_eq!(without_measured("whole").len(), 61);
    let mut events = ["whole", "parts"].map(|run| tfevents::scalars(&toy.path(run)));
    events.iter_mut().for_each(|events| {
        events.retain(|event| !["epoch/seconds", "epoch/resident_bytes"].contains(&event.1.as_str()))
    });
    assert_eq!(events[0], events[1]);
    assert_eq!(events[0].iter().filter(|event| event.1 == "epoch/loss").count(), 60);
    assert_eq!(leftovers(&toy.path("")), [] as [PathBuf; 0]);
}

#[test]
fn kills_at_any_moment_leave_the_same_final_weights() {
    let toy = long_run_corpus();
    let path = toy.path("parts/last.safetensors");
    let (mut kills, mut random_state) = (0, 1u64);
    while kills < KILLS {
        let mut run = start_resumed_run(&toy);
        // Kill between checkpoints: during a step, the next checkpoint or an evaluation.
        // A linear congruential generator with Knuth's constants.
        random_state = random_state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (count, wait_micros) = (1 + (random_state >> 33) as usize % 3, (random_state >> 40) % 20_000);
        assert!(wait_for_checkpoints(&mut run, &path, count), "the run ended after {kills} kills");
        std::thread::sleep(Duration::from_micros(wait_micros));
        run.kill().unwrap();
        assert!(!run.wait().unwrap().success(), "the run ended after {kills} kills");
        kills += 1;
    }
    assert!(start_resumed_run(&toy).wait().unwrap().success());
    assert_same_as_uninterrupted(&toy);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_saves_and_prints_how_to_resume() {
    let toy = long_run_corpus();
    let mut run = start_resumed_run(&toy);
    assert!(wait_for_checkpoints(&mut run, &toy.path("parts/last.safetensors"), 3));
    let kill = format!("kill -INT {}", run.id());
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    let message = text.lines().last().unwrap();
    assert!(
        message.starts_with("stopped and saved after ")
            && message.ends_with(" steps; to continue: panda train recipe.toml --resume --run parts"),
        "{text}"
    );
    assert!(!toy.path("parts/evaluation.json").exists());
    assert!(start_resumed_run(&toy).wait().unwrap().success());
    assert_same_as_uninterrupted(&toy);
}
