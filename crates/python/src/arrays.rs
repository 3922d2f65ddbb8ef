//! Arrays: borrowed from other libraries by DLPack, and returned to them.
use std::{ffi::c_void, sync::Arc};

use dlpark::{
    DlpackElement, DlpackFlags, Managed, ManagedTensorBase,
    ffi::{DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned},
    metadata::Dynamic,
    python::{DlpackExporter, ExportRequest, ImportedDlpack, export_dlpack, from_dlpack},
};
use pyo3::{
    Bound, Py, PyAny, PyResult, Python,
    exceptions::{PyBufferError, PyTypeError, PyValueError},
    pyclass, pymethods,
    types::{PyDict, PyDictMethods},
};

/// An array of another library, borrowed for a call.
pub struct Borrowed {
    argument: &'static str,
    tensor: ImportedDlpack,
    shape: Vec<usize>,
    dtype: DLDataType,
}

impl Borrowed {
    /// Borrows an array of `rank` axes in the memory of the CPU.
    ///
    /// # Errors
    /// An object without DLPack; another rank or device.
    pub fn new(argument: &'static str, array: &Bound<PyAny>, rank: usize) -> PyResult<Self> {
        let tensor = from_dlpack(array.as_borrowed(), None, None)?;
        let view =
            tensor.validate().map_err(|error| PyValueError::new_err(format!("{argument}: {error}")))?;
        let shape: Vec<usize> = view.shape().iter().map(|&size| size as usize).collect();
        if view.device() != DLDevice::CPU {
            let device = view.device();
            return Err(PyValueError::new_err(format!(
                "{argument}: expected an array on the CPU, found {device:?}"
            )));
        }
        if shape.len() != rank {
            return Err(PyValueError::new_err(format!("{argument}: expected {rank} axes, found {shape:?}")));
        }
        let dtype = view.dtype();
        Ok(Self { argument, tensor, shape, dtype })
    }

    /// Sizes of the axes.
    pub fn shape<const RANK: usize>(&self) -> [usize; RANK] {
        std::array::from_fn(|axis| self.shape[axis])
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DLDataType {
        self.dtype
    }

    /// Borrows the elements.
    ///
    /// # Errors
    /// Another type of elements; an array that is not contiguous.
    pub fn elements<T: DlpackElement>(&self) -> PyResult<&[T]> {
        if self.dtype != T::DTYPE {
            return Err(self.dtype_error(type_name(T::DTYPE)));
        }
        let to_error = |error| PyValueError::new_err(format!("{}: {error}", self.argument));
        if self.shape.contains(&0) {
            return Ok(&[]);
        }
        let view = self.tensor.validate().map_err(to_error)?;
        if !is_row_major(view.shape(), view.strides()) {
            return Err(PyValueError::new_err(format!("{}: expected a contiguous array", self.argument)));
        }
        // SAFETY: `new` has checked that the elements are in the memory of the CPU.
        let data = unsafe { view.offset_data_ptr::<T>() }.map_err(to_error)?;
        // SAFETY: the exporter guarantees that its descriptor covers initialized elements until the
        // tensor is released, which `self` does on drop; in row-major order they are adjacent. As
        // with any function that releases the lock of the interpreter, other threads must not write
        // to the array during the call.
        Ok(unsafe { std::slice::from_raw_parts(data, view.num_elements()) })
    }

    /// Copies integers of 32 or 64 bits.
    ///
    /// # Errors
    /// Another type of elements; an array that is not contiguous.
    pub fn integers(&self) -> PyResult<Vec<i64>> {
        match self.dtype {
            DLDataType::I64 => Ok(self.elements::<i64>()?.to_vec()),
            DLDataType::I32 => Ok(self.elements::<i32>()?.iter().map(|&value| value.into()).collect()),
            _ => Err(self.dtype_error("int32 or int64")),
        }
    }

    /// Returns the error of an unsupported type.
    pub fn dtype_error(&self, expected: &str) -> pyo3::PyErr {
        let (argument, found) = (self.argument, type_name(self.dtype));
        PyTypeError::new_err(format!("{argument}: expected {expected}, found {found}"))
    }
}

/// Returns whether elements are adjacent, in row-major order.
///
/// The stride of an axis of size 1 has no meaning; parts of an array have that of the whole array.
fn is_row_major(shape: &[i64], strides: Option<&[i64]>) -> bool {
    let Some(strides) = strides else { return true };
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let is_expected = size == 1 || stride == expected;
        expected *= size;
        is_expected
    })
}

