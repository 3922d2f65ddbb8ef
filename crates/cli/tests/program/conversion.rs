//! Tests of `panda import` and `panda export`.
use model::Checkpoint;
use speech::{Tokenizer, TokenizerKind};

use super::pretrained_models::{Pretrained, RNNT, recipe};
use super::toy::{leftovers, write_wav};
use super::{panda, run_command, shared};

#[test]
fn a_model_is_imported_transcribed_with_and_exported() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.path("");
    let run = |arguments: &[&str]| run_command(panda(&folder, arguments));
    // A checkpoint of a recipe is exported, and imported again.
    let (code, out, err) = run(&["export", "model.safetensors", "--to", "nemo", "out"]);
    assert_eq!((code, out.as_str()), (Some(0), "out/model.nemo\n"), "{err}");
    let (code, out, err) = run(&["import", "out/model.nemo", "-o", "imported.safetensors"]);
    assert_eq!(code, Some(0), "{err}");
    for line in [
        "tokens: 5 and the blank",
        "encoder: FastConformer, 2 layers of width 8, 2 heads, feed-forward 16, with biases",
        "subsampling: 4 frames per row, 4 channels",
        "convolution: 3 taps, batch norm",
        "attention: the whole utterance",
        "predictor: LSTM, 1 layers of width 6",
        "joint: width 6, ReLU",
        "output: RNN-T",
        "to transcribe: panda transcribe imported.safetensors FILE.wav",
    ] {
        assert!(out.lines().any(|found| found == line), "{line}\n{out}");
    }
    let (code, info, err) = run(&["info", "imported.safetensors"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        info.contains("imported from: nemo\n") && info.contains("encoder: FastConformer, 2 layers"),
        "{info}"
    );
    assert!(info.contains("encoder.layers.1.self_attn.pos_bias_u"), "{info}");
    let samples: Vec<i16> = (0..16_000).map(|n| ((n * n) % 2000) as i16).collect();
    write_wav(&pretrained.path("sound.wav"), 16_000, &samples);
    let (code, _, err) = run(&["transcribe", "imported.safetensors", "sound.wav"]);
    assert_eq!(code, Some(0), "{err}");
    // The other layout, and limits of attention.
    let (code, out, err) = run(&["export", "imported.safetensors", "--to", "huggingface", "hf"]);
    assert_eq!(code, Some(0), "{err}");
    let names = [
        "preprocessor_config.json",
        "generation_config.json",
        "tokenizer.model",
        "config.json",
        "model.safetensors",
    ];
    let lines: Vec<String> = names.iter().map(|name| format!("hf/{name}")).collect();
    assert_eq!(out.lines().collect::<Vec<_>>(), lines);
    let (code, out, err) = run(&["import", "hf", "-o", "limited.safetensors", "--attention", "8,2"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("attention: 8 frames before and 2 after\nattention, also trained: the whole utterance"),
        "{out}"
    );
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_folder_without_a_tokenizer_is_a_warning() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let mut checkpoint = Checkpoint::read(&pretrained.path("model.safetensors")).unwrap();
    let words = Tokenizer::train(TokenizerKind::Words, &["a b c d e"]).unwrap();
    assert_eq!(words.size(), checkpoint.tokenizer("model".as_ref()).unwrap().size());
    checkpoint.tokenizer = words.to_json().unwrap();
    checkpoint.recipe = checkpoint.recipe.replace("\"sentencepiece\"", "\"words\"");
    checkpoint.write(&pretrained.path("words.safetensors")).unwrap();
    let export = |name: &str| {
        let arguments = ["export", name, "--to", "huggingface", "hf"];
        let (code, _, err) = run_command(panda(&pretrained.path(""), &arguments));
        assert_eq!(code, Some(0), "{err}");
        err
    };
    assert!(export("words.safetensors").contains("warning: no tokenizer file is written"));
    assert_eq!(export("model.safetensors"), "");
}

#[test]
fn invalid_calls_write_nothing() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.path("");
    let run = |arguments: &[&str]| run_command(panda(&folder, arguments));
    run(&["export", "model.safetensors", "--to", "nemo", "model.nemo"]);
    let archive = std::fs::read(pretrained.path("model.nemo")).unwrap();
    std::fs::write(pretrained.path("cut.nemo"), &archive[..archive.len() / 2]).unwrap();
    for (arguments, part) in [
        (&["import", "model.nemo", "-o", "model.nemo"][..], "found the input"),
        (&["import", "model.nemo", "-o", "none/x.safetensors"], "could not write"),
        (&["import", "cut.nemo", "-o", "x.safetensors"], "cut.nemo: "),
        (&["import", "none.nemo", "-o", "x.safetensors"], "none.nemo: could not read the archive"),
        (
            &["import", "model.nemo", "-o", "x.safetensors", "--attention", "some"],
            "--attention: expected full",
        ),
        (
            &["import", "model.nemo", "-o", "x.safetensors", "--tokenizer", "model.nemo"],
            "model.nemo: tokenizer",
        ),
        (
            &["export", "model.safetensors", "--to", "other", "x"],
            "--to: expected huggingface or nemo, found other",
        ),
        (&["export", "model.safetensors", "--to", "huggingface", "."], "another file than the checkpoint"),
        (
            &["export", "model.nemo", "--to", "nemo", "x"],
            "checkpoint model.nemo: expected a whole safetensors file",
        ),
    ] {
        let (code, _, err) = run(arguments);
        assert!(code == Some(2) && err.starts_with("error: ") && err.contains(part), "{arguments:?}: {err}");
        assert!(!pretrained.path("x.safetensors").exists() && !pretrained.path("x").exists());
    }
    assert_eq!(std::fs::read(pretrained.path("model.nemo")).unwrap(), archive);
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_model_is_quantized() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.path("");
    let run = |arguments: &[&str]| run_command(panda(&folder, arguments));
    let samples: Vec<i16> = (0..16_000).map(|n| ((n * n) % 2000) as i16).collect();
    write_wav(&pretrained.path("sound.wav"), 16_000, &samples);
    for format in ["q8", "bf16"] {
        let (code, out, err) = run(&["quantize", "model.safetensors", "-o", format, "--to", format]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.ends_with(&format!("{format}: checkpoint for recognition\n")), "{out}");
        let (code, info, err) = run(&["info", format]);
        assert_eq!(code, Some(0), "{err}");
        let is_part = |line: &str| line.starts_with("encoder ") && line.contains(&format!(" {format} "));
        assert!(info.lines().any(is_part) && out.lines().any(is_part), "{info}");
        let (code, text, err) = run(&["transcribe", format, "sound.wav"]);
        assert_eq!(code, Some(0), "{err}");
        let loaded = run(&["transcribe", "model.safetensors", "sound.wav", "--encoder-format", format]);
        assert_eq!((code, text), (loaded.0, loaded.1));
        for arguments in [
            &["export", format, "--to", "nemo", "out"][..],
            &["average", "x", format, "model.safetensors"],
            &["quantize", format, "-o", "x"],
        ] {
            let (code, _, err) = run(arguments);
            assert!(code == Some(2) && err.contains("use the file that it read"), "{arguments:?}: {err}");
        }
    }
    let (code, _, err) = run(&["quantize", "model.safetensors", "-o", "model.safetensors"]);
    assert!(code == Some(2) && err.contains("found the input"), "{err}");
    let (code, _, err) = run(&["quantize", "sound.wav", "-o", "x"]);
    assert!(code == Some(2) && err.starts_with("error: checkpoint sound.wav: "), "{err}");
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}

