//! Reads manifests and prints warnings about their lines.
use std::path::Path;

use speech::{Manifest, Utterance};

use crate::error::Result;
use crate::printing::warn_each;

/// Reads a manifest; warns about blank lines.
pub(crate) fn read_with_lines(path: &Path) -> Result<Manifest> {
    let manifest = Manifest::read(path)?;
    warn_each(manifest.blank_lines.warning(path));
    Ok(manifest)
}

/// Reads the utterances of a manifest; warns about blank lines.
pub(crate) fn read(path: &Path) -> Result<Vec<Utterance>> {
    Ok(read_with_lines(path)?.utterances)
}