/// Name of an element type in Python.
fn type_name(dtype: DLDataType) -> &'static str {
    match dtype {
        DLDataType::F32 => "float32",
        DLDataType::F64 => "float64",
        DLDataType::I32 => "int32",
        DLDataType::I64 => "int64",
        DLDataType::BOOL => "bool",
        _ => "another type",
    }
}

/// Elements of an array that this module returns.
#[derive(Clone)]
enum Elements {
    F32(Arc<Vec<f32>>),
    F64(Arc<Vec<f64>>),
    I64(Arc<Vec<i64>>),
}

/// An element type of returned arrays.
pub trait ArrayElement: DlpackElement {
    #[doc(hidden)]
    fn array(elements: Vec<Self>, shape: Vec<usize>) -> Array
    where
        Self: Sized;
}

macro_rules! array_element {
    ($type:ty, $variant:ident) => {
        impl ArrayElement for $type {
            fn array(elements: Vec<Self>, shape: Vec<usize>) -> Array {
                Array { elements: Elements::$variant(Arc::new(elements)), shape }
            }
        }
    };
}

array_element!(f32, F32);
array_element!(f64, F64);
array_element!(i64, I64);

/// A returned array; other libraries adopt its memory by `from_dlpack` or `numpy.asarray`.
#[pyclass(frozen, module = "panda_rnnt._native")]
pub struct Array {
    elements: Elements,
    shape: Vec<usize>,
}

impl Array {
    /// Returns address, type, and NumPy's type name of the elements.
    fn parts(&self) -> (*mut c_void, DLDataType, &'static str) {
        match &self.elements {
            Elements::F32(elements) => (elements.as_ptr() as *mut c_void, DLDataType::F32, "<f4"),
            Elements::F64(elements) => (elements.as_ptr() as *mut c_void, DLDataType::F64, "<f8"),
            Elements::I64(elements) => (elements.as_ptr() as *mut c_void, DLDataType::I64, "<i8"),
        }
    }

    /// Returns a descriptor that shares the elements.
    fn export<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let (data, dtype, _) = self.parts();
        let to_error = |error| PyBufferError::new_err(format!("array: {error}"));
        let shape: Vec<i64> = self.shape.iter().map(|&size| size as i64).collect();
        let owner = Box::new(self.elements.clone());
        let mut tensor = Dynamic::compact(shape).prepare_as::<M>().map_err(to_error)?.initialize(owner);
        tensor.set_data(data).set_dtype(dtype).set_device(DLDevice::CPU);
        // SAFETY: `owner` keeps the elements alive and in place; type, shape and compact strides
        // are those of the vector. Only the importing library writes to it.
        Ok(unsafe { tensor.finish() })
    }
}

impl DlpackExporter for Array {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    fn prepare_export(&self, _: Python, _: &ExportRequest) -> PyResult<()> {
        Ok(())
    }

    fn export_legacy(&self, _: Python) -> PyResult<Managed<DLManagedTensor>> {
        self.export()
    }

    fn export_versioned(&self, _: Python) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.export()
    }
}

#[pymethods]
impl Array {
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export_dlpack(self, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        (DLDevice::CPU.device_type.0, DLDevice::CPU.device_id)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (data, _, type_string) = self.parts();
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", type_string)?;
        interface.set_item("shape", pyo3::types::PyTuple::new(py, &self.shape)?)?;
        interface.set_item("data", (data as usize, false))?;
        Ok(interface)
    }
}
