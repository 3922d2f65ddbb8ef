//! Tests of import and export with small models of random weights.
use half::{bf16, f16};
use model::encoders::{AttentionLimits, EncoderKind};
use model::predictors::{PredictorKind, StartEmbedding};
use model::{Checkpoint, ImportOptions, ImportedModel, Layout, Model};
use safetensors::Dtype;
use speech::Tokenizer;

use super::pretrained_models::{
    PIECES, Pretrained, RNNT, Tensors, parameter_bits, read_tensors, recipe, sentencepiece_model,
    source_tensors, write_tensors,
};

const TDT: &str = r#"
[predictor]
kind = "lstm"
embedding = 6
hidden = 6
layers = 2
start = "zero"
two_biases = true
dropout = 0.2
[joint]
width = 6
dropout = 0.2
[loss]
kind = "tdt"
durations = [0, 1, 2]
sigma = 0.05
[training]
"#;

const CONCAT: &str = r#"
[predictor]
kind = "concat"
width = 9
context = 2
normalize = true
[joint]
width = 5
[training]
ctc_weight = 0.25
"#;

const STREAMING: &str = "attention = { chunk = 2, left = 6 }\ncausal_convolution = true\nconvolution_norm = \"layer\"\nbias = false";

/// The values of all parameters as bits.
fn checkpoint_bits(path: &std::path::Path) -> std::collections::BTreeMap<String, Vec<u32>> {
    let bits =
        |(name, values): (String, Vec<f32>)| (name, values.iter().map(|value| value.to_bits()).collect());
    Checkpoint::read(path).unwrap().weights.into_iter().map(bits).collect()
}

#[test]
fn models_of_all_kinds_survive_nemos_layout() {
    let window = "attention = { left = 5, right = 3 }\nconvolution_norm = \"batch\"\nscale_input = true";
    for (encoder, sections) in [
        ("convolution_norm = \"batch\"", RNNT.to_owned()),
        ("convolution_norm = \"batch\"\nbias = false", TDT.to_owned()),
        (window, CONCAT.to_owned()),
        (STREAMING, RNNT.to_owned()),
        (
            "attention = { chunk = 2, left = 4 }\nother_attention = [\"full\", { chunk = 1, left = 4 }]",
            TDT.replace("[training]", "[training]\nctc_weight = 0.5"),
        ),
        ("convolution_norm = \"batch\"", "[loss]\nkind = \"ctc\"\n[training]".to_owned()),
    ] {
        let text = recipe(encoder, &sections);
        let pretrained = Pretrained::new(&text);
        let original = checkpoint_bits(&pretrained.path("model.safetensors"));
        let archive = pretrained.export("model.safetensors", Layout::Nemo, "out/first.nemo");
        let imported = pretrained.import(&archive, "imported.safetensors");
        assert_eq!(parameter_bits(&imported), original, "{text}");
        assert_eq!(checkpoint_bits(&pretrained.path("imported.safetensors")), original);
        // The same model, apart from settings of training.
        let checkpoint = Checkpoint::read(&pretrained.path("model.safetensors")).unwrap();
        let config = checkpoint.model_config("original".as_ref()).unwrap();
        let imported_config = imported.config();
        assert_eq!(
            (&imported_config.input, &imported_config.encoder, &imported_config.predictor),
            (&config.input, &config.encoder, &config.predictor)
        );
        assert_eq!((&imported_config.joint, &imported_config.loss), (&config.joint, &config.loss));
        assert!((imported_config.terms.ctc_weight - config.terms.ctc_weight).abs() < 1e-12);
        assert_eq!(imported.tokenizer().tokens(), PIECES);
        // The second export has the same bytes as the first.
        let again = pretrained.export("imported.safetensors", Layout::Nemo, "again.nemo");
        assert_eq!(std::fs::read(again).unwrap(), std::fs::read(archive).unwrap());
    }
}

#[test]
fn candle_reads_the_torch_checkpoint_of_an_archive() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", TDT));
    let archive = pretrained.export("model.safetensors", Layout::Nemo, "model.nemo");
    let imported = ImportedModel::open(&archive, &ImportOptions::default()).unwrap();
    let mut members = tar::Archive::new(std::fs::File::open(&archive).unwrap());
    let mut weights = members
        .entries()
        .unwrap()
        .map(Result::unwrap)
        .find(|member| member.path().unwrap().ends_with("model_weights.ckpt"))
        .unwrap();
    let path = pretrained.path("model_weights.ckpt");
    std::io::copy(&mut weights, &mut std::fs::File::create(&path).unwrap()).unwrap();
    let tensors = candle_core::pickle::read_all(&path).unwrap();
    assert_eq!(tensors.len(), imported.tensor_names().count());
    for (name, tensor) in tensors {
        let stored = imported.read_tensor(&name).unwrap();
        assert_eq!(tensor.dims(), stored.shape, "{name}");
        if stored.dtype == Dtype::F32 {
            let values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert!(bytes == stored.data.0, "{name}");
        }
    }
}

