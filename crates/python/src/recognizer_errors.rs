//! Errors of recognition as Python exceptions.
use std::{error::Error, io};

use pyo3::{
    PyErr,
    exceptions::{
        PyFileNotFoundError, PyIsADirectoryError, PyMemoryError, PyOSError, PyPermissionError, PyValueError,
    },
};

/// Converts an error of the recognizer.
///
/// Errors of the system become `OSError` or a subclass, others `ValueError` or `MemoryError`.
pub fn to_python_error(error: recognizer::Error) -> PyErr {
    let message = error.to_string();
    new_python_error(&error, message)
}

/// Converts an error about a recording.
pub fn named_error(name: &str, error: recognizer::Error) -> PyErr {
    let message = format!("{name}: {error}");
    new_python_error(&error, message)
}

fn new_python_error(error: &recognizer::Error, message: String) -> PyErr {
    use recognizer::Error::Model;
    match error {
        Model(model::Error::Memory { .. } | model::Error::Speech(speech::Error::Memory { .. })) => {
            return PyMemoryError::new_err(message);
        }
        Model(model::Error::Speech(speech::Error::FileRate { .. })) => {
            return PyValueError::new_err(format!("{message}; resample=True converts it"));
        }
        _ => {}
    }
    match system_error_kind(error) {
        None => PyValueError::new_err(message),
        Some(io::ErrorKind::NotFound) => PyFileNotFoundError::new_err(message),
        Some(io::ErrorKind::PermissionDenied) => PyPermissionError::new_err(message),
        Some(io::ErrorKind::IsADirectory) => PyIsADirectoryError::new_err(message),
        Some(_) => PyOSError::new_err(message),
    }
}

/// Returns the kind of the underlying error of the system, if any.
fn system_error_kind(error: &recognizer::Error) -> Option<io::ErrorKind> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        next = error.source();
    }
    None
}
