//! Tests of damaged and unsupported models: errors name the file, the tensor or the key.
use std::path::Path;

use model::{Checkpoint, ImportOptions, ImportedModel, Layout};
use safetensors::Dtype;
use serde_json::{Value, json};

use super::pretrained_models::{
    PIECES, Pretrained, RNNT, Tensors, read_tensors, recipe, sentencepiece_model, write_tensors,
};

const BATCH: &str = "convolution_norm = \"batch\"";

fn error_of(path: &Path) -> String {
    ImportedModel::open(path, &ImportOptions::default()).unwrap_err().to_string()
}

/// Sets the value of a dotted key; null removes nothing, as an absent key.
fn set(config: &mut Value, key: &str, value: Value) {
    let parts: Vec<&str> = key.split('.').collect();
    let (last, tables) = parts.split_last().unwrap();
    let mut table = config;
    for part in tables {
        table = &mut table[*part];
    }
    table[*last] = value;
}

#[test]
fn tensors_that_do_not_match_are_errors_with_their_names() {
    type Change = fn(&mut Tensors);
    let pretrained = Pretrained::new(&recipe(BATCH, RNNT));
    let folder = pretrained.nemo_folder();
    let path = folder.join("weights.safetensors");
    let valid = read_tensors(&path);
    let cases: [(Change, &str); 9] = [
        (
            |tensors| drop(tensors.remove("joint.enc.weight")),
            "joint.enc.weight: expected a tensor of shape [6, 8], found none",
        ),
        (
            |tensors| drop(tensors.insert("joint.extra".into(), (Dtype::F32, vec![1], vec![0; 4]))),
            "joint.extra: expected tensors of the model only, found a surplus tensor, F32 of shape [1]",
        ),
        (
            |tensors| tensors.get_mut("joint.enc.weight").unwrap().1 = vec![8, 6],
            "joint.enc.weight: expected shape [6, 8], found [8, 6]",
        ),
        (
            |tensors| tensors.get_mut("joint.enc.bias").unwrap().0 = Dtype::I32,
            "joint.enc.bias: expected F32, F16, BF16 or F64, found I32",
        ),
        (
            |tensors| {
                let tensor = tensors.get_mut("encoder.layers.1.conv.batch_norm.num_batches_tracked").unwrap();
                *tensor = (Dtype::I32, vec![2], vec![0; 8]);
            },
            "num_batches_tracked: expected an I64 scalar, found I32 of shape [2]",
        ),
        (
            |tensors| tensors.get_mut("preprocessor.featurizer.window").unwrap().1 = vec![200, 2],
            "preprocessor.featurizer.window: expected shape [400], found [200, 2]",
        ),
        (
            // A periodic window.
            |tensors| {
                let window = |i: usize| (0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / 400.0).cos()) as f32;
                let bytes = (0..400).flat_map(|i| window(i).to_le_bytes()).collect();
                tensors.get_mut("preprocessor.featurizer.window").unwrap().2 = bytes;
            },
            "as the front end computes it, found ",
        ),
        (
            |tensors| {
                let bank = &mut tensors.get_mut("preprocessor.featurizer.fb").unwrap().2;
                bank[4 * 300..4 * 301].copy_from_slice(&1f32.to_le_bytes());
            },
            "preprocessor.featurizer.fb: expected ",
        ),
        (
            |tensors| {
                let tensor = tensors["encoder.layers.0.norm_out.bias"].clone();
                drop(tensors.insert("encoder.layers.2.norm_out.bias".into(), tensor));
            },
            "encoder.layers.2.norm_out.bias: expected tensors of the model only, found a surplus tensor",
        ),
    ];
    for (change, message) in cases {
        let mut tensors = valid.clone();
        change(&mut tensors);
        write_tensors(&path, &tensors);
        let error = error_of(&folder);
        assert!(error.contains(message), "{error}\n{message}");
        assert!(error.starts_with(folder.to_str().unwrap()), "{error}");
    }
    // A value that is not finite: the checkpoint is not written.
    let mut tensors = valid.clone();
    let bytes = &mut tensors.get_mut("joint.pred.weight").unwrap().2;
    bytes[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    write_tensors(&path, &tensors);
    let imported = ImportedModel::open(&folder, &ImportOptions::default()).unwrap();
    let output = pretrained.path("nan.safetensors");
    let error = imported.write(&output).unwrap_err().to_string();
    assert!(error.ends_with("joint.pred.weight: expected finite values, found NaN at 2"), "{error}");
    assert!(!output.exists());
    // Tensors that are optional.
    let mut tensors = valid;
    tensors.retain(|name, _| !name.contains("featurizer") && !name.ends_with("num_batches_tracked"));
    write_tensors(&path, &tensors);
    ImportedModel::open(&folder, &ImportOptions::default()).unwrap();
}