#[test]
fn models_survive_hugging_faces_layout_and_a_change_of_layout() {
    let batch = "convolution_norm = \"batch\"";
    let streaming_features = |text: String| {
        text.replace("mels = 16", "mels = 16\nnormalize = \"none\"")
            .replace("factor = 4", "factor = 4\ncausal = true")
    };
    for text in [
        recipe(batch, RNNT),
        recipe(batch, TDT),
        recipe(batch, "[loss]\nkind = \"ctc\"\n[training]"),
        streaming_features(recipe(STREAMING, RNNT)),
    ] {
        let pretrained = Pretrained::new(&text);
        let original = checkpoint_bits(&pretrained.path("model.safetensors"));
        let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
        let imported = pretrained.import(&folder, "imported.safetensors");
        assert_eq!(parameter_bits(&imported), original, "{text}");
        let again = pretrained.export("imported.safetensors", Layout::HuggingFace, "again");
        for name in ["model.safetensors", "config.json", "preprocessor_config.json", "tokenizer.model"] {
            let read = |folder: &std::path::Path| std::fs::read(folder.join(name)).unwrap();
            assert_eq!(read(&again), read(&folder), "{name}");
        }
        // To the other layout and back.
        let archive = pretrained.export("imported.safetensors", Layout::Nemo, "other.nemo");
        let converted = pretrained.import(&archive, "other.safetensors");
        assert_eq!(parameter_bits(&converted), original);
        let back = pretrained.export("other.safetensors", Layout::HuggingFace, "back");
        assert_eq!(
            read_tensors(&back.join("model.safetensors")),
            read_tensors(&folder.join("model.safetensors"))
        );
    }
}

