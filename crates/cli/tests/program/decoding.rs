//! Tests of decoding by `panda`: searches, formats, long recordings, streaming.
use std::io::Write;
use std::process::{Command, Stdio};

use super::align::{CHECKPOINT, trained_corpus};
use super::toy::{RATE, write_wav};
use super::{panda, run_command};

#[test]
fn every_search_recognizes_the_toy_words() {
    let toy = trained_corpus();
    let folder = toy.path("");
    toy.write("names.txt", "# words\nhigh low\t2\nmiddle\n");
    let lm = ["lm", "train.jsonl", "-o", "toy.arpa", "--order", "2"];
    let (code, _, err) = run_command(panda(&folder, &lm));
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
            let (code, out, err) =
                run_command(panda(&folder, &[&[command, CHECKPOINT, file], search].concat()));
            assert_eq!(code, Some(0), "{search:?}: {err}");
            out
        };
        assert_eq!(run("transcribe", "5.wav"), "5.wav: high middle low low\n", "{search:?}");
        let rates = run("evaluate", "train.jsonl");
        assert!(rates.contains("WER   0.00 %"), "{search:?}: {rates}");
    }
}

#[test]
fn forbidden_tokens_are_never_emitted() {
    let toy = trained_corpus();
    let folder = toy.path("");
    toy.write("low.txt", "low\n");
    toy.write("characters.txt", "high middle\n");
    toy.write("names.txt", "low low\t9\n");
    for search in [
        &[][..],
        &["--phrases", "names.txt"],
        &["--beam", "4"],
        &["--beam", "3", "--beam-search", "malsd"],
        &["--beam", "4", "--ctc-weight", "0.5"],
        &["--ctc"],
        &["--ctc", "--beam", "4"],
        &["--stream", "--pace", "0"],
    ] {
        let run = |lock: &[&str]| {
            let arguments =
                [&["transcribe", CHECKPOINT, "5.wav", "--silence", "0"][..], search, lock].concat();
            let (code, out, err) = run_command(panda(&folder, &arguments));
            assert_eq!(code, Some(0), "{arguments:?}: {err}");
            out
        };
        // All tokens are Latin.
        let plain = run(&[]);
        assert!(plain.contains("high middle low low"), "{search:?}: {plain}");
        assert_eq!(run(&["--allow-script", "latin"]), plain, "{search:?}");
        assert_eq!(run(&["--allow-script", "greek,Latn"]), plain, "{search:?}");
        for lock in [["--forbid-tokens", "low.txt"], ["--allow-characters", "characters.txt"]] {
            let text = run(&lock);
            assert!(text.contains("high middle") && !text.contains("low"), "{search:?} {lock:?}: {text}");
        }
    }
    // Errors name the file or the value.
    toy.write("unknown.txt", "low\nlowest\n");
    toy.write("all.txt", "low\nmiddle\nhigh\n");
    toy.write("empty.txt", " \n\n");
    for (lock, part) in [
        (["--allow-script", "elvish"], "--allow-script: script: expected the name of a Unicode script"),
        (
            ["--allow-script", "greek"],
            "--allow-script, --allow-characters, --forbid-tokens: allowed tokens: expected at least one of the \
             model's 3 tokens, found none",
        ),
        (["--allow-characters", "empty.txt"], "empty.txt: expected at least one character, found none"),
        (["--allow-characters", "none.txt"], "none.txt: could not read the file"),
        (["--forbid-tokens", "unknown.txt"], "found \"lowest\""),
        (["--forbid-tokens", "all.txt"], "expected at least one of the model's 3 tokens, found none"),
    ] {
        let arguments = [&["transcribe", CHECKPOINT, "5.wav"][..], &lock].concat();
        let (code, _, err) = run_command(panda(&folder, &arguments));
        assert!(code == Some(2) && err.contains(part), "{lock:?}: {code:?} {err}");
    }
}