#[test]
fn unsupported_keys_of_nemo_are_errors_with_their_names() {
    let pretrained = Pretrained::new(&recipe(BATCH, RNNT));
    let folder = pretrained.nemo_folder();
    let text = std::fs::read_to_string(folder.join("model_config.yaml")).unwrap();
    let valid: Value = serde_saphyr::from_str(&text).unwrap();
    let module = |class: &str| json!(format!("nemo.collections.asr.modules.{class}"));
    let cases = [
        (
            "target",
            json!("nemo.collections.asr.models.EncDecMultiTaskModel"),
            "target: expected EncDecRNNTBPEModel",
        ),
        ("adapters", json!({"a": 1}), "adapters: expected none"),
        ("prompt_dictionary", json!({"a": 1}), "prompt_dictionary: expected none"),
        ("spk_kernel_type", json!("mask"), "spk_kernel_type: expected none"),
        (
            "preprocessor._target_",
            module("AudioToMFCCPreprocessor"),
            "preprocessor._target_: expected AudioToMel",
        ),
        (
            "preprocessor.normalize",
            json!("all_features"),
            "preprocessor.normalize: expected per_feature or none",
        ),
        (
            "preprocessor.normalize",
            json!({"fixed_mean": [1]}),
            "preprocessor.normalize: expected per_feature",
        ),
        ("preprocessor.window_size", Value::Null, "preprocessor.window_size: expected 0.025, found 0.02"),
        ("preprocessor.preemph", json!(0.9), "preprocessor.preemph: expected 0.97, found 0.9"),
        ("preprocessor.lowpass", json!(3), "preprocessor.lowpass: expected a supported key, found 3"),
        (
            "encoder._target_",
            module("ConformerMultiLayerFeatureExtractor"),
            "encoder._target_: expected Conf",
        ),
        ("encoder.subsampling", json!("striding"), "encoder.subsampling: expected \"dw_striding\""),
        (
            "encoder.subsampling",
            Value::Null,
            "encoder.subsampling: expected \"dw_striding\", found \"striding\"",
        ),
        ("encoder.subsampling_factor", json!(3), "encoder.subsampling.factor: expected 2, 4, 8 or 16"),
        ("encoder.reduction", json!("pooling"), "encoder.reduction: expected null"),
        ("encoder.global_tokens", json!(1), "encoder.global_tokens: expected 0, found 1"),
        ("encoder.self_attention_model", json!("abs_pos"), "encoder.self_attention_model: expected rel_pos"),
        ("encoder.att_context_style", json!("other"), "encoder.att_context_style: expected regular"),
        (
            "encoder.att_context_size",
            json!([1]),
            "encoder.att_context_size: expected [left, right] or a list",
        ),
        ("encoder.att_context_size", json!([-2, 1]), "encoder.att_context_size: expected counts or -1"),
        ("encoder.conv_norm_type", json!("group_norm"), "encoder.conv_norm_type: expected batch_norm or"),
        ("encoder.conv_context_size", json!([2, 1]), "encoder.conv_context_size: expected null, causal"),
        ("encoder.d_model", json!(7), "joint.jointnet.encoder_hidden: expected 7, found 8"),
        ("encoder.n_heads", json!(3), "encoder.width: expected an even multiple of heads = 3"),
        ("encoder.d_model", json!("8"), "encoder.d_model: expected an integer of at least 0, found \"8\""),
        (
            "encoder.n_layers",
            json!(3),
            "encoder.layers.2.conv.batch_norm.bias: expected a tensor of shape [8]",
        ),
        ("encoder.use_bias", json!(false), "expected tensors of the model only"),
        ("encoder.new_key", json!(1), "encoder.new_key: expected a supported key, found 1"),
        ("encoder.feat_in", json!(80), "encoder.feat_in: expected 16, found 80"),
        ("decoder._target_", module("SomeDecoder"), "decoder._target_: expected RNNTDecoder, Stateless"),
        ("decoder.normalization_mode", json!("layer"), "decoder.normalization_mode: expected null"),
        ("decoder.vocab_size", json!(6), "decoder.vocab_size: expected 5 or -1, found 6"),
        ("decoder.prednet.rnn_hidden_size", json!(7), "decoder.prednet.rnn_hidden_size: expected -1 or 6"),
        ("decoder.prednet.pred_rnn_layers", json!(2), "lstm.bias_hh_l1: expected a tensor of shape [24]"),
        ("joint._target_", module("HATJoint"), "joint._target_: expected RNNTJoint"),
        ("joint.jointnet.activation", json!("sigmoid"), "joint.jointnet.activation: expected relu or tanh"),
        ("joint.jointnet.pred_hidden", json!(5), "joint.jointnet.pred_hidden: expected 6, found 5"),
        (
            "joint.jointnet.dropout",
            json!(0.1),
            "joint.joint_net.2.bias: expected a tensor of shape [6], found none",
        ),
        ("joint.num_extra_outputs", json!(2), "loss.loss_name: expected tdt, with 2 extra outputs"),
        ("joint.vocabulary", json!(["a"]), "joint.vocabulary: expected 5 pieces, found 1"),
        ("loss.loss_name", json!("multiblank_rnnt"), "loss.loss_name: expected a transducer without extra"),
        ("tokenizer.type", json!("wpe"), "tokenizer.type: expected \"bpe\", found \"wpe\""),
        (
            "labels",
            json!(["<unk>", "▁a", "▁", "b", "a"]),
            "labels[3]: expected \"a\", the tokenizer's piece, found \"b\"",
        ),
    ];
    for (key, value, message) in cases {
        let mut config = valid.clone();
        set(&mut config, key, value);
        std::fs::write(folder.join("model_config.yaml"), config.to_string()).unwrap();
        let error = error_of(&folder);
        assert!(error.contains(message), "{key}: {error}\n{message}");
    }
    // Keys of training, decoding and data are not read.
    let mut config = valid.clone();
    for key in ["optim", "train_ds", "decoding", "nemo_version", "adapters", "skip_nan_grad"] {
        set(&mut config, key, if key == "adapters" { Value::Null } else { json!({"unknown": [1, 2]}) });
    }
    set(&mut config, "encoder.new_key", Value::Null);
    std::fs::write(folder.join("model_config.yaml"), config.to_string()).unwrap();
    ImportedModel::open(&folder, &ImportOptions::default()).unwrap();
    // Local attention with unequal sides would have other positions in NeMo.
    set(&mut config, "encoder.self_attention_model", json!("rel_pos_local_attn"));
    for (size, is_valid) in [(json!([4, 2]), false), (json!([4, 4]), true)] {
        set(&mut config, "encoder.att_context_size", size);
        std::fs::write(folder.join("model_config.yaml"), config.to_string()).unwrap();
        assert_eq!(ImportedModel::open(&folder, &ImportOptions::default()).is_ok(), is_valid);
    }
}

