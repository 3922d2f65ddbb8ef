//! Tests of the commands of `panda`: output, files and exit status.
use super::toy::{RATE, Toy, leftovers, write_wav};
use super::{panda, run_command};

#[test]
fn a_recipe_is_trained_evaluated_and_transcribed_with() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[]);
    let (code, out, err) = run_command(panda(&folder, &["train", "recipe.toml", "--epochs", "2"]));
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].contains("4 classes; 6 utterances") && lines[0].ends_with("epochs 1 to 2"), "{out}");
    assert!(lines[1].starts_with("epoch    1/2  loss ") && lines[2].contains("dev WER"), "{out}");
    for name in ["dev even", "dev odd", "dev ", "test even", "test odd", "test "] {
        assert!(lines.iter().any(|line| line.starts_with(name) && line.contains(" of ")), "{name}: {out}");
    }
    let next_commands = [
        "run folder: runs/recipe",
        "to transcribe: panda transcribe runs/recipe/best.safetensors FILE.wav",
        "to write an HTML report: panda report runs/recipe",
        "to train longer: panda train recipe.toml --resume --epochs 4",
    ];
    assert!(lines.ends_with(&next_commands), "{out}");
    let run = folder.join("runs/recipe");
    for name in ["recipe.toml", "metrics.csv", "curve.svg", "evaluation.json", "test.hypotheses.jsonl"] {
        assert!(run.join(name).exists(), "{name}");
    }
    assert!(std::fs::read_to_string(run.join("recipe.toml")).unwrap().contains("epochs = 2"));

    // `info` prints the same about recipe and checkpoint.
    let (code, out, _) = run_command(panda(&folder, &["info", "recipe.toml", "--batch", "3"]));
    assert_eq!(code, Some(0));
    for part in
        ["training data: 6 utterances", "tokens: 3", "one encoder frame: 40 ms", "[4, 16]", "of 3 utterances"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let checkpoint = "runs/recipe/best.safetensors";
    let (code, other, _) = run_command(panda(&folder, &["info", checkpoint, "--batch", "3"]));
    assert_eq!((code, out.split_once('\n').unwrap().1), (Some(0), other.as_str()));

    // `evaluate` prints the rates of the training run.
    let arguments = ["evaluate", checkpoint, "train.jsonl", "--hypotheses", "hypotheses.jsonl"];
    let (code, out, err) = run_command(panda(&folder, &arguments));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.lines().count() == 3 && out.lines().last().unwrap().starts_with("train "), "{out}");
    let hypotheses = std::fs::read_to_string(toy.path("hypotheses.jsonl")).unwrap();
    assert_eq!(hypotheses, std::fs::read_to_string(run.join("test.hypotheses.jsonl")).unwrap());
    assert_eq!(hypotheses.lines().count(), 6);
    let (_, out, _) = run_command(panda(&folder, &["evaluate", checkpoint, "train.jsonl", "--speakers"]));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 6, "{out}");
    assert!(lines[4].starts_with("train speaker wind   WER ") && lines[4].contains("]  CER "), "{out}");

    // The other files are transcribed even if one is missing.
    let arguments = ["transcribe", checkpoint, "0.wav", "none.wav", "3.wav", "--times"];
    let (code, out, err) = run_command(panda(&folder, &arguments));
    assert_eq!(code, Some(2));
    assert!(out.contains("0.wav: ") && out.contains("3.wav: "), "{out}");
    assert!(err.starts_with("error: ") && err.contains("none.wav"), "{err}");

    // The printed commands work.
    for line in &next_commands[1..] {
        let command = line.split_once(": panda ").unwrap().1.replace("FILE.wav", "0.wav");
        let arguments: Vec<&str> = command.split(' ').collect();
        let (code, _, err) = run_command(panda(&folder, &arguments));
        assert_eq!(code, Some(0), "{line}: {err}");
    }
    assert_eq!(std::fs::read_to_string(run.join("metrics.csv")).unwrap().lines().count(), 5);
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}

