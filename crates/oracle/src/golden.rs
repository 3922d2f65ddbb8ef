//! Where the golden vectors are: answers of independent programs, kept beside the clone.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

/// The golden folder; none on a clone without the shared data, which is said on standard output.
///
/// # Panics
/// If the folder is missing in CI, which must have it.
pub fn folder() -> Option<PathBuf> {
    folder_of("rnnt")
}

/// The golden vectors of another system, as [`folder`].
///
/// # Panics
/// As [`folder`].
pub fn folder_of(system: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden").join(system);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{} is missing in CI", folder.display());
    println!("skipped: {} is not here", folder.display());
    None
}

/// The tensors of a golden case, which remember that they were looked at, so that a test can know that it left none out.
pub struct Tensors {
    all: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    seen: RefCell<BTreeSet<String>>,
}

impl Tensors {
    /// Reads a file of floating-point numbers and integers.
    ///
    /// # Panics
    /// If it is missing, corrupt or has numbers of another kind.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file =
            SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let values = |kind, data: &[u8]| match kind {
            Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
            Dtype::F32 => data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b).into()).collect(),
            Dtype::I32 => data.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b).into()).collect(),
            Dtype::I64 => data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
            other => panic!("{}: {other:?}", path.display()),
        };
        let tensors = file.tensors().into_iter();
        let all =
            tensors.map(|(name, view)| (name, (view.shape().to_vec(), values(view.dtype(), view.data()))));
        Self { all: all.collect(), seen: RefCell::default() }
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    /// All names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// Shape of a tensor.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn shape(&self, name: &str) -> &[usize] {
        &self.tensor(name).0
    }

    /// Values of a tensor, row by row.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn values(&self, name: &str) -> &[f64] {
        self.seen.borrow_mut().insert(name.to_owned());
        &self.tensor(name).1
    }

    /// Values of a tensor of integers.
    ///
    /// # Panics
    /// If there is no such tensor, or it holds other numbers.
    pub fn integers(&self, name: &str) -> Vec<i64> {
        let whole =
            |&value: &f64| if value.fract() == 0.0 { value as i64 } else { panic!("{name}: {value}") };
        self.values(name).iter().map(whole).collect()
    }

    /// Names of the tensors whose values nobody looked at.
    pub fn unseen(&self) -> Vec<&str> {
        let seen = self.seen.borrow();
        self.names().filter(|&name| !seen.contains(name)).collect()
    }

    fn tensor(&self, name: &str) -> &(Vec<usize>, Vec<f64>) {
        self.all.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }
}