#[test]
fn durations_must_agree() {
    let tdt = RNNT.replace("kind = \"rnnt\"", "kind = \"tdt\"\ndurations = [0, 1, 2]");
    let pretrained = Pretrained::new(&recipe(BATCH, &tdt));
    let folder = pretrained.nemo_folder();
    let text = std::fs::read_to_string(folder.join("model_config.yaml")).unwrap();
    let valid: Value = serde_saphyr::from_str(&text).unwrap();
    for (key, value, message) in [
        (
            "decoding.durations",
            json!([0, 1, 3]),
            "loss.tdt_kwargs.durations: expected 3 durations, the same in",
        ),
        ("loss.tdt_kwargs.durations", json!([0, 1]), "loss.tdt_kwargs.durations: expected 3 durations"),
        ("joint.num_extra_outputs", json!(0), "loss.loss_name: expected a transducer without extra outputs"),
    ] {
        let mut config = valid.clone();
        set(&mut config, key, value);
        std::fs::write(folder.join("model_config.yaml"), config.to_string()).unwrap();
        let error = error_of(&folder);
        assert!(error.contains(message), "{key}: {error}\n{message}");
    }
}

#[test]
fn unsupported_keys_of_hugging_face_are_errors_with_their_names() {
    let pretrained = Pretrained::new(&recipe(BATCH, RNNT));
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
    let path = folder.join("config.json");
    let valid: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value, message) in [
        ("model_type", json!("whisper"), "config.json: model_type: expected parakeet_ctc, parakeet_rnnt"),
        ("blank_token_id", json!(4), "blank_token_id: expected 5, found 4"),
        ("vocab_size", json!(1), "vocab_size: expected at least 2"),
        ("hidden_act", json!("gelu"), "hidden_act: expected relu or tanh"),
        ("encoder_config", Value::Null, "encoder_config: expected a table, found none"),
        ("encoder_config.hidden_act", json!("gelu"), "encoder_config.hidden_act: expected \"silu\""),
        ("encoder_config.convolution_bias", json!(false), "encoder_config.convolution_bias: expected true"),
        ("encoder_config.subsampling_conv_stride", json!(3), "subsampling_conv_stride: expected 2"),
        ("encoder_config.num_key_value_heads", json!(1), "num_key_value_heads: expected 2"),
        (
            "encoder_config.sliding_window",
            json!(71),
            "encoder_config.sliding_window: expected a supported key",
        ),
        ("encoder_config.num_hidden_layers", json!(1), "encoder.layers.1."),
        ("decoder_hidden_size", json!(5), "expected shape"),
        ("new_key", json!([]), "new_key: expected a supported key"),
    ] {
        let mut config = valid.clone();
        set(&mut config, key, value);
        std::fs::write(&path, config.to_string()).unwrap();
        let error = error_of(&folder);
        assert!(error.contains(message), "{key}: {error}\n{message}");
    }
    std::fs::write(&path, "{").unwrap();
    assert!(error_of(&folder).contains("configuration: expected JSON, found "));
    std::fs::remove_file(&path).unwrap();
    assert!(error_of(&folder).ends_with("configuration: expected config.json, found none"));
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    assert!(
        error_of(&folder)
            .contains("weights: expected model.safetensors (Hugging Face) or weights.safetensors")
    );
    assert!(error_of(&folder.join("none")).contains("could not read the archive"));
}