#[test]
fn errors_name_the_argument_and_set_the_exit_status() {
    let toy = Toy::new();
    let folder = toy.path("");
    let check = |arguments: &[&str], parts: &[&str]| {
        let (code, out, err) = run_command(panda(&folder, arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {out}{err}");
        assert!(
            err.starts_with("error: ") && parts.iter().all(|part| err.contains(part)),
            "{arguments:?}: {err}"
        );
    };
    // Recipes.
    check(&["train", "none.toml"], &["none.toml"]);
    toy.recipe(&[("epochs = 3", "epochs = 1\nepoch = 1")]);
    check(&["train", "recipe.toml"], &["recipe recipe.toml", "unknown field `epoch`"]);
    check(&["info", "recipe.toml"], &["unknown field `epoch`"]);
    check(&["info", "--classes", "10"], &["--hidden: expected a value, found --classes without it"]);
    check(&["info", "--hidden", "10"], &["--classes: expected a value"]);
    check(&["info"], &["PATH: expected a value"]);
    toy.recipe(&[("epochs = 3", "epochs = 1")]);
    check(&["train", "recipe.toml", "--epochs", "0"], &["training.epochs"]);
    check(&["train", "recipe.toml", "--resume", "--force"], &["cannot be used with"]);
    assert!(!toy.path("runs").exists());

    // Run folders.
    let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    check(&["train", "recipe.toml", "--run", "run"], &["run: expected a new folder, found a run"]);
    let (code, ..) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run", "--force"]));
    assert_eq!(code, Some(0));

    // Checkpoints, manifests and recordings.
    let checkpoint = "run/last.safetensors";
    check(
        &["evaluate", "recipe.toml", "train.jsonl"],
        &["checkpoint recipe.toml", "a whole safetensors file"],
    );
    check(&["info", "none.safetensors"], &["none.safetensors"]);
    check(&["evaluate", checkpoint, "none.jsonl"], &["none.jsonl"]);
    toy.write("empty.jsonl", "");
    check(&["evaluate", checkpoint, "empty.jsonl"], &["empty.jsonl", "at least one utterance"]);
    write_wav(&toy.path("fast.wav"), 2 * RATE, &[100; 1600]);
    check(
        &["transcribe", checkpoint, "fast.wav"],
        &["fast.wav", "expected audio at 8000 Hz, found 16000 Hz"],
    );
    toy.write("shard.tar", "");
    check(&["evaluate", checkpoint, "shard.tar"], &["shard.tar", "expected a manifest", "an archive"]);

    // Options that would have no effect.
    for (command, options, part) in [
        ("evaluate", &["--lm-weight", "0.3"][..], "--lm <ARPA>"),
        ("evaluate", &["--minus-lm-weight", "0.3"], "--minus-lm <ARPA>"),
        ("evaluate", &["--unknown-character", "-1"], "--lm <ARPA>"),
        ("evaluate", &["--lm-units", "words"], "--lm <ARPA>"),
        ("evaluate", &["--phrase-score", "2"], "--phrases <FILE>"),
        ("evaluate", &["--beam", "0"], "--beam: expected"),
        ("evaluate", &["--max-symbols", "0"], "--max-symbols: expected"),
        ("evaluate", &["--beam", "2", "--temperature", "0"], "--temperature: expected"),
        ("transcribe", &["--pace", "0"], "--pace: expected streaming audio"),
        ("transcribe", &["--chunk", "100"], "--chunk: expected streaming audio"),
        ("transcribe", &["--pause", "1"], "--pause: expected streaming audio"),
        ("transcribe", &["--latest", "1"], "--latest: expected streaming audio"),
        ("transcribe", &["--stream", "--times"], "--times: expected whole recordings"),
        ("transcribe", &["--stream", "--nbest", "2", "--beam", "4"], "--nbest: expected whole recordings"),
        ("transcribe", &["--stream", "--ctc"], "--ctc: expected whole recordings"),
    ] {
        let input = if command == "evaluate" { "train.jsonl" } else { "0.wav" };
        check(&[&[command, checkpoint, input][..], options].concat(), &[part]);
    }
}

#[test]
fn resuming_is_reported() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let resume = ["train", "recipe.toml", "--run", "run", "--resume"];
    let (code, _, err) = run_command(panda(&folder, &resume));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(err, "note: run: no checkpoint to resume from; training starts from scratch\n");
    let (code, out, err) = run_command(panda(&folder, &resume));
    assert!(code == Some(0) && err.is_empty(), "{err}");
    assert!(out.lines().next().unwrap().ends_with("all 1 epochs are done"), "{out}");
}

/// No output may be an input, for any option.
#[test]
fn inputs_are_never_overwritten() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let recipe = std::fs::read_to_string(toy.path("recipe.toml")).unwrap();
    let check = |arguments: &[&str], part: &str| {
        let (code, out, err) = run_command(panda(&folder, arguments));
        assert!(code == Some(2) && err.contains(part), "{arguments:?}: {out}{err}");
    };
    check(&["train", "recipe.toml", "--run", "."], "found another; select another folder");
    check(&["train", "recipe.toml", "--run", ".", "--force"], "recipe.toml");
    assert_eq!(std::fs::read_to_string(toy.path("recipe.toml")).unwrap(), recipe);
    // A user's file with the name of a file of run folders.
    std::fs::create_dir(toy.path("user")).unwrap();
    toy.write("user/recipe.toml", "user");
    for more in [&[][..], &["--resume"], &["--resume", "--epochs", "1"]] {
        check(
            &[&["train", "recipe.toml", "--run", "user"], more].concat(),
            "user/recipe.toml: expected no such file",
        );
    }
    assert_eq!(std::fs::read_to_string(toy.path("user/recipe.toml")).unwrap(), "user");
    toy.write("user/recipe.toml", &recipe);
    check(&["train", "user/recipe.toml", "--run", "user", "--resume", "--epochs", "1"], "user/recipe.toml");
    assert_eq!(std::fs::read_to_string(toy.path("user/recipe.toml")).unwrap(), recipe);

    let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    run_command(panda(&folder, &["lm", "train.jsonl", "-o", "0.ctm"]));
    toy.write("0.txt", "high\n");
    let checkpoint = "run/best.safetensors";
    let beam = ["--beam", "2"];
    for (option, file, format) in
        [("--lm", "0.ctm", "ctm"), ("--minus-lm", "0.ctm", "ctm"), ("--phrases", "0.txt", "txt")]
    {
        let before = std::fs::read(toy.path(file)).unwrap();
        let evaluate = ["evaluate", checkpoint, "train.jsonl", option, file];
        check(&[&evaluate[..], &beam, &["--hypotheses", file]].concat(), "found the input");
        let transcribe = ["transcribe", checkpoint, "0.wav", option, file];
        check(&[&transcribe[..], &beam, &["--format", format, "--output", "."]].concat(), "found the input");
        assert_eq!(std::fs::read(toy.path(file)).unwrap(), before, "{option}");
    }
    let captions = ["evaluate", checkpoint, "train.jsonl", "--format", "srt", "--output", "captions"];
    check(&[&captions[..], &["--hypotheses", "captions/toy-0.srt"]].concat(), "toy-0.srt");
}

