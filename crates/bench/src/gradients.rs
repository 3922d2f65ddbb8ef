//! Compares gradients of two systems: child processes write them to files.
//!
//! The parent reads the files block by block.
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use candle_core::Tensor;

use super::error::{Error, Result};

/// Size of the buffers of files.
const BUFFER_BYTES: usize = 1 << 20;

/// A gradient in the representation of its system, without a copy.
pub(crate) enum GradientValues {
    /// Values in `f32`.
    Single(Vec<f32>),
    /// Values in `f64`, for lattices.
    Double(Vec<f64>),
    /// A candle tensor in `f32`.
    Tensor(Tensor),
}

/// Named gradients of one step.
pub(crate) type NamedGradients = Vec<(&'static str, GradientValues)>;

/// Creates a folder and writes each gradient to a file in it.
///
/// # Errors
/// [`Error::File`], and errors of candle.
pub(crate) fn write_gradients(folder: &Path, gradients: NamedGradients) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::file(folder, "make the folder"))?;
    for (name, values) in gradients {
        match values {
            GradientValues::Single(values) => {
                write_values(folder, name, "f32", values.iter().map(|x| x.to_le_bytes()))
            }
            GradientValues::Double(values) => {
                write_values(folder, name, "f64", values.iter().map(|x| x.to_le_bytes()))
            }
            GradientValues::Tensor(tensor) => {
                let values = tensor.flatten_all()?.to_vec1::<f32>()?;
                write_values(folder, name, "f32", values.iter().map(|x| x.to_le_bytes()))
            }
        }?;
    }
    Ok(())
}

/// Writes the little-endian bytes of a gradient to a file.
fn write_values<const W: usize>(
    folder: &Path,
    name: &str,
    extension: &str,
    numbers: impl Iterator<Item = [u8; W]>,
) -> Result<()> {
    let path = folder.join(name).with_extension(extension);
    let write = || {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, File::create(&path)?);
        for number in numbers {
            file.write_all(&number)?;
        }
        file.flush()
    };
    write().map_err(Error::file(&path, "write a gradient"))
}

/// Returns the largest relative difference of two sets of gradients.
///
/// `max over tensors of |actual - expected|_2 / |expected|_2`, from two folders of
/// [`write_gradients()`].
/// Infinite if a value is NaN.
///
/// # Errors
/// [`Error::File`] and [`Error::Gradients`].
///
/// # Cost
/// One pass over the files with buffers of a megabyte.
pub(crate) fn largest_difference(actual: &Path, expected: &Path) -> Result<f64> {
    let mut largest = 0f64;
    for entry in std::fs::read_dir(expected).map_err(Error::file(expected, "list gradients"))? {
        let path = entry.map_err(Error::file(expected, "list gradients"))?.path();
        let actual_path = actual.join(path.file_name().unwrap_or_default());
        let length = |path: &Path| {
            std::fs::metadata(path).map(|data| data.len()).map_err(Error::file(path, "read a gradient"))
        };
        // The extension is the type of the values.
        let value_size = if path.extension().is_some_and(|extension| extension == "f64") { 8 } else { 4 };
        let (expected_bytes, actual_bytes) = (length(&path)?, length(&actual_path)?);
        if expected_bytes != actual_bytes {
            let tensor = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (expected, found) = (expected_bytes / value_size, actual_bytes / value_size);
            return Err(Error::Gradients { tensor, expected, found });
        }
        let difference = match value_size {
            8 => relative_difference(&actual_path, &path, f64::from_le_bytes),
            _ => relative_difference(&actual_path, &path, |bytes: [u8; 4]| {
                f64::from(f32::from_le_bytes(bytes))
            }),
        };
        // `max` ignores NaN.
        let difference = difference.map_err(Error::file(&path, "read a gradient"))?;
        largest = if difference.is_nan() { f64::INFINITY } else { largest.max(difference) };
    }
    Ok(largest)
}

/// Returns `|actual - expected|_2 / |expected|_2` of two files of numbers.
fn relative_difference<const W: usize>(
    actual: &Path,
    expected: &Path,
    from_bytes: impl Fn([u8; W]) -> f64,
) -> std::io::Result<f64> {
    let open =
        |path: &Path| Ok::<_, std::io::Error>(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?));
    let (mut actual, mut expected) = (open(actual)?, open(expected)?);
    let (mut squared_difference, mut squared_norm) = (0.0, 0.0);
    let (mut actual_bytes, mut expected_bytes) = ([0; W], [0; W]);
    loop {
        match expected.read_exact(&mut expected_bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            result => result?,
        }
        actual.read_exact(&mut actual_bytes)?;
        let (actual, expected) = (from_bytes(actual_bytes), from_bytes(expected_bytes));
        squared_difference += (actual - expected) * (actual - expected);
        squared_norm += expected * expected;
    }
    Ok(if squared_difference == 0.0 { 0.0 } else { (squared_difference / squared_norm).sqrt() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_tensor_counts_and_nan_is_infinite() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, weight: Vec<f32>, adjoints: Vec<f64>| {
            let gradients = vec![
                ("weight", GradientValues::Single(weight)),
                ("adjoints", GradientValues::Double(adjoints)),
            ];
            write_gradients(&folder.path().join(name), gradients).unwrap();
        };
        let compare = |a: &str| largest_difference(&folder.path().join(a), &folder.path().join("baseline"));
        write("baseline", vec![3.0, 4.0], vec![1.0]);
        write("near", vec![3.0, 4.5], vec![1.2]);
        write("nan", vec![f32::NAN, 4.0], vec![1.0]);
        write("short", vec![3.0], vec![1.0]);
        assert_eq!(compare("baseline").unwrap(), 0.0);
        assert!((compare("near").unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(compare("nan").unwrap(), f64::INFINITY);
        let error = compare("short").unwrap_err().to_string();
        assert_eq!(error, "gradient of weight: expected 2 values as in the baseline, found 1");
    }
}