#[test]
fn counters_short_numbers_and_shards_are_restored() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", TDT));
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
    let mut tensors = read_tensors(&folder.join("model.safetensors"));
    for (index, (name, (dtype, shape, bytes))) in tensors.iter_mut().enumerate() {
        let values: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        match index % 4 {
            _ if *dtype == Dtype::I64 => *bytes = (index as i64 + 7).to_le_bytes().to_vec(),
            0 => {
                (*dtype, *bytes) =
                    (Dtype::BF16, values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect())
            }
            1 => {
                (*dtype, *bytes) =
                    (Dtype::F16, values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect())
            }
            2 => {
                (*dtype, *bytes) =
                    (Dtype::F64, values.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect())
            }
            _ => assert!(!shape.is_empty(), "{name}"),
        }
    }
    // Two files and an index.
    let middle = tensors.len() / 2;
    let parts: [Tensors; 2] = [
        tensors.clone().into_iter().take(middle).collect(),
        tensors.clone().into_iter().skip(middle).collect(),
    ];
    let mut map = serde_json::Map::new();
    for (number, part) in parts.iter().enumerate() {
        let name = format!("model-0000{number}.safetensors");
        write_tensors(&folder.join(&name), part);
        map.extend(part.keys().map(|tensor| (tensor.clone(), name.clone().into())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    let imported = pretrained.import(&folder, "imported.safetensors");
    assert_eq!(source_tensors(&imported), tensors);
    let again = pretrained.export("imported.safetensors", Layout::HuggingFace, "again");
    assert_eq!(read_tensors(&again.join("model.safetensors")), tensors);
    // In NeMo's layout, with the counters and dtypes.
    let archive = pretrained.export("imported.safetensors", Layout::Nemo, "other.nemo");
    pretrained.import(&archive, "other.safetensors");
    let back = pretrained.export("other.safetensors", Layout::HuggingFace, "back");
    assert_eq!(read_tensors(&back.join("model.safetensors")), tensors);
}

#[test]
fn an_embedding_of_the_blank_is_kept_or_rejected() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
    let path = folder.join("model.safetensors");
    let mut tensors = read_tensors(&path);
    let table = &mut tensors.get_mut("decoder.embedding.weight").unwrap().2;
    *table.last_mut().unwrap() = 0x80; // -0
    write_tensors(&path, &tensors);
    let imported = pretrained.import(&folder, "imported.safetensors");
    let Some(PredictorKind::Lstm(predictor)) = &imported.config().predictor else { panic!() };
    assert_eq!(predictor.start, StartEmbedding::Blank);
    assert_eq!(imported.shapes()["predictor.embedding.weight"], [PIECES.len() + 1, 6]);
    let again = pretrained.export("imported.safetensors", Layout::HuggingFace, "again");
    assert_eq!(read_tensors(&again.join("model.safetensors")), tensors);
    // NeMo starts with zeros.
    let (path, output) = (pretrained.path("imported.safetensors"), pretrained.path("x.nemo"));
    let checkpoint = Checkpoint::read(&path).unwrap();
    let error = model::export(&path, &checkpoint, Layout::Nemo, &output).unwrap_err().to_string();
    assert!(error.ends_with("predictor.start: expected zero, as in NeMo, found blank"), "{error}");
    assert!(!output.exists());
    let folder = pretrained.nemo_folder();
    let path = folder.join("weights.safetensors");
    let mut tensors = read_tensors(&path);
    *tensors.get_mut("decoder.prediction.embed.weight").unwrap().2.last_mut().unwrap() = 1;
    write_tensors(&path, &tensors);
    let error = ImportedModel::open(&folder, &ImportOptions::default()).unwrap_err().to_string();
    let message =
        "decoder.prediction.embed.weight: expected zeros in its last row, the blank's, found other values";
    assert!(error.ends_with(message), "{error}");
}

#[test]
fn options_override_attention_and_tokenizer() {
    let encoder = "attention = { chunk = 2, left = 4 }\nother_attention = [{ chunk = 1, left = 4 }]";
    let pretrained = Pretrained::new(&recipe(encoder, RNNT));
    let folder = pretrained.nemo_folder();
    let chunks = |chunk| AttentionLimits::Chunks { chunk, left: Some(4) };
    let window = AttentionLimits::Window { left: Some(8), right: Some(8) };
    for (attention, others) in
        [(chunks(2), vec![chunks(1)]), (chunks(1), vec![chunks(2)]), (window, vec![chunks(2), chunks(1)])]
    {
        let options = ImportOptions { attention: Some(attention), ..ImportOptions::default() };
        let imported = ImportedModel::open(&folder, &options).unwrap();
        let EncoderKind::FastConformer(encoder) = &imported.config().encoder else { panic!() };
        assert_eq!((encoder.attention, &encoder.other_attention), (attention, &others));
    }
    let invalid = AttentionLimits::Chunks { chunk: 3, left: Some(4) };
    let options = ImportOptions { attention: Some(invalid), ..ImportOptions::default() };
    let error = ImportedModel::open(&folder, &options).unwrap_err().to_string();
    assert!(error.contains("encoder.attention.left: expected a multiple of chunk = 3"), "{error}");
    // Another file of the tokenizer.
    std::fs::rename(folder.join("tokenizer.model"), pretrained.path("other.model")).unwrap();
    let error = ImportedModel::open(&folder, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("tokenizer: expected ") && error.contains("--tokenizer FILE"), "{error}");
    let tokenizer = Some(pretrained.path("other.model"));
    ImportedModel::open(&folder, &ImportOptions { tokenizer, ..ImportOptions::default() }).unwrap();
}

#[test]
fn a_changed_model_is_exported_with_its_own_values() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", TDT));
    let archive = pretrained.export("model.safetensors", Layout::Nemo, "first.nemo");
    let imported = pretrained.import(&archive, "imported.safetensors");
    let path = pretrained.path("imported.safetensors");
    let mut checkpoint = Checkpoint::read(&path).unwrap();
    // Averaged weights are preferred; other limits of attention change the configuration.
    let mut average = checkpoint.weights.clone();
    average.get_mut("joint.durations.bias").unwrap()[1] = 42.0;
    checkpoint.average = Some(average);
    checkpoint.recipe =
        checkpoint.recipe.replace("attention = \"full\"", "attention = { left = 4, right = 4 }");
    checkpoint.write(&path).unwrap();
    let changed = ImportedModel::open(
        &pretrained.export("imported.safetensors", Layout::Nemo, "second.nemo"),
        &ImportOptions::default(),
    )
    .unwrap();
    assert_eq!(changed.read_parameter("joint.durations.bias").unwrap()[1], 42.0);
    let EncoderKind::FastConformer(encoder) = &changed.config().encoder else { panic!() };
    assert_eq!(encoder.attention, AttentionLimits::Window { left: Some(4), right: Some(4) });
    assert_ne!(changed.source().configuration, imported.source().configuration);
    // Settings of training do not change it.
    checkpoint.recipe = imported.recipe().replace("sigma = 0.05", "sigma = 0.1");
    assert_ne!(checkpoint.recipe, imported.recipe());
    checkpoint.write(&path).unwrap();
    let archive = pretrained.export("imported.safetensors", Layout::Nemo, "third.nemo");
    let third = ImportedModel::open(&archive, &ImportOptions::default()).unwrap();
    assert_eq!(third.source().configuration, imported.source().configuration);
}

