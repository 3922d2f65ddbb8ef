//! Tests of `panda average` on checkpoints and run folders.
use super::toy::{Toy, leftovers};
use super::{panda, run_command};

#[test]
fn the_average_of_a_run_is_evaluated_like_any_checkpoint() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[
        ("epochs = 3", "epochs = 3\nkeep = 3"),
        ("max_frames = 200", "max_frames = 200\nmax_seconds = 1.0"),
    ]);
    // A run with three checkpoints.
    let (code, out, err) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("data.train: 1 of 6 utterances"), "{out}");
    assert!(out.contains("  padding "), "{out}");

    // Valid calls; `evaluate` accepts the mean.
    for (arguments, count) in [
        (&["--last", "2", "run"][..], 2),
        (&["--best", "3", "run"], 3),
        (&["run/epoch-1.safetensors", "run/last.safetensors"], 2),
    ] {
        let (code, out, err) =
            run_command(panda(&folder, &[&["average", "mean.safetensors"], arguments].concat()));
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(out.lines().count(), count + 1, "{out}");
        let last = out.lines().last().unwrap();
        assert!(last.starts_with("mean.safetensors: mean of the "), "{out}");
        assert!(
            last.ends_with(&format!("weights of {count} checkpoints and of their moving averages")),
            "{out}"
        );
        let (code, out, err) = run_command(panda(&folder, &["evaluate", "mean.safetensors", "train.jsonl"]));
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains("in 6 utterances"), "{out}");
    }
    // Invalid calls write nothing.
    for (arguments, part) in [
        (&["none.safetensors"][..], "average: expected at least one checkpoint, found none"),
        (&["none.safetensors", "--last", "1"], "expected one run folder, found 0"),
        (&["none.safetensors", "--best", "1", "run", "run"], "expected one run folder, found 2"),
        (&["none.safetensors", "--last", "4", "run"], "expected 4 epochs with a checkpoint, found 3"),
        (&["none.safetensors", "--last", "0", "run"], "expected at least one checkpoint, found none"),
        (&["none.safetensors", "run/last.safetensors", "train.jsonl"], "train.jsonl"),
        (&["run/last.safetensors", "run/last.safetensors"], "found the input"),
        (&["none.safetensors", "--last", "1", "--best", "1", "run"], "cannot be used with"),
    ] {
        let (code, _, err) = run_command(panda(&folder, &[&["average"], arguments].concat()));
        assert!(code == Some(2) && err.starts_with("error: ") && err.contains(part), "{arguments:?}: {err}");
        assert!(!toy.path("none.safetensors").exists());
    }
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}