#[test]
fn a_model_that_a_layout_does_not_have_is_an_error_with_the_key() {
    let concat = "[predictor]\nkind = \"concat\"\nwidth = 6\ncontext = 2\n[joint]\nwidth = 6\n[training]\n";
    let layer_norm = recipe("convolution_norm = \"layer\"", RNNT);
    for (text, layout, message) in [
        (
            recipe(BATCH, concat),
            Layout::HuggingFace,
            "predictor.embeddings.0.weight: expected parameters that models of",
        ),
        (layer_norm, Layout::HuggingFace, "encoder: expected causal layers with layer norm"),
        (
            recipe("convolution_norm = \"batch\"\nattention = { left = 2, right = 2 }", RNNT),
            Layout::HuggingFace,
            "encoder.attention: expected \"full\"",
        ),
        (
            recipe(BATCH, &RNNT.replace("width = 6", "width = 5")),
            Layout::HuggingFace,
            "predictor.hidden: expected joint",
        ),
        (
            recipe(BATCH, &RNNT.replace("[training]", "[training]\nctc_weight = 0.3")),
            Layout::HuggingFace,
            "training.ctc_weight: expected 0",
        ),
        (
            recipe(BATCH, &RNNT.replace("two_biases = true", "")),
            Layout::Nemo,
            "predictor.two_biases: expected true",
        ),
        (
            recipe(BATCH, &RNNT.replace("embedding = 6", "embedding = 5")),
            Layout::Nemo,
            "predictor.embedding: expected",
        ),
        (
            recipe(BATCH, &RNNT.replace("[training]", "[training]\ntopology = \"modified\"")),
            Layout::Nemo,
            "training.topology: expected regular, found modified",
        ),
        (
            recipe(BATCH, RNNT).replace("preset = \"nemo\"", "preset = \"kaldi\""),
            Layout::Nemo,
            "features: expected preset = \"nemo\"",
        ),
        (
            recipe(BATCH, RNNT).replace("mels = 16", "mels = 16\nnormalize = \"utterance\""),
            Layout::Nemo,
            "features.normalize: expected sample or none, found utterance",
        ),
    ] {
        let pretrained = Pretrained::new(&text);
        let path = pretrained.path("model.safetensors");
        let checkpoint = Checkpoint::read(&path).unwrap();
        let output = pretrained.path("output");
        let error = model::export(&path, &checkpoint, layout, &output).unwrap_err().to_string();
        assert!(error.contains(message), "{error}\n{message}");
    }
    // The output is the checkpoint.
    let pretrained = Pretrained::new(&recipe(BATCH, RNNT));
    let path = pretrained.path("model.safetensors");
    let checkpoint = Checkpoint::read(&path).unwrap();
    let folder = path.parent().unwrap();
    let error = model::export(&path, &checkpoint, Layout::HuggingFace, folder).unwrap_err().to_string();
    assert!(error.contains("output: expected another file than the checkpoint"), "{error}");
    assert_eq!(Checkpoint::read(&path).unwrap().weights, checkpoint.weights);
}

