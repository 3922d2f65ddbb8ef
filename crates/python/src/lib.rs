//! Native module of the Python package `panda_rnnt`: losses and recognizers over arrays.
//!
//! Arrays enter by DLPack and leave as `Array`, without copies. The modules in
//! `python/panda_rnnt` check devices and types, and define the operations of each library.
#![warn(missing_docs)]

mod alignments;
mod arrays;
mod decoding;
mod inputs;
#[cfg(target_os = "linux")]
mod large_blocks;
mod lattice;
mod lattice_boundaries;
mod lattice_recursion;
mod log_probs;
mod losses;
mod options;
mod process_mutex;
mod recognizer;
mod recognizer_batch;
mod recognizer_errors;
mod recognizer_options;
mod selected;
mod site_log_probs;
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
    module.add_class::<decoding::LabelScorer>()?;
    module.add_class::<decoding::WeightModel>()?;
    module.add_class::<recognizer::Recognizer>()?;
    module.add_class::<recognizer::Stream>()?;
    module.add_function(wrap_pyfunction!(alignments::align, module)?)?;
    module.add_function(wrap_pyfunction!(alignments::posteriors, module)?)?;
    module.add_function(wrap_pyfunction!(decoding::decode_callbacks, module)?)?;
    module.add_function(wrap_pyfunction!(decoding::decode_weights, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::history_table, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::lattice_best_paths, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::lattice_loss, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::lattice_marginals, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::n_gram_states, module)?)?;
    module.add_function(wrap_pyfunction!(self::lattice::n_gram_walk, module)?)?;
    module.add_function(wrap_pyfunction!(lattice_boundaries::check_symbols, module)?)?;
    module.add_function(wrap_pyfunction!(lattice_recursion::lattice_recursion, module)?)?;
    module.add_function(wrap_pyfunction!(log_probs::ctc_best_path, module)?)?;
    module.add_function(wrap_pyfunction!(log_probs::emission_loss, module)?)?;
    module.add_function(wrap_pyfunction!(losses::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(losses::loss, module)?)?;
    module.add_function(wrap_pyfunction!(selected::check_selection, module)?)?;
    module.add_function(wrap_pyfunction!(selected::selected_backward, module)?)?;
    module.add_function(wrap_pyfunction!(selected::selected_forward, module)?)?;
    module.add_function(wrap_pyfunction!(site_log_probs::site_log_probs, module)?)?;
    module.add_function(wrap_pyfunction!(site_log_probs::site_log_probs_gradient, module)?)?;
    module.add_function(wrap_pyfunction!(threads::num_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads::set_num_threads, module)?)?;
    Ok(())
}
