//! Searches, formats, long recordings and sound that is still arriving, as a user runs them.
use std::io::Write;
use std::process::{Command, Stdio};

use super::align::{CHECKPOINT, trained};
use super::toy::{RATE, write_wav};
use super::{finish, panda};

#[test]
fn every_search_finds_what_is_easy() {
    let toy = trained();
    let folder = toy.path("");
    toy.write("names.txt", "# words\nhigh low\t2\nmiddle\n");
    let lm = ["lm", "train.jsonl", "-o", "toy.arpa", "--order", "2"];
    let (code, _, err) = finish(panda(&folder, &lm));
    assert_eq!(code, Some(0), "{err}");
    for search in [
        &["--beam", "4"][..],
        &["--beam", "3", "--beam-search", "malsd", "--max-symbols", "3"],
        &["--ctc"],
        &["--ctc", "--beam", "4"],
        &["--beam", "4", "--ctc-weight", "0.5"],
        &["--beam", "2", "--beam-search", "malsd", "--ctc-weight", "3", "--lm", "toy.arpa"],
        &["--lm", "toy.arpa", "--lm-weight", "0.2"],
        &[
            "--beam",
            "4",
            "--lm",
            "toy.arpa",
            "--minus-lm",
            "toy.arpa",
            "--minus-lm-weight",
            "0.1",
            "--word-bonus",
            "0.5",
        ],
        &["--phrases", "names.txt", "--beam", "2"],
        &["--confidence", "renyi-exp", "--confidence-exponent", "0.33", "--word-confidence", "product"],
    ] {
        let run = |command: &str, file: &str| {
            let (code, out, err) = finish(panda(&folder, &[&[command, CHECKPOINT, file], search].concat()));
            assert_eq!(code, Some(0), "{search:?}: {err}");
            out
        };
        assert_eq!(run("transcribe", "5.wav"), "5.wav: high middle low low\n", "{search:?}");
        let found = run("evaluate", "train.jsonl");
        assert!(found.contains("WER   0.00 %"), "{search:?}: {found}");
    }
}

#[test]
fn the_best_texts_are_told() {
    let toy = trained();
    let folder = toy.path("");
    for search in [&["--beam", "4"][..], &["--ctc", "--beam", "4"], &["--beam", "4", "--ctc-weight", "0.5"]] {
        let run = |arguments: &[&str]| {
            let (code, out, err) = finish(panda(&folder, &[arguments, search].concat()));
            assert_eq!(code, Some(0), "{search:?}: {err}");
            out
        };
        let out = run(&["transcribe", CHECKPOINT, "5.wav", "--format", "json", "--nbest", "3"]);
        let line: serde_json::Value = serde_json::from_str(&out).unwrap();
        let nbest = line["nbest"].as_array().unwrap();
        assert_eq!(nbest.len(), 3, "{search:?}: {out}");
        assert_eq!((&nbest[0]["text"], &line["text"]), (&line["text"], &"high middle low low".into()));
        assert!(nbest[0]["score"].as_f64() >= nbest[1]["score"].as_f64());
        let out = run(&["transcribe", CHECKPOINT, "5.wav", "--format", "json"]);
        assert!(!out.contains("nbest"), "{out}");

        let rates = run(&["evaluate", CHECKPOINT, "train.jsonl", "--nbest", "3"]);
        assert!(rates.lines().last().unwrap().starts_with("train best of n-best"), "{rates}");
        // Shards have them too.
        let parts = ["--shard 1/2", "--shard 2/2"].map(|shard| {
            let name = format!("{}.jsonl", &shard[8..9]);
            let (shard, part) = shard.split_once(' ').unwrap();
            let more = ["--nbest", "3", shard, part, "--hypotheses", &name];
            run(&[&["evaluate", CHECKPOINT, "train.jsonl"][..], &more].concat());
            name
        });
        let (code, merged, err) = finish(panda(&folder, &["merge", "train-all.jsonl", &parts[0], &parts[1]]));
        let last = |text: &str| text.lines().last().unwrap().split_once("WER").unwrap().1.to_owned();
        assert!(code == Some(0) && merged.contains("best of n-best"), "{merged}{err}");
        assert_eq!(last(&merged), last(&rates));
    }
}

