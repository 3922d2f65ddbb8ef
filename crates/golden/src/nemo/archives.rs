//! Golden test of import and export: archives, folders, and the names of both layouts.
//!
//! The stored weights are imported and exported to both layouts; every tensor must keep its bits.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::import::ImportedTensor;
use model::{Checkpoint, ImportOptions, ImportedModel, Layout};
use speech::files::read_regular;

use super::check::NemoCheck;
use crate::error::{Error, RunError};

/// Compares import and export of a model.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    let folder = check.folder.clone();
    let scratch =
        tempfile::tempdir().map_err(|source| Error::Folder { path: std::env::temp_dir(), source })?;
    let tokenizer = check.json("case.json")?["tokenizer"].as_str().unwrap_or_default().to_owned();
    let tokenizer = folder.join("../tokenizers").join(tokenizer).join("tokenizer.model");
    let options = ImportOptions { tokenizer: Some(tokenizer), ..ImportOptions::default() };
    // The folder with NeMo's names.
    let stored = import(&folder, &options)?;
    let tensors = tensors_of(&stored)?;
    let parameters = parameters_of(&stored)?;
    // The archive.
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let archive = folder.join(format!("{name}.nemo"));
    if archive.exists() {
        let imported = import(&archive, &ImportOptions::default())?;
        compare_tensors(check, "archive", &tensors_of(&imported)?, &tensors);
        compare_parameters(check, "archive", &parameters_of(&imported)?, &parameters);
        check.expect_equal("archive: recipe", &imported.config(), &stored.config());
    }
    // The configuration without keys that have their defaults.
    let sparse = folder.join("model_config_sparse.yaml");
    if sparse.exists() {
        let copy = scratch.path().join("sparse");
        copy_files(
            &copy,
            &[(&sparse, "model_config.yaml"), (&folder.join("weights.safetensors"), "weights.safetensors")],
        )?;
        let imported = import(&copy, &options)?;
        check.expect_equal("sparse configuration", &imported.config(), &stored.config());
        compare_parameters(check, "sparse configuration", &parameters_of(&imported)?, &parameters);
    }
    // Export to NeMo.
    let checkpoint_path = scratch.path().join("model.safetensors");
    stored.write(&checkpoint_path).map_err(failure)?;
    let checkpoint = Checkpoint::read(&checkpoint_path).map_err(failure)?;
    compare_parameters(check, "checkpoint", &checkpoint.weights, &parameters);
    export(&checkpoint_path, &checkpoint, Layout::Nemo, &scratch.path().join("exported.nemo"))?;
    let exported = import(&scratch.path().join("exported.nemo"), &ImportOptions::default())?;
    compare_tensors(check, "export to NeMo", &tensors_of(&exported)?, &tensors);
    check.expect_equal(
        "export to NeMo: configuration",
        &exported.source().configuration,
        &stored.source().configuration,
    );
    // A configuration that is created from the recipe.
    let without_source = Checkpoint { imported: None, ..checkpoint.clone() };
    export(&checkpoint_path, &without_source, Layout::Nemo, &scratch.path().join("created.nemo"))?;
    let created = import(&scratch.path().join("created.nemo"), &ImportOptions::default())?;
    compare_parameters(check, "created configuration", &parameters_of(&created)?, &parameters);
    check.expect_equal("created configuration: encoder", &created.config().encoder, &stored.config().encoder);
    compare_hugging_face(check, &folder.join("hf"), &options, &checkpoint_path, &checkpoint, &parameters)
}

