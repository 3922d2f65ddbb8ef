//! Tests of sharded runs (`--shard I/N`) and `panda merge`.
use super::align::{CHECKPOINT, trained_corpus};
use super::{panda, run_command};

#[test]
fn merged_shards_equal_an_unsharded_run() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run = |arguments: &[&str]| run_command(panda(&folder, arguments));
    let succeed = |arguments: &[&str]| {
        let (code, out, err) = run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        out
    };
    let read = |name: &str| std::fs::read_to_string(toy.path(name)).unwrap();

    let unsharded =
        succeed(&["evaluate", CHECKPOINT, "train.jsonl", "--hypotheses", "all.jsonl", "--speakers"]);
    succeed(&["align", CHECKPOINT, "train.jsonl", "--json", "all.json", "--ctm", "all.ctm"]);
    for shard in ["1", "2", "3", "4"] {
        let name = |extension: &str| format!("{shard}.{extension}");
        let part = format!("{shard}/4");
        succeed(&["evaluate", CHECKPOINT, "train.jsonl", "--shard", &part, "--hypotheses", &name("jsonl")]);
        succeed(&[
            "align",
            CHECKPOINT,
            "train.jsonl",
            "--shard",
            &part,
            "--json",
            &name("json"),
            "--ctm",
            &name("ctm"),
        ]);
    }
    let merged = |to: &str, extension: &str, more: &[&str]| {
        let parts = ["1", "2", "3", "4"].map(|shard| format!("{shard}.{extension}"));
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        succeed(&[&["merge", to][..], &parts, more].concat())
    };
    // The printed rates are the same, with the name of the manifest.
    assert_eq!(merged("merged.jsonl", "jsonl", &["--manifest", "train.jsonl", "--speakers"]), unsharded);
    merged("merged.json", "json", &["--manifest", "train.jsonl"]);
    merged("merged.ctm", "ctm", &[]);
    for extension in ["jsonl", "json", "ctm"] {
        assert_eq!(read(&format!("merged.{extension}")), read(&format!("all.{extension}")), "{extension}");
    }

    let expect_error = |arguments: &[&str], parts: &[&str]| {
        let (code, _, err) = run(arguments);
        assert_eq!(code, Some(2), "{err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{err}");
        assert!(!toy.path("none.jsonl").exists());
    };
    expect_error(
        &["merge", "none.jsonl", "1.jsonl", "2.jsonl", "1.jsonl"],
        &["1.jsonl", "every utterance once", "toy-0"],
    );
    let manifest = ["--manifest", "train.jsonl"];
    expect_error(
        &[&["merge", "none.jsonl", "1.jsonl", "3.jsonl"][..], &manifest].concat(),
        &["3.jsonl", "expected toy-1"],
    );
    expect_error(
        &[&["merge", "none.jsonl", "1.jsonl", "2.jsonl"][..], &manifest].concat(),
        &["2.jsonl", "found no more"],
    );
    expect_error(&[&["merge", "none.jsonl", "1.ctm"][..], &manifest].concat(), &["1.ctm", "other lines"]);
    expect_error(&["merge", "none.jsonl", "gone.jsonl"], &["gone.jsonl"]);

    // Parts of several kinds, and truncated parts.
    expect_error(
        &["merge", "none.jsonl", "1.jsonl", "2.json"],
        &["2.json", "hypotheses, as in 1.jsonl", "alignments"],
    );
    expect_error(
        &["merge", "none.jsonl", "1.ctm", "2.jsonl"],
        &["2.jsonl", "CTM, as in 1.ctm", "hypotheses"],
    );
    expect_error(&["merge", "none.jsonl", "1.ctm", "1.ctm"], &["1.ctm", "every part once"]);
    expect_error(&["merge", "none.jsonl", "1.ctm", "--speakers"], &["1.ctm", "--speakers"]);
    for (name, extension) in [("2.jsonl", "jsonl"), ("2.json", "json")] {
        let text = read(name);
        let truncated = format!("truncated.{extension}");
        std::fs::write(toy.path(&truncated), &text[..text.len() - text.len() / 4]).unwrap();
        expect_error(&["merge", "none.jsonl", &format!("1.{extension}"), &truncated], &[&truncated]);
    }
    expect_error(&["evaluate", CHECKPOINT, "train.jsonl", "--shard", "5/4"], &["I from 1 to N"]);
}
