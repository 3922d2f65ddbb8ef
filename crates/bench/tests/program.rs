//! Tests of the program `bench`: schema of its results, agreement of the systems.
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// Maximum relative difference of gradients from the baseline's, which is `f32` throughout.
const GRADIENT_TOLERANCE: f64 = 2e-5;

/// Runs the program in a folder; returns status, standard output, standard error.
fn bench(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    let output = command.args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Runs a suite with `--quick` and checks the schema; returns the rows.
fn run_quick_suite(folder: &TempDir, suite: &str, options: &[&str]) -> Vec<Value> {
    let mut arguments = vec![suite, "--quick", "--repeats", "1", "--json", "out.json", "--svg", "out.svg"];
    arguments.extend(options);
    let (code, out, err) = bench(folder.path(), &arguments);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.lines().nth(1).is_some_and(|head| head.starts_with("case")), "{out}");

    let mut files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["out.json", "out.svg"]);
    let svg = std::fs::read_to_string(folder.path().join("out.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));

    let report: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("out.json")).unwrap()).unwrap();
    assert_eq!(report["suite"], suite);
    let machine = &report["machine"];
    assert!(
        machine["cpu"].is_string() && machine["cores"].as_u64() >= Some(1) && machine["date"].is_string()
    );
    let rows = report["rows"].as_array().unwrap().clone();
    for row in &rows {
        for name in ["case", "system", "status"] {
            assert!(row[name].is_string(), "{name}: {row}");
        }
        for name in ["median_ms", "min_ms", "max_ms", "peak_bytes", "gflops", "sgemm_share", "rel_grad_diff"]
        {
            let value = row.get(name).unwrap_or_else(|| panic!("{name}: {row}"));
            assert!(value.is_null() || value.as_f64() >= Some(0.0), "{name}: {row}");
        }
        for axis in ["B", "T", "U", "H", "C", "N"] {
            assert!(row["shape"].get(axis).is_some(), "{axis}: {row}");
        }
        let (low, middle, high) = (&row["min_ms"], &row["median_ms"], &row["max_ms"]);
        assert_eq!(row["status"] == "ok", middle.is_number(), "{row}");
        assert!(low.as_f64() <= middle.as_f64() && middle.as_f64() <= high.as_f64(), "{row}");
    }
    rows
}

/// Returns the rows of a system.
fn system_rows<'a>(rows: &'a [Value], system: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["system"] == system).collect()
}

#[test]
fn lattices_agree_with_the_textbook() {
    let folder = tempfile::tempdir().unwrap();
    let rows = run_quick_suite(&folder, "dp", &[]);
    assert!(rows.len() >= 4 && rows.iter().all(|row| row["status"] == "ok"), "{rows:?}");
    for row in system_rows(&rows, "panda") {
        assert!(row["rel_grad_diff"].as_f64().unwrap() < 1e-9, "{row}");
        assert!(row["gflops"].is_null() && row["shape"]["N"].as_u64() > Some(0), "{row}");
    }
    assert!(system_rows(&rows, "textbook").iter().all(|row| row["rel_grad_diff"].is_null()));
}

#[test]
fn gradients_agree_and_a_cap_is_out_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    // One thread leaves a core for the other tests.
    let all_rows = run_quick_suite(&folder, "lengths", &["--threads", "1"]);
    for row in system_rows(&all_rows, "panda") {
        assert!(row["rel_grad_diff"].as_f64().unwrap() < GRADIENT_TOLERANCE, "{row}");
        assert!(row["gflops"].as_f64() > Some(0.0) && row["sgemm_share"].as_f64() > Some(0.0), "{row}");
    }
    if cfg!(target_os = "linux") {
        let peak = |system: &str| system_rows(&all_rows, system)[0]["peak_bytes"].as_u64().unwrap();
        assert!(peak("panda") < 64 << 20 && peak("dense") > 256 << 20, "{all_rows:?}");
    }
    let capped = run_quick_suite(&folder, "lengths", &["--cap", "200MiB", "--budget", "8MiB"]);
    assert!(
        system_rows(&capped, "panda")
            .iter()
            .all(|row| row["status"] == "ok" && row["rel_grad_diff"].is_null())
    );
    for row in system_rows(&capped, "dense") {
        assert_eq!((&row["status"], &row["median_ms"]), (&"out-of-memory".into(), &Value::Null), "{row}");
        assert!(row["note"].as_str().unwrap().starts_with("predicted"), "{row}");
        assert_eq!(row["shape"]["B"], 16);
    }
}