#[test]
fn the_source_is_part_of_the_checkpoint_and_its_checksum() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let archive = pretrained.export("model.safetensors", Layout::Nemo, "first.nemo");
    let imported = pretrained.import(&archive, "imported.safetensors");
    let path = pretrained.path("imported.safetensors");
    let checkpoint = Checkpoint::read(&path).unwrap();
    assert_eq!(checkpoint.imported.as_ref(), Some(imported.source()));
    assert!(checkpoint.has_checksums && checkpoint.recipe == imported.recipe());
    let expected = Model::shapes(&checkpoint.model_config(&path).unwrap(), PIECES.len()).unwrap();
    checkpoint.check(&path, &expected).unwrap();
    assert_eq!(checkpoint.to_bytes(&path).unwrap(), std::fs::read(&path).unwrap());
    let replace = |old: &str, new: &str| {
        let bytes = std::fs::read(&path).unwrap();
        let start = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
        let changed = [&bytes[..start], new.as_bytes(), &bytes[start + old.len()..]].concat();
        let path = pretrained.path("changed.safetensors");
        std::fs::write(&path, changed).unwrap();
        Checkpoint::read(&path).unwrap_err().to_string()
    };
    let error = replace("d_model: 8", "d_model: 9");
    assert!(error.contains("expected the metadata with the checksum"), "{error}");
    let error = replace(r#"\"imported\":{\"version\":1"#, r#"\"imported\":{\"version\":2"#);
    assert!(error.contains("expected an imported source of version 1, found 2"), "{error}");
    // A checkpoint without a source has the bytes of earlier versions.
    let bytes = std::fs::read(pretrained.path("model.safetensors")).unwrap();
    assert!(!bytes.windows(8).any(|window| window == b"imported"));
}

#[test]
fn a_tokenizer_of_hugging_face_may_have_special_tokens_after_the_labels() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
    std::fs::remove_file(folder.join("tokenizer.model")).unwrap();
    let vocabulary: Vec<(&str, f64)> =
        PIECES.iter().enumerate().map(|(id, piece)| (*piece, -(id as f64))).collect();
    let json = |blank: usize| {
        let added = serde_json::json!({
            "id": blank, "content": "<blank>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        let metaspace = serde_json::json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
        serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added], "normalizer": null,
            "pre_tokenizer": metaspace, "post_processor": null, "decoder": metaspace,
            "model": { "type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false },
        })
        .to_string()
    };
    std::fs::write(folder.join("tokenizer.json"), json(PIECES.len())).unwrap();
    let imported = pretrained.import(&folder, "imported.safetensors");
    assert_eq!(imported.tokenizer().size(), PIECES.len());
    let again = pretrained.export("imported.safetensors", Layout::HuggingFace, "again");
    let read = |folder: &std::path::Path| std::fs::read(folder.join("tokenizer.json")).unwrap();
    assert_eq!(read(&again), read(&folder));
    // NeMo needs the SentencePiece model.
    let path = pretrained.path("imported.safetensors");
    let checkpoint = Checkpoint::read(&path).unwrap();
    let error = model::export(&path, &checkpoint, Layout::Nemo, &pretrained.path("x.nemo")).unwrap_err();
    assert!(error.to_string().contains("tokenizer: expected a SentencePiece model"), "{error}");
    // SentencePiece models have no tokens to remove.
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let pieces = [&PIECES[..], &["c"]].concat();
    std::fs::write(folder.join("tokenizer.model"), sentencepiece_model(&pieces)).unwrap();
    assert!(Tokenizer::from_sentencepiece(&sentencepiece_model(&pieces)).unwrap().size() == 6);
    let error = ImportedModel::open(&folder, &ImportOptions::default()).unwrap_err().to_string();
    assert!(error.contains("tokenizer: expected 5 tokens, found 6"), "{error}");
}
