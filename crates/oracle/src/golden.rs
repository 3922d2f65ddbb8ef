//! Reads golden vectors: results of independent programs, next to the repository.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

/// Returns the folder of the transducer golden vectors.
///
/// None if the shared data is absent, with a note on standard output.
///
/// # Panics
/// If the folder is missing under `CI=true`.
pub fn folder() -> Option<PathBuf> {
    system_folder("rnnt")
}

/// Returns the golden folder of another system, as [`folder`].
///
/// # Panics
/// As [`folder`].
pub fn system_folder(system: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden").join(system);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{}: missing under CI=true", folder.display());
    println!("skipped: {} does not exist", folder.display());
    None
}

/// The tensors of a golden case.
///
/// It records which tensors were read, so that a test can check that it uses all of them.
pub struct GoldenTensors {
    /// Shape and values of each tensor.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    /// Names whose values were read.
    read_names: RefCell<BTreeSet<String>>,
}

impl GoldenTensors {
    /// Reads a safetensors file of floating-point numbers and integers.
    ///
    /// # Panics
    /// If the file is missing, corrupt or has another dtype.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file =
            SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let values = |dtype, data: &[u8]| match dtype {
            Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
            Dtype::F32 => data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b).into()).collect(),
            Dtype::I32 => data.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b).into()).collect(),
            Dtype::I64 => data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
            other => panic!("{}: expected f32, f64, i32 or i64, found {other:?}", path.display()),
        };
        let tensors = file.tensors().into_iter();
        let tensors =
            tensors.map(|(name, view)| (name, (view.shape().to_vec(), values(view.dtype(), view.data()))));
        Self { tensors: tensors.collect(), read_names: RefCell::default() }
    }

    /// Returns true if there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the shape of a tensor.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn shape(&self, name: &str) -> &[usize] {
        &self.tensor(name).0
    }

    /// Returns the values of a tensor, row by row.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn values(&self, name: &str) -> &[f64] {
        self.read_names.borrow_mut().insert(name.to_owned());
        &self.tensor(name).1
    }

    /// Returns the values of a tensor of integers.
    ///
    /// # Panics
    /// If there is no such tensor, or it has values that are not integers.
    pub fn integers(&self, name: &str) -> Vec<i64> {
        let integer = |&value: &f64| {
            if value.fract() == 0.0 {
                value as i64
            } else {
                panic!("{name}: expected integers, found {value}")
            }
        };
        self.values(name).iter().map(integer).collect()
    }

    /// Names of the tensors whose values were never read.
    pub fn unread_names(&self) -> Vec<&str> {
        let read_names = self.read_names.borrow();
        self.names().filter(|&name| !read_names.contains(name)).collect()
    }

    fn tensor(&self, name: &str) -> &(Vec<usize>, Vec<f64>) {
        self.tensors.get(name).unwrap_or_else(|| panic!("{name}: no such tensor"))
    }
}
