//! Paths of the speech data that some tests read.

use std::path::PathBuf;

/// A file of the shared speech data, which CI requires.
pub(crate) fn shared(file: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(file);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{} is missing, and CI requires it",
        path.display()
    );
    println!("skipped: {} is missing", path.display());
    None
}

/// A file of the digits that are in the repository.
pub(crate) fn digits(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/digits").join(file)
}

/// A WAV file of 16-bit samples, as bytes.
pub(crate) fn wav_bytes(sample_rate: u32, samples: &[i16]) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut file = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut file, spec).unwrap();
    samples.iter().for_each(|&sample| writer.write_sample(sample).unwrap());
    writer.finalize().unwrap();
    file.into_inner()
}
