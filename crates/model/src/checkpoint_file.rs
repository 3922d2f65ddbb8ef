//! `CheckpointFile`: reads the tensors of a checkpoint one at a time.
mod header;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use header::{parse_metadata, read_header};
use safetensors::tensor::Dtype;
use speech::Tokenizer;
use speech::files::open_regular;
pub use stored::StoredPart;
pub(crate) use stored::matrix_shape;

use crate::checkpoint::{
    AdapterBase, BASE_KIND, Checkpoint, FIELDS_KEY, NamesByKind, OLDEST_VERSION, PARAMETER_KINDS,
    SCALES_SUFFIX, StoredMetadata, Values, check_parameters, parse_tokenizer, recipe_config,
};
use crate::checksums::{check_checksum, hex_checksum};
use crate::config::old_names;
use crate::encoders::WeightValues;
use crate::import::metadata::ImportedSource;
use crate::parameters::Shapes;
use crate::{Error, ModelConfig, Result};

/// Bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 18;

/// An open checkpoint: its metadata are in memory, its values are not.
///
/// ```no_run
/// let file = model::CheckpointFile::open("model.safetensors".as_ref())?;
/// for (name, shape) in file.shapes() {
///     println!("{name} {shape:?} {}", file.read_weight(name)?[0]);
/// }
/// # Ok::<(), model::Error>(())
/// ```
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    file: File,
    metadata: StoredMetadata,
    /// Positions and shapes by full name, such as `weight/NAME`.
    tensors: BTreeMap<String, TensorPlace>,
    shapes: Shapes,
    kinds: NamesByKind,
}

/// A tensor of the file.
#[derive(Debug)]
struct TensorPlace {
    /// Position of the first byte in the file.
    start: u64,
    bytes: usize,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Checkpoint {
    /// Reads and checks a checkpoint: format, version, checksums, dtypes, finite values.
    ///
    /// [`CheckpointFile`] reads single tensors.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is corrupt, truncated
    /// or foreign.
    pub fn read(path: &Path) -> Result<Self> {
        CheckpointFile::open(path)?.read_all()
    }
}

impl CheckpointFile {
    /// Opens a checkpoint and checks everything except its values.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, [`Error::Checkpoint`] if it is truncated or
    /// foreign, or has damaged metadata.
    pub fn open(path: &Path) -> Result<Self> {
        let io_error = |error| Error::io(path, "read the checkpoint")(error);
        let mut file = open_regular(path).map_err(io_error)?;
        let (header, data_start) = read_header(&mut file, path)?;
        let invalid = |expected: &str, found: String| Error::checkpoint(path, expected, found);
        let metadata = header.metadata().as_ref().and_then(|map| map.get("panda"));
        let metadata = metadata.ok_or_else(|| {
            invalid("metadata with the key panda", "none: a file of another program".into())
        })?;
        let metadata = parse_metadata(metadata, path)?;

        // Tensors, by kind and name.
        let (mut shapes, mut kinds) = (BTreeMap::new(), NamesByKind::new());
        let mut tensors = BTreeMap::new();
        for (full_name, info) in header.tensors().into_iter().collect::<BTreeMap<_, _>>() {
            let Some((kind, name)) =
                full_name.split_once('/').filter(|(kind, name)| !(kind.is_empty() || name.is_empty()))
            else {
                return Err(invalid(
                    "tensors named weight/, average/, first/ or second/, or KIND/ of a custom optimizer",
                    format!("{full_name:?}"),
                ));
            };
            let (first, end) = info.data_offsets;
            let (dtype, shape) = (info.dtype, info.shape.clone());
            let place = TensorPlace { start: data_start + first as u64, bytes: end - first, dtype, shape };
            let is_scales = kind == "weight" && name.ends_with(SCALES_SUFFIX) && dtype == Dtype::F16;
            if is_scales {
                tensors.insert(full_name, place);
                continue;
            }
            if dtype != Dtype::F32 && !(kind == "weight" && matches!(dtype, Dtype::BF16 | Dtype::I8)) {
                let expected = if kind == "weight" { "F32, BF16 or I8" } else { "F32" };
                return Err(invalid(&format!("{full_name} of {expected}"), format!("{dtype:?}")));
            }
            // The state of a custom optimizer need not belong to a parameter.
            if PARAMETER_KINDS.contains(&kind) {
                let shape = shapes.entry(name.to_owned()).or_insert_with(|| info.shape.clone());
                if *shape != info.shape {
                    let expected = format!("{full_name} of shape {shape:?}");
                    return Err(invalid(&expected, format!("{:?}", info.shape)));
                }
            }
            kinds.entry(kind.to_owned()).or_default().insert(name.to_owned());
            tensors.insert(full_name, place);
        }
        let file = CheckpointFile { path: path.to_owned(), file, metadata, tensors, shapes, kinds };
        file.check_scales()?;
        if let Some(name) = file.unused_checksum() {
            return Err(invalid(&format!("{name}, which has a checksum"), "none".into()));
        }
        if !file.kinds.contains_key("weight") {
            return Err(invalid("tensors named weight/", "none".into()));
        }
        Ok(file)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the recipe's text; names of earlier versions are translated.
    pub fn recipe(&self) -> String {
        old_names::translate(&self.metadata.recipe).into_owned()
    }

    /// Returns the configuration of the model.
    ///
    /// # Errors
    /// [`Error::Inside`] the file if its recipe does not describe a model.
    pub fn model_config(&self) -> Result<ModelConfig> {
        recipe_config(&self.recipe(), &self.path)
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if its JSON is damaged.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        parse_tokenizer(&self.metadata.tokenizer, &self.path)
    }

    /// Returns shapes of the parameters by name.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Returns the source of an imported model.
    pub fn imported(&self) -> Option<&ImportedSource> {
        self.metadata.imported.as_ref()
    }

    /// Returns true if the file has checksums; older files have none.
    pub fn has_checksums(&self) -> bool {
        self.metadata.version > OLDEST_VERSION
    }

    /// Checks that names and shapes are those of a model's parameters.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for the first parameter that is missing, unknown or of another shape.
    pub fn check(&self, expected: &Shapes) -> Result<()> {
        check_parameters(&self.path, &self.recipe(), &self.kinds, &self.shapes, expected)
    }

    /// Reads a parameter: its moving average if the file has averages, otherwise its weight.
    ///
    /// Numbers that are stored in another format are converted to `f32`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for an unknown name, a wrong checksum, or a value that is not finite;
    /// [`Error::Io`].
    pub fn read_weight(&self, name: &str) -> Result<Vec<f32>> {
        self.read(self.weight_kind(), name)
    }

    /// Reads a parameter as [`Self::read_weight`], with 8-bit blocks as they are stored.
    ///
    /// # Errors
    /// As [`Self::read_weight`].
    pub fn read_stored(&self, name: &str) -> Result<WeightValues> {
        self.read_tensor(self.weight_kind(), name)
    }

    /// Returns the kind of the values that [`Self::read_weight`] reads.
    fn weight_kind(&self) -> &'static str {
        if self.kinds.contains_key("average") { "average" } else { "weight" }
    }