/// Sizes above the limits are errors before any allocation.
#[test]
fn huge_sizes_are_errors() {
    let toy = Toy::new();
    let max = u64::MAX.to_string();
    let plan = ["info", "--hidden", "8", "--classes", "10"];
    let without_frames = ["--batch", &max, "--frames", "0", "--labels", "0"];
    for more in [
        &["--batch", "1000000000000"][..],
        &["--labels", &max],
        &["--frames", &max],
        &["--batch", &max],
        &without_frames,
    ] {
        let (code, _, err) = run_command(panda(&toy.path(""), &[&plan[..], more].concat()));
        assert!(code == Some(2) && err.contains("--batch x (--frames + --labels + 1)"), "{err}");
    }
    for (hidden, classes) in [("0", "10"), ("8", "1"), ("8", max.as_str())] {
        let (code, _, err) =
            run_command(panda(&toy.path(""), &["info", "--hidden", hidden, "--classes", classes]));
        assert!(code == Some(2) && err.contains(": expected a number from"), "{err}");
    }
    for size in ["1000000000000", "9223372036854775807"] {
        toy.recipe(&[("kind = \"words\"", &format!("kind = {{ bpe = {{ size = {size} }} }}"))]);
        let (code, out, err) = run_command(panda(&toy.path(""), &["info", "recipe.toml"]));
        assert!(code == Some(0) && out.contains("tokens: "), "{err}");
    }
}

