//! Gradients on their way from the processes that made them to the comparison.
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use candle_core::Tensor;

use super::error::{Error, Result};

/// A gradient as its system left it; nothing is copied before it is written.
pub enum GradientValues {
    /// Ours.
    Single(Vec<f32>),
    /// Of lattices.
    Double(Vec<f64>),
    /// Candle's, in `f32`.
    Tensor(Tensor),
}

/// Named gradients of one step.
pub type NamedGradients = Vec<(&'static str, GradientValues)>;

/// Writes each gradient to a file of its own in a folder that it makes.
///
/// # Errors
/// [`Error::File`] where the disk is full, and candle's own errors.
pub fn write(folder: &Path, gradients: NamedGradients) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::file(folder, "make the folder"))?;
    for (name, values) in gradients {
        match values {
            GradientValues::Single(values) => {
                write_numbers(folder, name, "f32", values.iter().map(|x| x.to_le_bytes()))
            }
            GradientValues::Double(values) => {
                write_numbers(folder, name, "f64", values.iter().map(|x| x.to_le_bytes()))
            }
            GradientValues::Tensor(tensor) => {
                let values = tensor.flatten_all()?.to_vec1::<f32>()?;
                write_numbers(folder, name, "f32", values.iter().map(|x| x.to_le_bytes()))
            }
        }?;
    }
    Ok(())
}

fn write_numbers<const W: usize>(
    folder: &Path,
    name: &str,
    ending: &str,
    numbers: impl Iterator<Item = [u8; W]>,
) -> Result<()> {
    let path = folder.join(name).with_extension(ending);
    let write = || {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        for number in numbers {
            file.write_all(&number)?;
        }
        file.flush()
    };
    write().map_err(Error::file(&path, "write a gradient"))
}

/// `max over tensors of |found - expected|_2 / |expected|_2`, from two folders of [`write()`].
///
/// # Errors
/// [`Error::File`] and [`Error::Gradients`].
///
/// # Cost
/// One pass over the files with buffers of a megabyte.
pub fn largest_difference(found: &Path, expected: &Path) -> Result<f64> {
    let mut largest = 0f64;
    for entry in std::fs::read_dir(expected).map_err(Error::file(expected, "list gradients"))? {
        let path = entry.map_err(Error::file(expected, "list gradients"))?.path();
        let other = found.join(path.file_name().unwrap_or_default());
        let length = |path: &Path| {
            std::fs::metadata(path).map(|data| data.len()).map_err(Error::file(path, "read a gradient"))
        };
        let width = if path.extension().is_some_and(|ending| ending == "f64") { 8 } else { 4 };
        let (here, there) = (length(&path)?, length(&other)?);
        if here != there {
            let tensor = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Err(Error::Gradients { tensor, expected: here / width, found: there / width });
        }
        let difference = match width {
            8 => difference(&other, &path, f64::from_le_bytes),
            _ => difference(&other, &path, |bytes: [u8; 4]| f64::from(f32::from_le_bytes(bytes))),
        };
        // NaN must not hide behind a comparison.
        let difference = difference.map_err(Error::file(&path, "read a gradient"))?;
        largest = if difference.is_nan() { f64::INFINITY } else { largest.max(difference) };
    }
    Ok(largest)
}

fn difference<const W: usize>(
    found: &Path,
    expected: &Path,
    number: impl Fn([u8; W]) -> f64,
) -> std::io::Result<f64> {
    let open = |path: &Path| Ok::<_, std::io::Error>(BufReader::with_capacity(1 << 20, File::open(path)?));
    let (mut found, mut expected) = (open(found)?, open(expected)?);
    let (mut squares, mut total) = (0.0, 0.0);
    let (mut a, mut b) = ([0; W], [0; W]);
    loop {
        match expected.read_exact(&mut b) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            other => other?,
        }
        found.read_exact(&mut a)?;
        let (a, b) = (number(a), number(b));
        squares += (a - b) * (a - b);
        total += b * b;
    }
    Ok(if squares == 0.0 { 0.0 } else { (squares / total).sqrt() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_tensor_decides_and_nan_is_never_near() {
        let folder = tempfile::tempdir().unwrap();
        let save = |name: &str, weight: Vec<f32>, adjoints: Vec<f64>| {
            let gradients = vec![
                ("weight", GradientValues::Single(weight)),
                ("adjoints", GradientValues::Double(adjoints)),
            ];
            write(&folder.path().join(name), gradients).unwrap();
        };
        let compare = |a: &str| largest_difference(&folder.path().join(a), &folder.path().join("rival"));
        save("rival", vec![3.0, 4.0], vec![1.0]);
        save("near", vec![3.0, 4.5], vec![1.2]);
        save("nan", vec![f32::NAN, 4.0], vec![1.0]);
        save("short", vec![3.0], vec![1.0]);
        assert_eq!(compare("rival").unwrap(), 0.0);
        assert!((compare("near").unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(compare("nan").unwrap(), f64::INFINITY);
        let error = compare("short").unwrap_err().to_string();
        assert_eq!(error, "gradient of weight: expected 2 values in either system, found 1");
    }
}
