//! Fuzz tests: damaged models of other toolkits are errors or models, without a panic.
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use model::{Adapter, Checkpoint, ImportOptions, ImportedModel, Layout};

use super::mutants::fuzz;
use super::pretrained_models::{Pretrained, RNNT, read_tensors, recipe};

/// Parts of tar and zip files, pickles and configurations.
const WORDS: &[&[u8]] = &[
    b"ustar\0",
    b"./model_config.yaml",
    b"../",
    b"PK\x03\x04",
    b"PK\x01\x02",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"model_weights/data.pkl",
    b"cos\nsystem\n",
    b"ctorch\nHalfStorage\n",
    b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x86R",
    b"\x85\x85\x85\x85",
    b"h\x01",
    b"tR",
    b"q\x00h\x00",
    b"\xff\xff\xff\xff",
];

const YAML_WORDS: &[&[u8]] = &[
    b"&a ",
    b"*a",
    b"<<: *a\n",
    b"- - - -",
    b"[[[[",
    b"{a: ",
    b"null",
    b"-1",
    b"99999999999",
    b"1e300",
    b"\n  ",
    b"'",
    b"!!binary ",
    b"---\n",
    b"d_model: 8192\n",
    b"layers: 100\n",
];

const JSON_WORDS: &[&[u8]] = &[
    b"\"F32\"",
    b"\"F64\"",
    b"\"BF16\"",
    b"[0,1]",
    b"\"data_offsets\"",
    b"18446744073709551615",
    b"-1",
    b"null",
    b"\"weight_map\":{",
    b"{",
    b"[",
];

/// Opens a model and reads all of it, as an import does.
fn import(path: &Path, output: &Path) {
    match ImportedModel::open(path, &ImportOptions::default()) {
        Ok(imported) => match imported.write(output) {
            Ok(()) => drop(Checkpoint::read(output).unwrap()),
            Err(error) => assert!(!error.to_string().is_empty()),
        },
        Err(error) => assert!(error.to_string().len() < 3000, "{error}"),
    }
}

/// The golden folder, if it exists.
fn golden(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/nemo").join(name);
    if !path.exists() {
        println!("skipped: {} is missing", path.display());
    }
    Some(path).filter(|path| path.exists())
}

#[test]
fn damaged_archives_are_errors_or_models() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let archive = pretrained.export("model.safetensors", Layout::Nemo, "valid.nemo");
    let plain = std::fs::read(archive).unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&plain).unwrap();
    let gzipped = encoder.finish().unwrap();
    let (path, output) = (pretrained.path("mutant.nemo"), pretrained.path("mutant.safetensors"));
    fuzz("nemo-archive", vec![plain, gzipped], WORDS, 400, move |bytes| {
        let _ = &pretrained;
        std::fs::write(&path, bytes).unwrap();
        import(&path, &output);
    });
}

#[test]
fn damaged_golden_archives_are_errors_or_models() {
    let paths = ["fc_tdt/fc_tdt.nemo", "fc_hybrid_rnnt_ctc/fc_hybrid_rnnt_ctc.nemo"];
    let archives: Vec<Vec<u8>> =
        paths.iter().filter_map(|name| golden(name)).map(|path| std::fs::read(path).unwrap()).collect();
    if archives.is_empty() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, output) = (folder.path().join("mutant.nemo"), folder.path().join("mutant.safetensors"));
    fuzz("nemo-golden", archives, WORDS, 40, move |bytes| {
        let _ = &folder;
        std::fs::write(&path, bytes).unwrap();
        import(&path, &output);
    });
}

#[test]
fn damaged_configurations_are_errors_or_models() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.nemo_folder();
    let path = folder.join("model_config.yaml");
    let mut texts = vec![std::fs::read(&path).unwrap()];
    for case in ["fc_tdt", "fc_hybrid_tdt_ctc", "fc_stateless", "fc_stream_chunked", "fc_ctc"] {
        texts.extend(golden(&format!("{case}/model_config.yaml")).map(|path| std::fs::read(path).unwrap()));
    }
    let output = pretrained.path("mutant.safetensors");
    fuzz("nemo-configuration", texts, YAML_WORDS, 1000, move |bytes| {
        std::fs::write(&path, bytes).unwrap();
        import(&folder, &output);
        let _ = &pretrained;
    });
}

#[test]
fn damaged_folders_of_hugging_face_are_errors_or_models() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
    let [weights, config] = ["model.safetensors", "config.json"].map(|name| folder.join(name));
    let [valid_weights, valid_config] = [&weights, &config].map(|path| std::fs::read(path).unwrap());
    let output = pretrained.path("mutant.safetensors");
    // A mutant of either file, with the other one intact.
    let files = vec![valid_weights.clone(), valid_config.clone()];
    fuzz("huggingface-folder", files, JSON_WORDS, 1000, move |bytes| {
        let is_config = bytes.first() == Some(&b'{');
        std::fs::write(&weights, if is_config { &valid_weights } else { bytes }).unwrap();
        std::fs::write(&config, if is_config { bytes } else { &valid_config }).unwrap();
        import(&folder, &output);
        let _ = &pretrained;
    });
}

#[test]
fn damaged_indices_are_errors_or_models() {
    let pretrained = Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT));
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "hf");
    let tensors = read_tensors(&folder.join("model.safetensors"));
    std::fs::rename(folder.join("model.safetensors"), folder.join("model-1.safetensors")).unwrap();
    let map: serde_json::Map<String, serde_json::Value> =
        tensors.keys().map(|name| (name.clone(), "model-1.safetensors".into())).collect();
    let index = serde_json::json!({ "weight_map": map }).to_string().into_bytes();
    let (path, output) = (folder.join("model.safetensors.index.json"), pretrained.path("mutant.safetensors"));
    fuzz("huggingface-index", vec![index], JSON_WORDS, 1000, move |bytes| {
        std::fs::write(&path, bytes).unwrap();
        import(&folder, &output);
        let _ = &pretrained;
    });
}

#[test]
fn damaged_adapters_are_errors_or_adapters() {
    let recipe = recipe("convolution_norm = \"batch\"", RNNT);
    let base = Pretrained::new(&recipe);
    let adapted = Pretrained::new(&(recipe + "[adapter]\nrank = 1\n"));
    let [base_path, adapted_path] = [&base, &adapted].map(|pretrained| pretrained.path("model.safetensors"));
    let [base_checkpoint, checkpoint] =
        [&base_path, &adapted_path].map(|path| Checkpoint::read(path).unwrap());
    let path = base.path("mutant.safetensors");
    let bytes = Adapter::extract(&adapted_path, &checkpoint).unwrap().to_bytes(&path).unwrap();
    fuzz("adapter", vec![bytes], JSON_WORDS, 1000, move |bytes| {
        let _ = (&base, &adapted);
        std::fs::write(&path, bytes).unwrap();
        match Adapter::read(&path) {
            Ok(adapter) => drop(adapter.apply(&path, &base_path, &base_checkpoint).unwrap()),
            Err(error) => assert!(error.to_string().len() < 3000, "{error}"),
        }
    });
}
