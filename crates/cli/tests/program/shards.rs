//! Shards of a list, one after another, are the list.
use super::align::{CHECKPOINT, trained};
use super::{finish, panda};

#[test]
fn what_shards_write_is_merged_into_what_one_process_writes() {
    let toy = trained();
    let folder = toy.path("");
    let run = |arguments: &[&str]| finish(panda(&folder, arguments));
    let fine = |arguments: &[&str]| {
        let (code, out, err) = run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        out
    };
    let read = |name: &str| std::fs::read_to_string(toy.path(name)).unwrap();

    let whole = fine(&["evaluate", CHECKPOINT, "train.jsonl", "--hypotheses", "all.jsonl", "--speakers"]);
    fine(&["align", CHECKPOINT, "train.jsonl", "--json", "all.json", "--ctm", "all.ctm"]);
    for shard in ["1", "2", "3", "4"] {
        let name = |ending: &str| format!("{shard}.{ending}");
        let of = format!("{shard}/4");
        fine(&["evaluate", CHECKPOINT, "train.jsonl", "--shard", &of, "--hypotheses", &name("jsonl")]);
        fine(&[
            "align",
            CHECKPOINT,
            "train.jsonl",
            "--shard",
            &of,
            "--json",
            &name("json"),
            "--ctm",
            &name("ctm"),
        ]);
    }
    let merged = |to: &str, ending: &str, more: &[&str]| {
        let parts = ["1", "2", "3", "4"].map(|shard| format!("{shard}.{ending}"));
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        fine(&[&["merge", to][..], &parts, more].concat())
    };
    // The same lines, too, under the name of the manifest.
    assert_eq!(merged("merged.jsonl", "jsonl", &["--manifest", "train.jsonl", "--speakers"]), whole);
    merged("merged.json", "json", &["--manifest", "train.jsonl"]);
    merged("merged.ctm", "ctm", &[]);
    for ending in ["jsonl", "json", "ctm"] {
        assert_eq!(read(&format!("merged.{ending}")), read(&format!("all.{ending}")), "{ending}");
    }

    let refused = |arguments: &[&str], parts: &[&str]| {
        let (code, _, err) = run(arguments);
        assert_eq!(code, Some(2), "{err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{err}");
        assert!(!toy.path("none.jsonl").exists());
    };
    refused(
        &["merge", "none.jsonl", "1.jsonl", "2.jsonl", "1.jsonl"],
        &["1.jsonl", "every utterance once", "toy-0"],
    );
    let manifest = ["--manifest", "train.jsonl"];
    refused(
        &[&["merge", "none.jsonl", "1.jsonl", "3.jsonl"][..], &manifest].concat(),
        &["3.jsonl", "expected toy-1"],
    );
    refused(
        &[&["merge", "none.jsonl", "1.jsonl", "2.jsonl"][..], &manifest].concat(),
        &["2.jsonl", "found no more"],
    );
    refused(&[&["merge", "none.jsonl", "1.ctm"][..], &manifest].concat(), &["1.ctm", "other lines"]);
    refused(&["merge", "none.jsonl", "gone.jsonl"], &["gone.jsonl"]);

    // Parts of several kinds, and parts that are not whole.
    refused(
        &["merge", "none.jsonl", "1.jsonl", "2.json"],
        &["2.json", "hypotheses, as in 1.jsonl", "alignments"],
    );
    refused(&["merge", "none.jsonl", "1.ctm", "2.jsonl"], &["2.jsonl", "CTM, as in 1.ctm", "hypotheses"]);
    refused(&["merge", "none.jsonl", "1.ctm", "1.ctm"], &["1.ctm", "every part once"]);
    refused(&["merge", "none.jsonl", "1.ctm", "--speakers"], &["1.ctm", "--speakers"]);
    for (name, ending) in [("2.jsonl", "jsonl"), ("2.json", "json")] {
        let whole = read(name);
        let cut = format!("cut.{ending}");
        std::fs::write(toy.path(&cut), &whole[..whole.len() - whole.len() / 4]).unwrap();
        refused(&["merge", "none.jsonl", &format!("1.{ending}"), &cut], &[&cut]);
    }
    refused(&["evaluate", CHECKPOINT, "train.jsonl", "--shard", "5/4"], &["I from 1 to N"]);
}