/// Greedy searches on the recordings that the models were trained on.
#[test]
fn quantized_models_of_nemo_have_the_same_words() {
    let (Some(golden), Some(an4)) = (shared("golden/nemo"), shared("data/an4")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let (code, out, err) = run_command(panda(folder.path(), arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        out
    };
    let manifests = ["train", "dev", "test"]
        .map(|split| std::fs::read_to_string(an4.join(format!("{split}.jsonl"))).unwrap())
        .concat();
    let (mut utterances, mut words) = (0, 0);
    for case in [
        "fc_ctc",
        "fc_hybrid_rnnt_ctc",
        "fc_hybrid_tdt_ctc",
        "fc_rnnt",
        "fc_stateless",
        "fc_stream_chunked",
        "fc_stream_regular",
        "fc_tdt",
    ] {
        let text = std::fs::read(golden.join(case).join("case.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let tokenizer = golden.join("tokenizers").join(json["tokenizer"].as_str().unwrap());
        let (model, tokenizer) = (golden.join(case), tokenizer.join("tokenizer.model"));
        let [model, tokenizer] = [model, tokenizer].map(|path| path.display().to_string());
        run(&["import", &model, "--tokenizer", &tokenizer, "-o", "model.safetensors"]);
        run(&["quantize", "model.safetensors", "-o", "q8.safetensors"]);
        let ids = json["utterances"].as_array().unwrap().iter().map(|id| id.as_str().unwrap());
        // Lines of the manifests, with absolute paths.
        let audio = an4.join("audio").display().to_string();
        let lines: Vec<String> = ids
            .map(|id| manifests.lines().find(|line| line.contains(&format!("\"{id}\""))).expect(id))
            .map(|line| line.replace("\"audio/", &format!("\"{audio}/")) + "\n")
            .collect();
        std::fs::write(folder.path().join("golden.jsonl"), lines.concat()).unwrap();
        let file = |line: &String| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["file"].as_str().unwrap().to_owned()
        };
        let recordings: Vec<String> = lines.iter().map(file).collect();
        utterances += recordings.len();
        let transcribe = |model| {
            let arguments: Vec<&str> =
                ["transcribe", model].into_iter().chain(recordings.iter().map(String::as_str)).collect();
            run(&arguments)
        };
        let texts = transcribe("model.safetensors");
        words += texts.split_whitespace().count();
        assert_eq!(transcribe("q8.safetensors"), texts, "{case}");
        // The other commands accept the quantized file, with the same words.
        let [full, quantized] = ["model.safetensors", "q8.safetensors"].map(|model| {
            let mut outputs = vec![run(&["evaluate", model, "golden.jsonl"])];
            if case.starts_with("fc_stream") {
                outputs.push(run(&["transcribe", model, &recordings[0], "--stream", "--pace", "0"]));
            }
            // Recording, channel, start, duration, word, confidence.
            let ctm = run(&["align", model, "golden.jsonl"]);
            let columns = ctm.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            outputs.push(columns.map(|columns| format!("{} {}\n", columns[0], columns[4])).collect());
            outputs
        });
        assert_eq!(quantized, full, "{case}");
    }
    assert!(words >= 3 * utterances, "{words} words");
    assert!(utterances >= 20, "{utterances} recordings");
}
