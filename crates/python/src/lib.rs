//! Native module of the Python package `panda_rnnt`: losses over arrays of other libraries.
//!
//! Arrays enter by DLPack and leave as `Array`, without copies. The modules in
//! `python/panda_rnnt` check devices and types, and define the operations of each library.
#![warn(missing_docs)]

mod arrays;
#[cfg(target_os = "linux")]
mod large_blocks;
mod lattice;
mod losses;
mod options;
mod targets;
mod threads;

use pyo3::{Bound, PyResult, pymodule, types::PyModule, types::PyModuleMethods, wrap_pyfunction};

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: large_blocks::LargeBlocks = large_blocks::LargeBlocks;

/// Losses and searches of the panda toolkit.
#[pymodule]
fn _native(module: &Bound<PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<arrays::Array>()?;
    module.add_function(wrap_pyfunction!(self::lattice::history_table, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::lattice_best_paths, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::lattice_loss, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::lattice_marginals, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::n_gram_states, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::n_gram_walk, module)?)?;
    module.add_function(wrap_pyfunction!(losses::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(losses::joint_loss, module)?)?;
    module.add_function(wrap_pyfunction!(losses::hidden_loss, module)?)?;
    module.add_function(wrap_pyfunction!(losses::score_loss, module)?)?;
    module.add_function(wrap_pyfunction!(threads::num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads::set_num_threads, module)?)?;
    Ok(())
}
