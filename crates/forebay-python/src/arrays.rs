//! Tensors from NumPy arrays, and back. Python passes each array as the name of its type, its shape and its bytes, packed and row-major
//! (`forebay/_arrays.py`). Results are returned without a copy.
//!
//! Inputs of short work, and predictions for metrics, are read in place ([`tensor_in_place`]); for other work, the only copy into Forebay
//! is made here ([`tensor`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::{DataType, Tensor};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An array passed from Python: type, shape, bytes.
pub type Given<'py> = (String, Vec<u64>, PyReadonlyArray1<'py, u8>);

/// An array passed to Python: type, shape, bytes.
pub type Taken<'py> = (&'static str, Vec<u64>, Bound<'py, PyArray1<u8>>);

/// Returns the data type with a name.
///
/// # Errors
/// Fails if there is no such type.
pub fn data_type(name: &str) -> PyResult<DataType> {
    let named = DataType::ALL.into_iter().find(|known| known.name() == name);
    named.ok_or_else(|| PyValueError::new_err(format!("unknown data type '{name}'")))
}

/// Copies an array into a tensor.
///
/// # Errors
/// Fails if there is no such type or if the bytes do not match it.
pub fn tensor((name, shape, bytes): Given<'_>) -> PyResult<Tensor> {
    let known = data_type(&name)?;
    let bytes = bytes.as_slice().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let count = bytes.len();
    Tensor::new(known, &shape, bytes)
        .ok_or_else(|| PyValueError::new_err(format!("{count} bytes do not make up {name}{shape:?}")))
}

/// The bytes of an array, which are read in place while this keeps the array.
struct InPlace {
    /// Keeps the bytes.
    _array: Py<PyArray1<u8>>,
    address: *const u8,
    length: usize,
}

// SAFETY: the bytes are only read, and an array may be dropped on any thread.
unsafe impl Send for InPlace {}
// SAFETY: as for `Send`.
unsafe impl Sync for InPlace {}

impl AsRef<[u8]> for InPlace {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the array is kept, and so are its bytes, which NumPy never moves for an array that others reference. Either the caller
        // never writes to them, or work on them lasts no longer than the call that received them, and a caller who writes to an array
        // during a call gets what NumPy itself would give, values that are old or new. They are floating-point numbers, so no index is
        // computed from them.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// Returns a tensor of an array's bytes in place, for work that ends before the call does, or for an array that the caller never writes to.
/// Bytes that can be indices are copied.
///
/// # Errors
/// As [`tensor`].
pub fn tensor_in_place(given: Given<'_>) -> PyResult<Tensor> {
    let known = data_type(&given.0)?;
    if !known.is_float() {
        return tensor(given);
    }
    let (name, shape, array) = given;
    let bytes = array.as_slice().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let (address, length) = (bytes.as_ptr(), bytes.len());
    let owner = InPlace { _array: (*array).clone().unbind(), address, length };
    let misfit = || PyValueError::new_err(format!("{length} bytes do not make up {name}{shape:?}"));
    Tensor::over(known, &shape, Arc::new(owner)).ok_or_else(misfit)
}

/// Returns tensors of arrays by name, in place where possible, for work that ends before the call does.
///
/// # Errors
/// As [`tensor`].
pub fn tensors_in_place(given: BTreeMap<String, Given<'_>>) -> PyResult<BTreeMap<String, Tensor>> {
    given.into_iter().map(|(name, array)| Ok((name, tensor_in_place(array)?))).collect()
}

/// Copies arrays by name.
///
/// # Errors
/// As [`tensor`].
pub fn tensors(given: BTreeMap<String, Given<'_>>) -> PyResult<BTreeMap<String, Tensor>> {
    given.into_iter().map(|(name, array)| Ok((name, tensor(array)?))).collect()
}

/// Passes a tensor to Python: its bytes become the array's.
pub fn array(py: Python<'_>, tensor: Tensor) -> Taken<'_> {
    let (data_type, shape) = (tensor.data_type().name(), tensor.shape().to_vec());
    (data_type, shape, PyArray1::from_vec(py, tensor.into_bytes()))
}

/// Passes tensors to Python by name.
///
/// # Errors
/// Returns the exception that Python raises.
pub fn arrays(py: Python<'_>, tensors: BTreeMap<String, Tensor>) -> PyResult<Bound<'_, PyDict>> {
    let dictionary = PyDict::new(py);
    for (name, tensor) in tensors {
        dictionary.set_item(name, array(py, tensor))?;
    }
    Ok(dictionary)
}
