//! Tensors from arrays of NumPy, and back. Python hands over each array as the name of its type, its shape and its bytes, packed and
//! row-major (`forebay/_arrays.py`); the one copy into Forebay is made here. What comes back is made without a copy.

use std::collections::BTreeMap;

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