/// Compares the second layout, if the case has one.
fn compare_hugging_face(
    check: &mut NemoCheck,
    folder: &Path,
    options: &ImportOptions,
    checkpoint_path: &Path,
    checkpoint: &Checkpoint,
    parameters: &BTreeMap<String, Vec<f32>>,
) -> Result<(), RunError> {
    if !folder.exists() {
        return Ok(());
    }
    let scratch =
        tempfile::tempdir().map_err(|source| Error::Folder { path: std::env::temp_dir(), source })?;
    let output = scratch.path().join("hf");
    export(checkpoint_path, checkpoint, Layout::HuggingFace, &output)?;
    let exported = import(&output, &ImportOptions::default())?;
    compare_parameters(check, "export to Hugging Face", &parameters_of(&exported)?, parameters);
    check.expect_equal(
        "export to Hugging Face: tokens",
        &exported.tokenizer().size(),
        &checkpoint.tokenizer(checkpoint_path).map_err(failure)?.size(),
    );
    // Names and shapes.
    let table = read_text(&folder.join("names.tsv"))?;
    let mut listed: Vec<(String, String)> = Vec::new();
    for row in table.lines().skip(1) {
        let columns: Vec<&str> = row.split('\t').collect();
        if let [_, name, shape] = columns[..] {
            listed.push((name.to_owned(), shape.to_owned()));
        }
    }
    listed.sort_unstable();
    let tensors = tensors_of(&exported)?;
    let shape_text = |tensor: &ImportedTensor| match &tensor.shape[..] {
        [] => "scalar".to_owned(),
        shape => shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x"),
    };
    let exported_names: Vec<(String, String)> =
        tensors.iter().map(|(name, tensor)| (name.clone(), shape_text(tensor))).collect();
    check.expect_equal("names.tsv", &exported_names, &listed);
    // The stored folder: the same parameters, and bits after another export.
    if !folder.join("model.safetensors").exists() {
        return Ok(());
    }
    let stored = import(folder, options)?;
    compare_parameters(check, "Hugging Face", &parameters_of(&stored)?, parameters);
    compare_tensors(check, "export to Hugging Face", &tensors, &tensors_of(&stored)?);
    let path = scratch.path().join("stored.safetensors");
    stored.write(&path).map_err(failure)?;
    let checkpoint = Checkpoint::read(&path).map_err(failure)?;
    export(&path, &checkpoint, Layout::HuggingFace, &scratch.path().join("again"))?;
    let again = import(&scratch.path().join("again"), options)?;
    compare_tensors(check, "Hugging Face, exported again", &tensors_of(&again)?, &tensors_of(&stored)?);
    let configuration = &again.source().configuration;
    check.expect_equal("Hugging Face: configuration", configuration, &stored.source().configuration);
    export(&path, &checkpoint, Layout::Nemo, &scratch.path().join("converted.nemo"))?;
    let converted = import(&scratch.path().join("converted.nemo"), &ImportOptions::default())?;
    compare_parameters(check, "Hugging Face to NeMo", &parameters_of(&converted)?, parameters);
    Ok(())
}

fn failure(error: model::Error) -> RunError {
    RunError::Failed(error.to_string())
}

fn import(path: &Path, options: &ImportOptions) -> Result<ImportedModel, RunError> {
    ImportedModel::open(path, options).map_err(failure)
}

fn export(
    path: &Path,
    checkpoint: &Checkpoint,
    layout: Layout,
    output: &Path,
) -> Result<Vec<PathBuf>, RunError> {
    model::export(path, checkpoint, layout, output).map_err(failure)
}

/// Reads all tensors of a source.
fn tensors_of(imported: &ImportedModel) -> Result<BTreeMap<String, ImportedTensor>, RunError> {
    let read = |name: &str| Ok((name.to_owned(), imported.read_tensor(name).map_err(failure)?));
    imported.tensor_names().map(read).collect()
}

/// Reads all parameters of an imported model.
fn parameters_of(imported: &ImportedModel) -> Result<BTreeMap<String, Vec<f32>>, RunError> {
    let read = |name: &String| Ok((name.clone(), imported.read_parameter(name).map_err(failure)?));
    imported.shapes().keys().map(read).collect()
}

/// Compares names, dtypes, shapes and bits.
fn compare_tensors(
    check: &mut NemoCheck,
    what: &str,
    actual: &BTreeMap<String, ImportedTensor>,
    stored: &BTreeMap<String, ImportedTensor>,
) {
    let names = |tensors: &BTreeMap<String, ImportedTensor>| tensors.keys().cloned().collect::<Vec<_>>();
    check.expect_equal(&format!("{what}: names"), &names(actual), &names(stored));
    for (name, tensor) in stored {
        let is_same = actual.get(name) == Some(tensor);
        check.expect_equal(&format!("{what}: bits of {name}"), &is_same, &true);
    }
}

/// Compares names and bits of parameters.
fn compare_parameters(
    check: &mut NemoCheck,
    what: &str,
    actual: &BTreeMap<String, Vec<f32>>,
    expected: &BTreeMap<String, Vec<f32>>,
) {
    let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    check.expect_equal(&format!("{what}: parameters"), &actual.len(), &expected.len());
    for (name, values) in expected {
        let is_same = actual.get(name).is_some_and(|actual| bits(actual) == bits(values));
        check.expect_equal(&format!("{what}: {name}"), &is_same, &true);
    }
}

fn read_text(path: &Path) -> Result<String, RunError> {
    let bytes = read_regular(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Copies files to a new folder under other names.
fn copy_files(folder: &Path, files: &[(&Path, &str)]) -> Result<(), RunError> {
    let folder_error = |source| Error::Folder { path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(folder_error)?;
    for (source, name) in files {
        std::fs::copy(source, folder.join(name)).map_err(folder_error)?;
    }
    Ok(())
}
