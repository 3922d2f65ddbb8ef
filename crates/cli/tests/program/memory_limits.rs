//! Tests of `PANDA_MEMORY`: too large sizes are errors before the allocation.
use super::toy::{RATE, Toy, write_wav};
use super::{flac_bytes, panda, run_command, trained_for_an_epoch};

/// Runs a command with a memory limit.
fn run_with_limit(toy: &Toy, arguments: &[&str], memory: &str) -> (Option<i32>, String, String) {
    let mut command = panda(&toy.path(""), arguments);
    command.env("PANDA_MEMORY", memory);
    run_command(command)
}

#[test]
fn a_model_above_the_limit_is_an_error() {
    let toy = Toy::new();
    toy.recipe(&[("stride = 4\nlayers = 1\nhidden = 16", "stride = 4\nlayers = 100\nhidden = 8192")]);
    // `info` needs no memory for a model of any size.
    let (code, out, err) = run_with_limit(&toy, &["info", "recipe.toml"], "1MiB");
    assert_eq!(code, Some(0), "{err}");
    let total = out.lines().find(|line| line.starts_with("total")).unwrap();
    let total: usize = total["total".len()..].trim().parse().unwrap();
    assert!(total > 100_000_000_000, "{total}");
    let (code, _, err) = run_with_limit(&toy, &["train", "recipe.toml", "--run", "run"], "1GiB");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("[encoder]") && err.contains("at most 1.0 GiB") && err.contains("GiB\n"), "{err}");
    assert!(!toy.path("run").exists());
}

#[test]
fn recognition_lattices_are_planned() {
    let toy = Toy::new();
    let predictor = "[predictor]\nkind = \"lstm\"\nembedding = 8\nhidden = 16\nlayers = 1\n";
    toy.recipe(&[(predictor, "[loss]\nkind = \"gnat\"\ncontext = 1\nembedding = 8\n")]);
    let (code, out, err) = run_with_limit(&toy, &["info", "recipe.toml", "--batch", "3"], "1GiB");
    assert_eq!(code, Some(0), "{out}{err}");
    for part in [
        "plan for 3 utterances of 100 frames and 20 labels",
        "3 utterances and",
        "MB in addition to parameters",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (code, out, err) = run_with_limit(&toy, &["info", "recipe.toml"], "1KiB");
    // A plan is computed from shapes without allocations.
    assert!(code == Some(0) && out.contains("plan for 16 utterances"), "{out}{err}");
    for (arguments, part) in [
        (["--budget", "1KiB"], "budget: expected at least"),
        (["--hidden", "7"], "--hidden: expected a transducer, found a recognition lattice"),
        (["--frames", "999999999"], "--frames + --labels + 1"),
    ] {
        let (code, out, err) =
            run_with_limit(&toy, &[&["info", "recipe.toml"][..], &arguments].concat(), "1GiB");
        assert!(code == Some(2) && err.contains(part), "{out}{err}");
    }
}

#[test]
fn data_and_alignments_are_planned_too() {
    let toy = Toy::new();
    toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let (code, _, err) = run_with_limit(&toy, &["train", "recipe.toml", "--run", "run"], "4KiB");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("hours of audio in [data]: expected at most 0 MiB"), "{err}");
    let (code, _, err) = run_with_limit(&toy, &["train", "recipe.toml", "--run", "run"], "8MiB");
    assert_eq!(code, Some(0), "{err}");
    // Two minutes with 900 words: 2.7 million sites.
    write_wav(&toy.path("long.wav"), RATE, &vec![0; 120 * RATE as usize]);
    let words = ["low"; 900].join(" ");
    let line =
        format!("{{\"id\": \"long\", \"file\": \"long.wav\", \"text\": \"{words}\", \"seconds\": 120}}\n");
    toy.write("long.jsonl", &line);
    let arguments = ["align", "run/last.safetensors", "long.jsonl"];
    let (code, _, err) = run_with_limit(&toy, &arguments, "100MiB");
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("alignment of long: 2703") && err.contains("sites") && err.contains("100 MiB"),
        "{err}"
    );
    let (code, out, err) = run_with_limit(&toy, &arguments, "16GiB");
    assert_eq!((code, out.lines().count()), (Some(0), 900), "{err}");
}

#[test]
fn beam_search_reads_long_recordings_within_the_limit() {
    let toy = trained_for_an_epoch();
    // 80 MB of samples.
    for has_length in [true, false] {
        let file = flac_bytes::silence(RATE, 306, has_length);
        std::fs::write(toy.path("long.flac"), file).unwrap();
        let arguments = ["transcribe", "run/last.safetensors", "long.flac", "--beam", "2", "--nbest", "2"];
        let (code, _, err) = run_with_limit(&toy, &arguments, "70MiB");
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("long.flac: expected at most 70 MiB"), "{err}");
    }
    // The samples fit within the limit; features and encoder outputs do not.
    let arguments = ["transcribe", "run/last.safetensors", "long.flac", "--beam", "2", "--nbest", "2"];
    let (code, _, err) = run_with_limit(&toy, &arguments, "130MiB");
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("long.flac: features and encoding of ") && err.contains("expected at most 130 MiB"),
        "{err}"
    );
}