    /// Checks all values, tensor by tensor.
    ///
    /// # Errors
    /// As [`Self::read_weight`].
    pub fn check_values(&self) -> Result<()> {
        let mut names = self.shapes.keys().filter(|name| self.kinds[self.weight_kind()].contains(*name));
        names.try_for_each(|name| self.read_stored(name).map(drop))?;
        self.check_other_values()
    }

    /// Checks the values that [`Self::read_weight`] does not read, tensor by tensor.
    ///
    /// # Errors
    /// As [`Self::read_weight`].
    pub(crate) fn check_other_values(&self) -> Result<()> {
        let other_kinds = self.kinds.iter().filter(|(kind, _)| *kind != self.weight_kind());
        let mut names = other_kinds.flat_map(|(kind, names)| names.iter().map(move |name| (kind, name)));
        names.try_for_each(|(kind, name)| self.read(kind, name).map(drop))
    }

    /// Reads all values.
    ///
    /// # Errors
    /// As [`Self::read_weight`]; [`Error::Checkpoint`] for weights that are not in `f32`.
    pub(crate) fn read_all(self) -> Result<Checkpoint> {
        self.expect_f32()?;
        let read_kind = |(kind, names): (&String, &BTreeSet<String>)| {
            let read = |name: &String| Ok((name.clone(), self.read(kind, name)?));
            Ok((kind.clone(), names.iter().map(read).collect::<Result<Values>>()?))
        };
        let mut values: BTreeMap<String, Values> = self.kinds.iter().map(read_kind).collect::<Result<_>>()?;
        let (recipe, has_checksums) = (self.recipe(), self.has_checksums());
        let StoredMetadata { tokenizer, progress, data, imported, base, .. } = self.metadata;
        let adapter_base = base.map(|base| AdapterBase {
            recipe: old_names::translate(&base.recipe).into_owned(),
            tokenizer: base.tokenizer,
            values: values.remove(BASE_KIND).unwrap_or_default(),
        });
        Ok(Checkpoint {
            recipe,
            tokenizer,
            progress,
            weights: values.remove("weight").unwrap_or_default(),
            average: values.remove("average"),
            optimizer_state: values,
            data,
            imported,
            adapter_base,
            has_checksums,
            shapes: self.shapes,
        })
    }

    /// Reads the values of a kind, such as `weight`, as `f32`.
    fn read(&self, kind: &str, name: &str) -> Result<Vec<f32>> {
        Ok(self.read_tensor(kind, name)?.into_f32())
    }

    fn place(&self, full_name: &str) -> Result<&TensorPlace> {
        let place = self.tensors.get(full_name);
        place.ok_or_else(|| Error::checkpoint(&self.path, full_name, "none"))
    }

    /// Reads the bytes of a tensor in blocks of whole values.
    ///
    /// The checksum is checked at the end.
    fn read_blocks(&self, full_name: &str, read: impl FnMut(&[u8])) -> Result<()> {
        let place = self.place(full_name)?;
        let checksum = self.read_bytes(place, read).map_err(Error::io(&self.path, "read the checkpoint"))?;
        // Tensors without a parameter have no checksum; the model reports them by name.
        let expected = self.metadata.checksums.get(full_name).filter(|_| self.has_checksums());
        check_checksum(&self.path, full_name, expected, hex_checksum(checksum))
    }

    /// Reads the bytes of a tensor and returns their CRC-32.
    fn read_bytes(&self, place: &TensorPlace, mut read: impl FnMut(&[u8])) -> std::io::Result<u32> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(place.start))?;
        let (mut hasher, mut block) = (crc32fast::Hasher::new(), vec![0; BLOCK_BYTES.min(place.bytes)]);
        let mut remaining = place.bytes;
        while remaining > 0 {
            let block = &mut block[..BLOCK_BYTES.min(remaining)];
            file.read_exact(block)?;
            hasher.update(block);
            read(block);
            remaining -= block.len();
        }
        Ok(hasher.finalize())
    }

    /// Returns the first name with a checksum, but without a tensor.
    fn unused_checksum(&self) -> Option<&str> {
        let mut names = self.metadata.checksums.keys().filter(|_| self.has_checksums());
        names.find(|name| *name != FIELDS_KEY && !self.tensors.contains_key(*name)).map(String::as_str)
    }
}