#[test]
fn pruned_losses_are_compared_over_the_same_sites() {
    let folder = tempfile::tempdir().unwrap();
    let all_rows = run_quick_suite(&folder, "pruned", &["--threads", "1", "--cap", "200MiB"]);
    let names: Vec<_> = all_rows[..4].iter().map(|row| row["system"].as_str().unwrap()).collect();
    assert_eq!(names, ["pruned", "pruned-dense", "full", "full-dense"]);
    assert_eq!(all_rows.iter().filter(|row| row["case"] == "C=4096").count(), 4);
    for row in system_rows(&all_rows, "pruned").into_iter().chain(system_rows(&all_rows, "full")) {
        assert_eq!(row["status"], "ok", "{row}");
    }
    assert!(
        system_rows(&all_rows, "pruned")[0]["rel_grad_diff"].as_f64().unwrap() < GRADIENT_TOLERANCE,
        "{all_rows:?}"
    );
    // Dense logits of the larger vocabulary or of the full lattice do not fit, so nothing is
    // compared.
    assert!(system_rows(&all_rows, "full-dense").iter().all(|row| row["status"] == "out-of-memory"));
    assert_eq!(system_rows(&all_rows, "pruned-dense")[1]["status"], "out-of-memory");
    assert!(
        system_rows(&all_rows, "pruned")[1]["rel_grad_diff"].is_null()
            && system_rows(&all_rows, "full")[0]["rel_grad_diff"].is_null()
    );
    for row in system_rows(&all_rows, "pruned") {
        let pruning = &row["pruning"];
        assert_eq!((&pruning["retained"], &pruning["scores"]), (&2000.into(), &"matrices".into()), "{row}");
        let share = pruning["share"].as_f64().unwrap();
        assert!((share * row["shape"]["N"].as_f64().unwrap() - 2000.0).abs() < 1e-6, "{row}");
    }
    assert!(system_rows(&all_rows, "full").iter().all(|row| row.get("pruning").is_none()));
}

#[test]
fn every_search_decodes_the_same_labels() {
    let folder = tempfile::tempdir().unwrap();
    // Labels that differ from the reference would be an error.
    let all_rows = run_quick_suite(&folder, "decode", &["--threads", "1"]);
    let names: Vec<_> = all_rows[..4].iter().map(|row| row["system"].as_str().unwrap()).collect();
    assert_eq!(names, ["panda", "panda-one-frame", "panda-unprojected", "frame-looping"]);
    assert!(
        all_rows.iter().all(|row| row["status"] == "ok" && row["rel_grad_diff"].is_null()),
        "{all_rows:?}"
    );
    for row in &all_rows {
        let speed = &row["speed"];
        for name in ["utterances_per_second", "rtfx", "sgemm", "over_frame_looping", "torch", "over_torch"] {
            assert!(speed[name].as_f64() > Some(0.0), "{name}: {row}");
        }
        let (labels, frames) = (speed["labels"].as_f64().unwrap(), speed["frames"].as_f64().unwrap());
        assert!(labels > 0.1 * frames && speed["labels_per_frame"] == labels / frames, "{row}");
        assert_eq!(row["shape"]["C"], 1025);
    }
    for family in ["rnnt", "tdt"] {
        let labels: Vec<_> =
            all_rows.iter().map(|row| &row["speed"]).filter(|speed| speed["family"] == family).collect();
        assert!(
            labels.len() == 8 && labels.iter().all(|speed| speed["labels"] == labels[0]["labels"]),
            "{labels:?}"
        );
    }
    assert!(
        system_rows(&all_rows, "frame-looping").iter().all(|row| row["speed"]["over_frame_looping"] == 1.0)
    );
}