#[test]
fn n_best_lists_are_written() {
    let toy = trained_corpus();
    let folder = toy.path("");
    for search in [&["--beam", "4"][..], &["--ctc", "--beam", "4"], &["--beam", "4", "--ctc-weight", "0.5"]] {
        let run = |arguments: &[&str]| {
            let (code, out, err) = run_command(panda(&folder, &[arguments, search].concat()));
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
        // Shards write n-best lists too.
        let parts = ["--shard 1/2", "--shard 2/2"].map(|shard| {
            let name = format!("{}.jsonl", &shard[8..9]);
            let (shard, part) = shard.split_once(' ').unwrap();
            let options = ["--nbest", "3", shard, part, "--hypotheses", &name];
            run(&[&["evaluate", CHECKPOINT, "train.jsonl"][..], &options].concat());
            name
        });
        let (code, merged, err) =
            run_command(panda(&folder, &["merge", "train-all.jsonl", &parts[0], &parts[1]]));
        let last = |text: &str| text.lines().last().unwrap().split_once("WER").unwrap().1.to_owned();
        assert!(code == Some(0) && merged.contains("best of n-best"), "{merged}{err}");
        assert_eq!(last(&merged), last(&rates));
    }
}

#[test]
fn unsupported_search_options_are_errors() {
    let toy = trained_corpus();
    let folder = toy.path("");
    // Invalid language models and lists of phrases.
    toy.write("broken.arpa", "\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3 low\nhigh\n\\end\\\n");
    toy.write("foreign.arpa", "\\data\\\nngram 1=1\n\n\\1-grams:\n-0.3 foreign\n\\end\\\n");
    std::fs::write(toy.path("latin.txt"), b"high\nl\xf6w\n").unwrap();
    toy.write("word-score.txt", "# words\nhigh\tmuch\n");
    toy.write("infinite.txt", "high\n\nlow\tinf\n");
    toy.write("large.txt", "high low\t1e12\n");
    toy.write("score-only.txt", "high\n\t2\n");
    // Arguments, and parts of their error message.
    for (arguments, parts) in [
        (&["--beam", "0"][..], &["--beam: expected a number of hypotheses, from 1 to 10000, found 0"][..]),
        (&["--max-symbols", "0"], &["--max-symbols: expected a number of labels, from 1 to 1000, found 0"]),
        (&["--beam", "2", "--temperature", "0"], &["temperature", "found 0"]),
        (&["--ctc-weight", "0.5"], &["--ctc-weight: expected a beam search", "found greedy search"]),
        (
            &["--ctc", "--ctc-weight", "0.5"],
            &["--ctc-weight: expected a beam search", "found a search with the CTC head"],
        ),
        (&["--blank-penalty", "1"], &["--blank-penalty: expected a beam search"]),
        (&["--temperature", "2"], &["--temperature: expected a beam search"]),
        (&["--by-sum"], &["--by-sum: expected a beam search"]),
        (
            &["--beam", "2", "--max-symbols", "3"],
            &["--max-symbols: expected greedy search or the beam search malsd, found another beam search"],
        ),
        (&["--ctc", "--max-symbols", "3"], &["--max-symbols: expected", "found a search with the CTC head"]),
        (&["--beam", "2", "--confidence", "max-prob"], &["--confidence: expected greedy search"]),
        (&["--ctc", "--confidence-exponent", "2"], &["--confidence-exponent: expected greedy search"]),
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
        // Language models and phrases.
        (&["--internal-lm", "0.3"], &["internal_lm", "no internal language model"]),
        (&["--lm", "nowhere.arpa"], &["nowhere.arpa: could not read the file"]),
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
        // Names and numbers.
        (&["--beam-search", "wide"], &["expected one of modified, malsd, alsd, maes"]),
        (&["--confidence", "gut"], &["expected one of max-prob"]),
        (
            &["--confidence-exponent", "0"],
            &["--confidence-exponent: expected a number above 0, at most 10, found 0"],
        ),
        (&["--beam-search", "alsd"], &["ALSD", "labels that advance by a frame"]),
        // Streaming, long recordings and formats.
        (&["--stream", "--beam", "2", "--nbest", "2"], &["--nbest: expected whole recordings"]),
        (&["--stream", "--latest", "nan"], &["--latest: expected a number from 0"]),
        (
            &["--ctc", "--nbest", "3"],
            &["--nbest: expected a beam search (a beam of 2 or more), found a search with the CTC head"],
        ),
        (&["--stream", "--ctc"], &["--ctc: expected whole recordings"]),
        (
            &["--stream", "--beam", "2", "--beam-search", "malsd"],
            &["--beam-search malsd: expected whole recordings"],
        ),
        (&["--stream", "--chunk", "0"], &["--chunk: expected a number from 1 to 60000, found 0"]),
        (&["--stream", "--pace=-1"], &["--pace: expected a number from 0.001 to 1000000, or 0, found -1"]),
        (&["--stream", "--pace", "1e-20"], &["--pace: expected"]),
        (&["--long", "nan"], &["--long: expected"]),
        (&["--beam", "20000"], &["--beam: expected"]),
        (&["-"], &["-: expected only standard input"]),
        (&["--stream", "--format", "srt"], &["(--stream, or -): expected txt, json or ctm"]),
        (&["--stream", "--output", "texts"], &["(--stream, or -): expected txt, json or ctm"]),
        (&["--format", "doc"], &["expected one of txt, json, ctm, srt, vtt"]),
        (&["--format", "srt", "1.wav"], &["srt: expected one recording, or a folder"]),
        (&["--output", "texts", "./0.wav"], &["texts/0.txt: expected one recording of this name"]),
        (&["--long", "0.5", "--window", "2", "--overlap", "2", "3.wav"], &["overlap: expected"]),
    ] {
        let _ = run_command(panda(&folder, &["lm", "train.jsonl", "-o", "toy.arpa"]));
        let (code, out, err) =
            run_command(panda(&folder, &[&["transcribe", CHECKPOINT, "0.wav"], arguments].concat()));
        assert_eq!(code, Some(2), "{arguments:?}: {out}{err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{arguments:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

#[test]
fn texts_are_written_in_every_format() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run = |arguments: &[&str]| {
        let (code, out, err) =
            run_command(panda(&folder, &[&["transcribe", CHECKPOINT][..], arguments].concat()));
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
        let (code, _, err) = run_command(panda(&folder, &arguments));
        assert_eq!(code, Some(0), "{err}");
    };
    evaluate("ctm", "hypotheses.ctm");
    let ctm = std::fs::read_to_string(toy.path("hypotheses.ctm")).unwrap();
    assert!(ctm.starts_with("toy-0 1 ") && ctm.lines().count() == 14, "{ctm}");
    evaluate("vtt", "captions");
    assert!(toy.path("captions/toy-5.vtt").exists());
}

/// Raw samples of recordings of the toy corpus, one after the other.
fn raw_samples(toy: &super::toy::Toy, names: &[&str]) -> Vec<i16> {
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
fn long_recordings_are_transcribed_in_chunks() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let joined = raw_samples(&toy, &["1.wav", "0.wav", "2.wav"]);
    write_wav(&toy.path("joined.wav"), RATE, &joined);
    let text = |arguments: &[&str]| {
        let (code, out, err) =
            run_command(panda(&folder, &[&["transcribe", CHECKPOINT, "joined.wav"], arguments].concat()));
        assert_eq!(code, Some(0), "{err}");
        out
    };
    let offline = text(&[]);
    assert!(offline.split(' ').count() > 2, "{offline}");
    // A window longer than the recording gives the text of offline decoding.
    assert_eq!(text(&["--long", "0.5"]), offline);
    assert_eq!(text(&["--long", "0.5", "--beam", "3"]), text(&["--beam", "3"]));
    assert!(text(&["--long", "0.5", "--window", "1", "--overlap", "0.5"]).split(' ').count() > 2);
}

#[test]
fn standard_input_is_transcribed_and_half_a_sample_is_an_error() {
    let toy = trained_corpus();
    let bytes: Vec<u8> = raw_samples(&toy, &["5.wav"]).iter().flat_map(|x| x.to_le_bytes()).collect();
    let transcribe = |bytes: &[u8], arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_panda"));
        command.current_dir(toy.path("")).args(["transcribe", CHECKPOINT, "-"]).args(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // The program may exit before it has read everything.
        bytes.chunks(777).for_each(|chunk| drop(input.write_all(chunk)));
        drop(input);
        let out = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (code, out, err) = transcribe(&bytes, &[]);
    assert!(code == Some(0) && out.contains("] high middle low low\n"), "{out}{err}");
    assert!(err.contains("words arrive 20 s late") && err.contains("a chunk of 200 ms took"), "{err}");
    let (code, out, err) = transcribe(&bytes, &["--beam", "4"]);
    assert!(code == Some(0) && out.contains("] high middle low low\n"), "{out}{err}");
    let (_, out, _) = transcribe(&bytes, &["--format", "json"]);
    let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!((&last["endpoint"], &last["partial"]), (&true.into(), &"".into()));
    // The words before an error are printed.
    let (code, out, err) = transcribe(&bytes[..bytes.len() - 1], &[]);
    assert!(code == Some(2) && err.contains("sample") && out.contains("high middle"), "{out}{err}");
    let wav = std::fs::read(toy.path("5.wav")).unwrap();
    let (code, out, err) = transcribe(&wav, &[]);
    assert!(code == Some(2) && out.is_empty() && err.contains("found a WAV file"), "{out}{err}");
    for (signature, name) in
        [(&b"RF64"[..], "a WAV file"), (b"OggS", "an Ogg file"), (b"ID3\x04", "an MP3 file")]
    {
        let (code, out, err) = transcribe(&[signature, &bytes].concat(), &[]);
        assert!(code == Some(2) && out.is_empty() && err.contains(name), "{out}{err}");
    }
    for arguments in [&["--channel", "2"][..], &["--resample"]] {
        let (code, _, err) = transcribe(&bytes, arguments);
        assert!(
            code == Some(2) && err.contains(&format!("{}: expected an audio file", arguments[0])),
            "{err}"
        );
    }
    let (code, out, _) = transcribe(&[], &[]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
}

#[test]
fn help_states_what_a_phrase_score_means() {
    for command in ["transcribe", "evaluate"] {
        let (code, out, err) = run_command(panda(std::path::Path::new("."), &[command, "--help"]));
        assert_eq!(code, Some(0), "{err}");
        let help = out.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["a phrase matches whole words", "spread over the tokens of the phrase [default: 1]"] {
            assert!(help.contains(part), "{command}: {help}");
        }
    }
}

/// Phrases that the tokenizer cannot encode are skipped with a warning.
#[test]
fn phrases_that_cannot_be_encoded_are_skipped_with_a_warning() {
    let toy = trained_corpus();
    let folder = toy.path("");
    toy.write("two.txt", "high\nzebra\nlow middle\t2\nlow gnu\t-3\n");
    let list: String = (0..50).map(|number| format!("absent{number}\n")).collect();
    toy.write("none.txt", &list);
    for (list, expected) in [
        ("two.txt", &["two.txt: 2 of 4 phrases are skipped", "lines 2, 4;", "line 2", "\"zebra\""][..]),
        ("none.txt", &["none.txt: 50 of 50 phrases are skipped", " 19, 20 and others; line 1"]),
    ] {
        for command in [&["transcribe", CHECKPOINT, "5.wav"], &["evaluate", CHECKPOINT, "train.jsonl"]] {
            let (_, plain, _) = run_command(panda(&folder, &[command, &["--beam", "2"][..]].concat()));
            let arguments = [command, &["--beam", "2", "--phrases", list][..]].concat();
            let (code, out, err) = run_command(panda(&folder, &arguments));
            assert_eq!((code, &out), (Some(0), &plain), "{err}");
            let warnings: Vec<&str> = err.lines().filter(|line| line.contains("phrases")).collect();
            assert!(warnings.len() == 1 && expected.iter().all(|part| warnings[0].contains(part)), "{err}");
        }
    }
}
