//! Tensors from arrays of NumPy, and back. Python hands over each array as the name of its type, its shape and its bytes, packed and
//! row-major (`forebay/_arrays.py`). What comes back is made without a copy.
//!
//! Inputs of short work are read where they are ([`tensors_in_place`]); for the rest, the one copy into Forebay is made here ([`tensor`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay::{DataType, Tensor};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An array as Python hands it over: type, shape, bytes.
pub type Given<'py> = (String, Vec<u64>, PyReadonlyArray1<'py, u8>);

/// The same the other way.
pub type Taken<'py> = (&'static str, Vec<u64>, Bound<'py, PyArray1<u8>>);

/// The data type of a name.
///
/// # Errors
/// A type that there is not.
pub fn data_type(name: &str) -> PyResult<DataType> {
    let named = DataType::ALL.into_iter().find(|known| known.name() == name);
    named.ok_or_else(|| PyValueError::new_err(format!("there is no data type {name}")))
}

/// Copies an array into a tensor.
///
/// # Errors
/// A type that there is not, or bytes that do not fit it.
pub fn tensor((name, shape, bytes): Given<'_>) -> PyResult<Tensor> {
    let known = data_type(&name)?;
    let bytes = bytes.as_slice().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let count = bytes.len();
    Tensor::new(known, &shape, bytes)
        .ok_or_else(|| PyValueError::new_err(format!("{count} bytes are no {name}{shape:?}")))
}

/// Bytes of an array, which are read where they are while this keeps the array.
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
        // SAFETY: the array is kept, and with it its bytes, which NumPy moves for no array that others know of. Nothing writes them: work on
        // them lasts no longer than the call that was given them, and a caller who writes to an array that a call is at work on has what NumPy
        // itself gives then, numbers that are old or new. They are floating numbers, so that no index comes from them.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

/// A tensor of an array's bytes where they are, for work that ends before the call does; a copy of what may be indices.
///
/// # Errors
/// As [`tensor`].
fn tensor_in_place(given: Given<'_>) -> PyResult<Tensor> {
    let known = data_type(&given.0)?;
    if !known.is_float() {
        return tensor(given);
    }
    let (name, shape, array) = given;
    let bytes = array.as_slice().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let (address, length) = (bytes.as_ptr(), bytes.len());
    let owner = InPlace { _array: (*array).clone().unbind(), address, length };
    let misfit = || PyValueError::new_err(format!("{length} bytes are no {name}{shape:?}"));
    Tensor::over(known, &shape, Arc::new(owner)).ok_or_else(misfit)
}

/// Tensors of arrays by name, where they are as far as that can be: for work that ends before the call does.
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

/// Hands over a tensor: its bytes become the array's.
pub fn array(py: Python<'_>, tensor: Tensor) -> Taken<'_> {
    let (data_type, shape) = (tensor.data_type().name(), tensor.shape().to_vec());
    (data_type, shape, PyArray1::from_vec(py, tensor.into_bytes()))
}

/// Hands over tensors by name.
///
/// # Errors
/// What Python says.
pub fn arrays(py: Python<'_>, tensors: BTreeMap<String, Tensor>) -> PyResult<Bound<'_, PyDict>> {
    let dictionary = PyDict::new(py);
    for (name, tensor) in tensors {
        dictionary.set_item(name, array(py, tensor))?;
    }
    Ok(dictionary)
}