#[test]
fn a_training_step_has_parts_and_lower_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let all_rows = run_quick_suite(&folder, "train", &["--threads", "1"]);
    let names: Vec<_> = all_rows.iter().map(|row| row["system"].as_str().unwrap()).collect();
    assert_eq!(names, ["panda", "panda-ema"]);
    for row in &all_rows {
        assert!(row["status"] == "ok" && row["rel_grad_diff"].is_null(), "{row}");
        let training = &row["training"];
        for name in ["utterances_per_second", "cached", "streamed", "recurrent_bytes"] {
            assert!(training[name].as_f64() > Some(0.0), "{name}: {row}");
        }
        for name in ["encoder", "predictor", "loss", "backward", "optimizer"] {
            assert!(training["parts"][name].as_f64() >= Some(0.0), "{name}: {row}");
        }
        for name in ["products", "recurrent", "optimizer"] {
            assert!(training["lower_bounds"][name].as_f64() > Some(0.0), "{name}: {row}");
        }
        let per_weight = if row["system"] == "panda" { 44 } else { 56 };
        let weights = training["parameters"].as_u64().unwrap();
        assert_eq!(training["optimizer_bytes"], per_weight * weights, "{row}");
    }
}

#[test]
fn measured_memory_above_the_cap_is_out_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    if cfg!(target_os = "linux") {
        let rows = run_quick_suite(&folder, "dp", &["--cap", "1MiB"]);
        let large_rows: Vec<_> = rows.iter().filter(|row| row["case"] == "B=16 500x100").collect();
        assert!(
            !large_rows.is_empty() && large_rows.iter().all(|row| row["status"] == "out-of-memory"),
            "{large_rows:?}"
        );
        assert!(large_rows.iter().all(|row| row["note"].as_str().unwrap().starts_with("used ")));
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let check = |arguments: &[&str], part: &str| {
        let (code, out, err) = bench(folder.path(), arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {out}{err}");
        assert!(err.contains("error: ") && err.contains(part), "{arguments:?}: {err}");
    };
    check(&["nothing"], "invalid value 'nothing'");
    check(&["dp", "--cap", "8GB"], "such as 67108864, 64MiB or 8GiB");
    for (flag, values) in [("--threads", ["0", "-1", "nan"]), ("--repeats", ["0", "10001", "x"])] {
        values.iter().for_each(|value| check(&["dp", &format!("{flag}={value}")], flag));
    }
    check(&["dp", "--repeats", "18446744073709551615"], "--repeats");
    check(&["skip", "--checkpoint", "x"], "--manifest");
    check(
        &["skip", "--quick", "--repeats", "1", "--checkpoint", "none", "--manifest", "x"],
        "x, panda: expected a measurement, found: exit status: 2: error: none",
    );
    check(&["case", "{}"], "description of a case");
}

#[test]
fn outputs_are_opened_before_the_work_and_must_not_be_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = bench(folder.path(), &["classes", "--quick", "--json", "no/such/folder"]);
    assert!(code == Some(2) && err.contains("could not write: "), "{err}");
    for name in ["x.safetensors", "x.jsonl"] {
        std::fs::write(folder.path().join(name), "precious").unwrap();
        let inputs = ["skip", "--checkpoint", "x.safetensors", "--manifest", "x.jsonl", "--json"];
        let (code, _, err) = bench(folder.path(), &[&inputs[..], &[name]].concat());
        assert!(code == Some(2) && err.contains("expected an output other than the inputs"), "{err}");
        assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), "precious");
    }
}