#[test]
fn searches_that_cannot_be_are_named() {
    let toy = trained();
    let folder = toy.path("");
    toy.write("broken.arpa", "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3 low\nhigh\n\\end\\\n");
    toy.write("foreign.arpa", "\\data\\\nngram 1=1\n\n\\1-grams:\n-0.3 nobody\n\\end\\\n");
    std::fs::write(toy.path("latin.txt"), b"high\nl\xf6w\n").unwrap();
    toy.write("word-score.txt", "# words\nhigh\tmuch\n");
    toy.write("infinite.txt", "high\n\nlow\tinf\n");
    toy.write("large.txt", "high low\t1e12\n");
    toy.write("score-only.txt", "high\n\t2\n");
    for (arguments, parts) in [
        (&["--beam", "0"][..], &["--beam: expected a number of hypotheses, from 1 to 10000, found 0"][..]),
        (&["--max-symbols", "0"], &["--max-symbols: expected a number of labels, from 1 to 1000, found 0"]),
        (&["--beam", "2", "--temperature", "0"], &["temperature", "found 0"]),
        (&["--ctc-weight", "0.5"], &["--ctc-weight: expected a beam search", "found a greedy one"]),
        (
            &["--ctc", "--ctc-weight", "0.5"],
            &["--ctc-weight: expected a beam search", "found a search by CTC"],
        ),
        (&["--blank-penalty", "1"], &["--blank-penalty: expected a beam search"]),
        (&["--temperature", "2"], &["--temperature: expected a beam search"]),
        (&["--by-sum"], &["--by-sum: expected a beam search"]),
        (
            &["--beam", "2", "--max-symbols", "3"],
            &["--max-symbols: expected a greedy search or --beam-search malsd"],
        ),
        (&["--ctc", "--max-symbols", "3"], &["--max-symbols: expected", "found a search by CTC"]),
        (&["--beam", "2", "--confidence", "max-prob"], &["--confidence: expected a greedy search"]),
        (&["--ctc", "--confidence-exponent", "2"], &["--confidence-exponent: expected a greedy search"]),
        (&["--nbest", "3"], &["--nbest: expected a beam search"]),
        (&["--beam", "3", "--nbest", "0"], &["--nbest: expected a number of texts, at least 1, found 0"]),
        (
            &["--ctc", "--beam", "2", "--nbest", "0"],
            &["--nbest: expected a number of texts, at least 1, found 0"],
        ),
        (&["--beam", "2", "--ctc-weight=-1"], &["--ctc-weight: expected a number from 0 to 1000, found -1"]),
        (
            &["--beam", "2", "--ctc-weight", "nan"],
            &["--ctc-weight: expected a number from 0 to 1000, found nan"],
        ),
        (&["--internal-lm", "0.3"], &["internal_lm", "no internal language model"]),
        (&["--lm", "nowhere.arpa"], &["nowhere.arpa: could not read it"]),
        (&["--lm", "broken.arpa"], &["broken.arpa", "line 6"]),
        (&["--lm", "foreign.arpa"], &["foreign.arpa", "expected"]),
        (&["--lm-weight", "nan", "--lm", "toy.arpa"], &["weight"]),
        (&["--phrases", "latin.txt"], &["latin.txt: phrases, line 2: expected UTF-8"]),
        (
            &["--phrases", "word-score.txt"],
            &["word-score.txt: phrases, line 2: expected a finite score", "much"],
        ),
        (&["--phrases", "infinite.txt"], &["infinite.txt: phrases, line 3: expected a finite score", "inf"]),
        (&["--phrases", "large.txt"], &["large.txt: phrases, line 1: expected a finite score"]),
        (
            &["--phrases", "score-only.txt"],
            &["score-only.txt: phrases, line 2: expected a phrase, found none"],
        ),
        (&["--beam-search", "wide"], &["expected one of modified, malsd, alsd, maes"]),
        (&["--confidence", "gut"], &["expected one of max-prob"]),
        (
            &["--confidence-exponent", "0"],
            &["--confidence-exponent: expected a number above 0, at most 10, found 0"],
        ),
        (&["--beam-search", "alsd"], &["ALSD", "labels that move on by a frame"]),
        (&["--stream", "--beam", "2", "--nbest", "2"], &["--nbest: expected recordings as a whole"]),
        (&["--stream", "--latest", "nan"], &["--latest: expected a number from 0"]),
        (
            &["--ctc", "--nbest", "3"],
            &["--nbest: expected a beam search (--beam 2 or more), found a search by CTC"],
        ),
        (&["--stream", "--ctc"], &["--ctc: expected recordings as a whole"]),
        (
            &["--stream", "--beam", "2", "--beam-search", "malsd"],
            &["--beam-search malsd: expected recordings as a whole"],
        ),
        (&["--stream", "--chunk", "0"], &["--chunk: expected a number from 1 to 60000, found 0"]),
        (&["--stream", "--pace=-1"], &["--pace: expected a number from 0.001 to 1000000, or 0, found -1"]),
        (&["--stream", "--pace", "1e-20"], &["--pace: expected"]),
        (&["--long", "nan"], &["--long: expected"]),
        (&["--beam", "20000"], &["--beam: expected"]),
        (&["-"], &["-: expected standard input alone"]),
        (&["--stream", "--format", "srt"], &["(--stream, or -): expected txt, json or ctm"]),
        (&["--stream", "--output", "texts"], &["(--stream, or -): expected txt, json or ctm"]),
        (&["--format", "doc"], &["expected one of txt, json, ctm, srt, vtt"]),
        (&["--format", "srt", "1.wav"], &["srt: expected one recording, or a folder"]),
        (&["--output", "texts", "./0.wav"], &["texts/0.txt: expected one recording of this name"]),
        (&["--long", "0.5", "--window", "2", "--overlap", "2", "3.wav"], &["overlap: expected"]),
    ] {
        let _ = finish(panda(&folder, &["lm", "train.jsonl", "-o", "toy.arpa"]));
        let (code, out, err) =
            finish(panda(&folder, &[&["transcribe", CHECKPOINT, "0.wav"], arguments].concat()));
        assert_eq!(code, Some(2), "{arguments:?}: {out}{err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{arguments:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

#[test]
fn texts_are_written_in_every_format() {
    let toy = trained();
    let folder = toy.path("");
    let run = |arguments: &[&str]| {
        let (code, out, err) = finish(panda(&folder, &[&["transcribe", CHECKPOINT][..], arguments].concat()));
        assert_eq!(code, Some(0), "{err}");
        out
    };
    let out = run(&["1.wav", "0.wav", "--format", "ctm"]);
    let words: Vec<&str> = out.lines().map(|line| line.split(' ').nth(4).unwrap()).collect();
    assert_eq!(words, ["high", "low", "low"], "{out}");
    assert!(out.starts_with("1.wav 1 0."), "{out}");
    let out = run(&["1.wav", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&json["id"], &json["text"], &json["words"][1]["text"]),
        (&"1.wav".into(), &"high low".into(), &"low".into())
    );
    let confidence = json["words"][0]["confidence"].as_f64().unwrap();
    assert!((0.2..=1.0).contains(&confidence), "{out}");
    assert!(run(&["1.wav", "--format", "vtt"]).starts_with("WEBVTT\n\n00:00:00."));
    assert_eq!(run(&["1.wav", "0.wav", "--format", "srt", "--output", "texts"]), "");
    let written = std::fs::read_to_string(toy.path("texts/1.srt")).unwrap();
    assert!(written.starts_with("1\n00:00:0") && written.contains("\nhigh low\n"), "{written}");
    assert!(toy.path("texts/0.srt").exists());

    let evaluate = |format: &str, output: &str| {
        let arguments = ["evaluate", CHECKPOINT, "train.jsonl", "--format", format, "--output", output];
        let (code, _, err) = finish(panda(&folder, &arguments));
        assert_eq!(code, Some(0), "{err}");
    };
    evaluate("ctm", "heard.ctm");
    let ctm = std::fs::read_to_string(toy.path("heard.ctm")).unwrap();
    assert!(ctm.starts_with("toy-0 1 ") && ctm.lines().count() == 14, "{ctm}");
    evaluate("vtt", "captions");
    assert!(toy.path("captions/toy-5.vtt").exists());
}

/// Raw samples of recordings of the toy corpus, one after the other.
fn raw(toy: &super::toy::Toy, names: &[&str]) -> Vec<i16> {
    let samples = |name: &&str| {
        hound::WavReader::open(toy.path(name))
            .unwrap()
            .into_samples::<i16>()
            .map(|x| x.unwrap())
            .collect::<Vec<_>>()
    };
    names.iter().flat_map(samples).collect()
}

#[test]
fn long_recordings_go_piece_by_piece() {
    let toy = trained();
    let folder = toy.path("");
    let once = raw(&toy, &["1.wav", "0.wav", "2.wav"]);
    write_wav(&toy.path("once.wav"), RATE, &once);
    let text = |arguments: &[&str]| {
        let (code, out, err) =
            finish(panda(&folder, &[&["transcribe", CHECKPOINT, "once.wav"], arguments].concat()));
        assert_eq!(code, Some(0), "{err}");
        out
    };
    let whole = text(&[]);
    assert!(whole.split(' ').count() > 2, "{whole}");
    // One window that is long enough is the whole.
    assert_eq!(text(&["--long", "0.5"]), whole);
    assert_eq!(text(&["--long", "0.5", "--beam", "3"]), text(&["--beam", "3"]));
    assert!(text(&["--long", "0.5", "--window", "1", "--overlap", "0.5"]).split(' ').count() > 2);
}

#[test]
fn standard_input_is_heard_and_half_a_sample_is_named() {
    let toy = trained();
    let bytes: Vec<u8> = raw(&toy, &["5.wav"]).iter().flat_map(|x| x.to_le_bytes()).collect();
    let hear = |bytes: &[u8], arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_panda"));
        command.current_dir(toy.path("")).args(["transcribe", CHECKPOINT, "-"]).args(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // It may leave before it has read everything.
        bytes.chunks(777).for_each(|piece| drop(input.write_all(piece)));
        drop(input);
        let out = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (code, out, err) = hear(&bytes, &[]);
    assert!(code == Some(0) && out.contains("] high middle low low\n"), "{out}{err}");
    assert!(err.contains("words come 20 s late") && err.contains("a chunk of 200 ms took"), "{err}");
    let (code, out, err) = hear(&bytes, &["--beam", "4"]);
    assert!(code == Some(0) && out.contains("] high middle low low\n"), "{out}{err}");
    let (_, out, _) = hear(&bytes, &["--format", "json"]);
    let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!((&last["endpoint"], &last["partial"]), (&true.into(), &"".into()));
    // What was heard before is not lost.
    let (code, out, err) = hear(&bytes[..bytes.len() - 1], &[]);
    assert!(code == Some(2) && err.contains("sample") && out.contains("high middle"), "{out}{err}");
    let wav = std::fs::read(toy.path("5.wav")).unwrap();
    let (code, out, err) = hear(&wav, &[]);
    assert!(code == Some(2) && out.is_empty() && err.contains("found a WAV file"), "{out}{err}");
    for (begins, name) in
        [(&b"RF64"[..], "a WAV file"), (b"OggS", "an Ogg file"), (b"ID3\x04", "an MP3 file")]
    {
        let (code, out, err) = hear(&[begins, &bytes].concat(), &[]);
        assert!(code == Some(2) && out.is_empty() && err.contains(name), "{out}{err}");
    }
    for arguments in [&["--channel", "2"][..], &["--resample"]] {
        let (code, _, err) = hear(&bytes, arguments);
        assert!(code == Some(2) && err.contains(&format!("{}: expected a recording", arguments[0])), "{err}");
    }
    let (code, out, _) = hear(&[], &[]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
}

#[test]
fn help_states_what_a_phrase_score_means() {
    for command in ["transcribe", "evaluate"] {
        let (code, out, err) = finish(panda(std::path::Path::new("."), &[command, "--help"]));
        assert_eq!(code, Some(0), "{err}");
        let help = out.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in
            ["A phrase matches whole words", "of the whole phrase, spread over its tokens [default: 1]"]
        {
            assert!(help.contains(part), "{command}: {help}");
        }
    }
}

/// One phrase that the model cannot spell never ends the whole: it is named, and the others count.
#[test]
fn phrases_that_the_model_cannot_spell_are_skipped_and_named() {
    let toy = trained();
    let folder = toy.path("");
    toy.write("some.txt", "high\nzebra\nlow middle\t2\nlow gnu\t-3\n");
    let list: String = (0..50).map(|number| format!("absent{number}\n")).collect();
    toy.write("none.txt", &list);
    for (list, expected) in [
        ("some.txt", &["some.txt: 2 of 4 phrases are skipped", "lines 2, 4;", "line 2", "\"zebra\""][..]),
        ("none.txt", &["none.txt: 50 of 50 phrases are skipped", " 19, 20 and others; line 1"]),
    ] {
        for command in [&["transcribe", CHECKPOINT, "5.wav"], &["evaluate", CHECKPOINT, "train.jsonl"]] {
            let (_, plain, _) = finish(panda(&folder, &[command, &["--beam", "2"][..]].concat()));
            let arguments = [command, &["--beam", "2", "--phrases", list][..]].concat();
            let (code, out, err) = finish(panda(&folder, &arguments));
            assert_eq!((code, &out), (Some(0), &plain), "{err}");
            let warnings: Vec<&str> = err.lines().filter(|line| line.contains("phrases")).collect();
            assert!(warnings.len() == 1 && expected.iter().all(|part| warnings[0].contains(part)), "{err}");
        }
    }
}