#[test]
fn files_of_a_source_stay_in_the_folder_of_the_export() {
    let pretrained = Pretrained::new(&recipe(BATCH, RNNT));
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
    pretrained.import(&folder, "imported.safetensors");
    let path = pretrained.path("imported.safetensors");
    for name in ["../outside", "/tmp/panda-outside", "a/b", ".."] {
        let mut checkpoint = Checkpoint::read(&path).unwrap();
        let files = &mut checkpoint.imported.as_mut().unwrap().files;
        let content = files.values().next().unwrap().clone();
        files.insert(name.to_owned(), content);
        let error =
            model::export(&path, &checkpoint, Layout::HuggingFace, &pretrained.path("out")).unwrap_err();
        assert!(error.to_string().contains("expected a file name without folders"), "{error}");
    }
    assert!(!pretrained.path("outside").exists());
}

#[test]
fn a_tokenizer_of_another_size_or_with_damage_is_an_error() {
    let pretrained = Pretrained::new(&recipe(BATCH, RNNT));
    let folder = pretrained.nemo_folder();
    let path = folder.join("tokenizer.model");
    let model = sentencepiece_model(&PIECES);
    let fewer = sentencepiece_model(&PIECES[..4]);
    for (bytes, message) in [
        (&model[..5], "tokenizer.model: "),
        (&[], "tokenizer.model: "),
        (&fewer[..], "labels: expected 4 pieces, those of the tokenizer, found 5"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = error_of(&folder);
        assert!(error.contains(message), "{error}\n{message}");
    }
}