#[test]
fn invalid_memory_limits_are_errors() {
    let toy = Toy::new();
    toy.write("text.txt", "one two\n");
    for (limit, status) in [("8G", 2), ("lots", 2), ("", 0), ("8GiB", 0)] {
        let mut command = panda(&toy.path(""), &["lm", "text.txt", "-o", "-"]);
        command.env("PANDA_MEMORY", limit);
        let (code, out, err) = run_command(command);
        assert_eq!(code, Some(status), "{limit}: {err}");
        match status {
            0 => assert!(out.starts_with("\\data\\") && out.trim_end().ends_with("\\end\\"), "{out}"),
            _ => assert!(err.contains("PANDA_MEMORY: expected a number of bytes"), "{err}"),
        }
    }
    assert!(!toy.path("-").exists());
}

#[test]
fn panda_machine_limits_instructions_or_is_an_error() {
    let (toy, lines) = (Toy::new(), ["panda", "kernels"]);
    let run = |machine: &str| {
        let mut command = panda(&toy.path(""), &["lm", "text.txt", "-o", "lm.arpa"]);
        command.env("PANDA_MACHINE", machine);
        run_command(command)
    };
    std::fs::write(toy.path("text.txt"), lines.join("\n")).unwrap();
    for machine in ["", "avx2", "portable"] {
        let (code, _, err) = run(machine);
        assert_eq!(code, Some(0), "{machine}: {err}");
    }
    let (code, _, err) = run("sse");
    assert_eq!(code, Some(2));
    assert!(err.contains("PANDA_MACHINE: expected portable, avx2 or avx512, found \"sse\""), "{err}");
}

#[test]
fn a_report_is_a_page_with_audio() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[("epochs = 3", "epochs = 2")]);
    let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml"]));
    assert_eq!(code, Some(0), "{err}");
    let (code, out, err) = run_command(panda(&folder, &["report", "runs/recipe"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("runs/recipe/report.html: "), "{out}");
    let page = std::fs::read_to_string(toy.path("runs/recipe/report.html")).unwrap();
    assert!(page.contains("data:audio/wav") && page.contains("3 speakers of test"));
    let parameters = page.split("<dt>parameters</dt><dd>").nth(1).unwrap().split('<').next().unwrap();
    let (_, info, _) = run_command(panda(&folder, &["info", "recipe.toml"]));
    let total = info.lines().find(|line| line.starts_with("total ")).unwrap();
    assert_eq!(parameters.replace('\u{202f}', ""), total.split_whitespace().last().unwrap());
    // The report is not a file of the run: training resumes, and a new report replaces it.
    let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml", "--resume"]));
    assert_eq!(code, Some(0), "{err}");
    let arguments = ["report", "runs/recipe", "-o", "other.html", "--no-audio", "--worst", "2"];
    let (code, _, err) = run_command(panda(&folder, &arguments));
    assert_eq!(code, Some(0), "{err}");
    let page = std::fs::read_to_string(toy.path("other.html")).unwrap();
    assert!(!page.contains("<audio") && page.matches("<article").count() == 2);
    for (arguments, part) in [
        (["report", "nowhere", "--worst", "2"], "nowhere: expected a run folder"),
        (["report", "runs/recipe", "--recipe", "none/recipe.toml"], "none/recipe.toml: could not read"),
        (
            ["report", "runs/recipe", "-o", "runs/recipe/metrics.csv"],
            "expected an output other than the inputs",
        ),
        (["report", "runs/recipe", "-o", "0.wav"], "expected an output other than the inputs"),
    ] {
        let (code, _, err) = run_command(panda(&folder, &arguments));
        assert!(code == Some(2) && err.contains(part), "{err}");
    }
}
