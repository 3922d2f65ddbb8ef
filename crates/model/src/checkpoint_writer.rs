//! Checkpoints into files, without a copy of their values.
//!
//! ```text
//! length of the header: u64    header in JSON, with shapes, places and the metadata    values, one tensor after another
//! ```
//! which is the layout of safetensors, little-endian. Values are read twice: for their checksums,
//! and to be written.
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use candle_core::Var;
use serde_json::{Map, Value, json};
use speech::files::Destination;

use crate::checkpoint::{Checkpoint, FORMAT, Header, Progress, VERSION, Values};
use crate::parameters::Shapes;
use crate::tensors::with_slice;
use crate::{DataFingerprint, Error, Parameters, Result};

/// What is said beside the tensors.
#[derive(Debug, Clone, Copy)]
pub struct MetadataRef<'a> {
    /// Text of the recipe.
    pub recipe: &'a str,
    /// JSON of the tokenizer.
    pub tokenizer: &'a str,
    /// Counters of the run.
    pub progress: &'a Progress,
    /// The data that it was trained on.
    pub data: Option<&'a DataFingerprint>,
}

/// Where the values of a tensor are.
#[derive(Clone, Copy)]
enum Numbers<'a> {
    Here(&'a [f32]),
    Variable(&'a Var),
}

impl Numbers<'_> {
    fn each<R>(&self, use_it: impl FnOnce(&[f32]) -> R) -> candle_core::Result<R> {
        match self {
            Self::Here(values) => Ok(use_it(values)),
            Self::Variable(variable) => with_slice(variable, |values| Ok(use_it(values))),
        }
    }
}

/// Writes a checkpoint from values that stay where they are.
pub struct CheckpointWriter<'a> {
    said: MetadataRef<'a>,
    tensors: BTreeMap<String, (Vec<usize>, Numbers<'a>)>,
}

impl<'a> CheckpointWriter<'a> {
    /// A checkpoint without tensors.
    pub fn new(said: MetadataRef<'a>) -> Self {
        CheckpointWriter { said, tensors: BTreeMap::new() }
    }

    /// Adds the weights as they are now.
    pub fn parameters(&mut self, parameters: &'a Parameters) {
        for (name, variable) in parameters.iter() {
            self.tensors
                .insert(format!("weight/{name}"), (variable.dims().to_vec(), Numbers::Variable(variable)));
        }
    }

    /// Adds values of a kind; those that are of no parameter are a row.
    pub fn values(&mut self, kind: &str, values: &'a Values, shapes: &Shapes) {
        for (name, values) in values {
            let fits = |shape: &&Vec<usize>| shape.iter().product::<usize>() == values.len();
            let shape = shapes.get(name).filter(fits).cloned().unwrap_or_else(|| vec![values.len()]);
            self.tensors.insert(format!("{kind}/{name}"), (shape, Numbers::Here(values)));
        }
    }

    /// Writes the file whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] if the disk refuses.
    pub fn write(&self, path: &Path) -> Result<()> {
        let start = self.start(path)?;
        Destination::open(path)
            .and_then(|file| file.write_with(&mut |file| self.put(&start, file)))
            .map_err(Error::io(path, "write"))
    }

    /// The file's bytes.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>> {
        let (start, mut bytes) = (self.start(path)?, Vec::new());
        self.put(&start, &mut bytes).map_err(Error::io(path, "write"))?;
        Ok(bytes)
    }

    fn put(&self, start: &[u8], file: &mut dyn Write) -> io::Result<()> {
        file.write_all(start)?;
        let mut block = Vec::with_capacity(BLOCK * size_of::<f32>());
        for (_, numbers) in self.tensors.values() {
            let mut write = |values: &[f32]| {
                values.chunks(BLOCK).try_for_each(|some| {
                    block.clear();
                    some.iter().for_each(|value| block.extend(value.to_le_bytes()));
                    file.write_all(&block)
                })
            };
            numbers.each(&mut write).map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// What comes before the values.
    fn start(&self, path: &Path) -> Result<Vec<u8>> {
        let broken =
            |error: &dyn std::fmt::Display| Error::checkpoint(path, "to be serialisable", error.to_string());
        let MetadataRef { recipe, tokenizer, progress, data } = self.said;
        let mut header = Header {
            format: FORMAT.into(),
            version: VERSION,
            recipe: recipe.to_owned(),
            tokenizer: tokenizer.to_owned(),
            progress: progress.clone(),
            data: data.cloned(),
            checksums: BTreeMap::new(),
        };
        let (mut places, mut end) = (Map::new(), 0usize);
        for (name, (shape, numbers)) in &self.tensors {
            let sum = numbers.each(|values| (checksum(values), size_of_val(values)));
            let (sum, bytes) = sum.map_err(|error| broken(&error))?;
            header.checksums.insert(name.clone(), sum);
            let offsets = [end, end + bytes];
            end += bytes;
            places.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }));
        }
        let own = header.header_checksum().map_err(|error| broken(&error))?;
        header.checksums.insert(String::new(), own);
        let about = serde_json::to_string(&header).map_err(|error| broken(&error))?;
        places.insert("__metadata__".into(), json!({ "panda": about }));
        let mut text = serde_json::to_vec(&Value::Object(places)).map_err(|error| broken(&error))?;
        // Values begin at a multiple of eight.
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut start = (text.len() as u64).to_le_bytes().to_vec();
        start.extend(text);
        Ok(start)
    }
}

impl Checkpoint {
    /// Writes the checkpoint; the file appears whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] if the disk refuses.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.writer().write(path)
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the header cannot be written.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>> {
        self.writer().to_bytes(path)
    }

    fn writer(&self) -> CheckpointWriter<'_> {
        let Checkpoint { recipe, tokenizer, progress, data, .. } = self;
        let mut writer =
            CheckpointWriter::new(MetadataRef { recipe, tokenizer, progress, data: data.as_ref() });
        for (kind, values) in self.kinds() {
            writer.values(kind, values, &self.shapes);
        }
        writer
    }
}

/// Numbers that are written at once.
const BLOCK: usize = 1 << 14;

/// Eight hexadecimal digits of some numbers.
fn checksum(values: &[f32]) -> String {
    let mut sum = crc32fast::Hasher::new();
    let mut block = Vec::with_capacity(BLOCK * size_of::<f32>());
    for some in values.chunks(BLOCK) {
        block.clear();
        some.iter().for_each(|value| block.extend(value.to_le_bytes()));
        sum.update(&block);
    }
    format!("{:08x}", sum.finalize())
}
