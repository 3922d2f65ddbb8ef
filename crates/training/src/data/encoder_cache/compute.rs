//! Computes the encoder rows of a training set, and writes their cache.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use model::Model;
use model::encoders::NumberFormat;
use model::tensors::with_slice;
use recognizer::LengthMismatch;
use speech::files::{Destination, check_regular};

use super::{EncodedTrainingSet, EncoderCache, EncoderCacheKey, EncoderCacheWriter};
use crate::data::{Batch, BatchSource, PREFETCHED_BATCHES, Prefetcher, TrainingSet};
use crate::observer::Observer;
use crate::recipe::RowFormat;
use crate::run_files::ENCODER_CACHE_FILE;
use crate::{Error, Result};

/// Values that are converted to bytes at once.
const VALUES_PER_BLOCK: usize = 1 << 14;

/// The encoder, the number format and the folder of a cache.
pub(crate) struct EncoderCacheConfig<'a> {
    pub model: &'a Model,
    pub format: RowFormat,
    pub run_folder: &'a Path,
    /// `data.cache`, a folder for several runs.
    pub shared_folder: Option<&'a Path>,
}

impl EncoderCacheConfig<'_> {
    /// Writes the cache of a set, unless a valid one exists.
    ///
    /// `fits(utterances, rows)` returns false for a padded batch that is too large to be encoded.
    ///
    /// # Errors
    /// Those of reading the utterances and of the encoder; [`Error::Stopped`] if `stop` becomes
    /// true; [`Error::Io`](model::Error::Io). An existing file is then unchanged.
    pub(crate) fn write_if_needed(
        &self,
        set: &TrainingSet,
        fits: &(dyn Fn(usize, usize) -> bool + Sync),
        observer: &mut dyn Observer,
        stop: &AtomicBool,
    ) -> Result<()> {
        let key = self.key(set)?;
        let path = self.path(&key);
        let Err(mismatch) = EncoderCache::open(&path, &key) else { return Ok(()) };
        observer.on_note(&format!(
            "training.cache_encoder: computes the encoder rows of {} utterances for {}, because {mismatch}",
            key.contents.len(),
            path.display()
        ));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(Error::io(folder, "make"))?;
        }
        check_regular(&path).map_err(Error::io(&path, "write"))?;
        let mut result = Ok(());
        let written = Destination::open(&path).and_then(|destination| {
            destination.write_with(&mut |file| {
                let mut writer = EncoderCacheWriter::new(file, &key)?;
                result = self.add_rows(&mut writer, set, fits, stop);
                match &result {
                    Ok(()) => writer.finish(),
                    Err(_) => Err(std::io::Error::other("the encoder rows are incomplete")),
                }
            })
        });
        result?;
        written.map_err(Error::io(&path, "write"))
    }

    /// Opens the cache of a set.
    ///
    /// # Errors
    /// [`Error::EncoderCache`] if the file does not match encoder and utterances.
    pub(crate) fn open<'a>(&self, set: TrainingSet<'a>) -> Result<EncodedTrainingSet<'a>> {
        let key = self.key(&set)?;
        let path = self.path(&key);
        let cache = EncoderCache::open(&path, &key);
        let cache = cache.map_err(|mismatch| Error::EncoderCache {
            path,
            expected: "encoder rows of this run".into(),
            found: mismatch.to_string().into(),
        })?;
        Ok(EncodedTrainingSet::new(set, cache))
    }

    /// Encodes all utterances in batches of similar length.
    fn add_rows(
        &self,
        writer: &mut EncoderCacheWriter,
        set: &TrainingSet,
        fits: &(dyn Fn(usize, usize) -> bool + Sync),
        stop: &AtomicBool,
    ) -> Result<()> {
        let model = self.model.for_inference(NumberFormat::F32)?;
        let batches = set.plan_by_length(fits);
        let prefetcher = Prefetcher::new(batches.len(), PREFETCHED_BATCHES);
        let load = |position: usize| set.batch(0, &batches[position]);
        std::thread::scope(|scope| {
            let loaded = prefetcher.run(scope, set.workers(), &load);
            for (indices, batch) in batches.iter().zip(loaded) {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Stopped);
                }
                self.add_batch(writer, &model, indices, &batch?)?;
            }
            Ok(())
        })
    }

    /// Encodes one batch of these utterances.
    fn add_batch(
        &self,
        writer: &mut EncoderCacheWriter,
        model: &Model,
        indices: &[usize],
        batch: &Batch,
    ) -> Result<()> {
        if batch.lengths.is_empty() {
            return Ok(());
        }
        let (encoded, lengths) = model.encoder().forward(&batch.rows, &batch.lengths, None)?;
        let (_, longest, width) = encoded.dims3()?;
        let present = indices.iter().filter(|index| !batch.absent.contains(index));
        let other_seconds = |id: &str| {
            let mismatch = batch.bad.other_length.iter().find(|mismatch| mismatch.id == id);
            mismatch.map(|LengthMismatch { found_seconds, .. }| *found_seconds)
        };
        let add_all = |values: &[f32]| {
            for (b, (&index, &rows)) in present.zip(&lengths).enumerate() {
                let utterance_rows = &values[b * longest * width..][..rows * width];
                writer.add(index, utterance_rows, other_seconds(&batch.ids[b]))?;
            }
            Ok(())
        };
        let added: std::io::Result<()> = with_slice(&encoded.contiguous()?, |values| Ok(add_all(values)))?;
        added.map_err(Error::io(self.run_folder, "write encoder rows"))
    }

    /// Returns the path of the file: in `data.cache` one for each key.
    fn path(&self, key: &EncoderCacheKey) -> PathBuf {
        let Some(folder) = self.shared_folder else { return self.run_folder.join(ENCODER_CACHE_FILE) };
        let mut hash = md5::Context::new();
        hash.consume(key.settings);
        hash.consume([key.format.bytes() as u8]);
        key.contents.iter().for_each(|content| hash.consume(content));
        folder.join("encoder").join(format!("{:x}.rows", hash.finalize()))
    }

    /// Returns the key of a set's cache.
    fn key(&self, set: &TrainingSet) -> Result<EncoderCacheKey> {
        Ok(EncoderCacheKey {
            settings: self.settings()?,
            format: self.format,
            width: self.model.encoder().width(),
            contents: set.content_hashes()?,
        })
    }

    /// Returns a hash of encoder, weights and front end.
    fn settings(&self) -> Result<[u8; 16]> {
        let config = self.model.config();
        let json = serde_json::to_vec(&(&config.encoder, &config.input))
            .map_err(|error| Error::shape("encoder", "serializable settings", error.to_string()))?;
        let mut hash = md5::Context::new();
        hash.consume(&json);
        for (name, variable) in self.model.parameters().iter() {
            if !name.starts_with("encoder.") {
                continue;
            }
            hash.consume(name);
            let values = variable.as_tensor().contiguous()?;
            let checksum = with_slice(&values, |values: &[f32]| {
                let mut checksum = crc32fast::Hasher::new();
                values.chunks(VALUES_PER_BLOCK).for_each(|block| {
                    checksum.update(&block.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
                });
                Ok(checksum.finalize())
            })?;
            hash.consume(checksum.to_le_bytes());
        }
        Ok(hash.finalize().0)
    }
}
