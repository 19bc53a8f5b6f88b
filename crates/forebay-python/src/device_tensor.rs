//! Tensors on the device, and operations on them: ONNX operators by name.

use std::collections::BTreeMap;

use forebay::{Attribute, Error};
use numpy::PyArray1;
use numpy::ndarray::ArrayView1;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::arrays::{Given, Taken, array, data_type, tensor};
use crate::eager::{Stream, waiting};
use crate::errors::exception;
use crate::long_work::{obeying_signals, seconds_of};

/// Arrays of at most this size are transferred in one piece.
const PIECE_BYTES: usize = 4 << 20;

/// The most characters of a value that a message shows.
const SHOWN_CHARACTERS: usize = 100;

/// A tensor on the device.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct DeviceTensor(pub forebay::DeviceTensor);

/// An input of an operation.
#[derive(FromPyObject)]
enum Operand<'py> {
    Device(Bound<'py, DeviceTensor>),
    Host(Given<'py>),
}

/// The value of an attribute.
#[derive(FromPyObject)]
enum AttributeGiven {
    Int(i64),
    Float(f32),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
}

impl From<AttributeGiven> for Attribute {
    fn from(given: AttributeGiven) -> Attribute {
        match given {
            AttributeGiven::Int(value) => Attribute::Int(value),
            AttributeGiven::Float(value) => Attribute::Float(value),
            AttributeGiven::Text(value) => Attribute::String(value),
            AttributeGiven::Ints(values) => Attribute::Ints(values),
            AttributeGiven::Floats(values) => Attribute::Floats(values),
            AttributeGiven::Texts(values) => Attribute::Strings(values),
        }
    }
}

/// Returns the value of an attribute.
///
/// # Errors
/// If it is of another type, or an integer that does not fit.
fn attribute(py: Python<'_>, op_type: &str, name: &str, value: &Bound<'_, PyAny>) -> PyResult<AttributeGiven> {
    let found = value.extract::<AttributeGiven>();
    let is_too_large = match &found {
        // An integer that does not fit would become a float.
        Ok(AttributeGiven::Floats(_)) => value.try_iter()?.any(|one| one.is_ok_and(|one| is_large_integer(&one))),
        Ok(AttributeGiven::Float(_)) | Err(_) => is_large_integer(value),
        Ok(_) => false,
    };
    if is_too_large {
        let range = "-2^63 to 2^63 - 1; write large floats as 1e20";
        let reason = format!("attribute {name} of {op_type} has an integer outside of {range}");
        return Err(exception(py, &Error::Option { reason }));
    }
    found.or_else(|_| {
        let value = value.repr()?.to_string();
        let mut shown: String = value.chars().take(SHOWN_CHARACTERS).collect();
        if shown.len() < value.len() {
            shown.push_str("...");
        }
        let expected = "a number, a string, or a sequence of either";
        Err(PyTypeError::new_err(format!("attribute {name} of {op_type} must be {expected}, but is {shown}")))
    })
}

/// Returns whether a value is an integer that does not fit int64.
fn is_large_integer(value: &Bound<'_, PyAny>) -> bool {
    value.call_method0("__index__").is_ok_and(|number| number.extract::<i64>().is_err())
}

/// An input that is kept for its operation.
enum Held {
    Device(forebay::DeviceTensor),
    Host(forebay::Tensor),
    None,
}

/// Returns the number of bytes of a tensor's elements.
fn size_bytes(tensor: &forebay::DeviceTensor) -> u64 {
    tensor.shape().iter().product::<u64>() * tensor.data_type().size_bytes()
}

/// Returns whether an array has as many bytes as its type and shape require.
fn fits(count: usize, type_name: &str, shape: &[u64]) -> PyResult<bool> {
    Ok(forebay::TensorType::new(data_type(type_name)?, shape).checked_size_bytes() == Some(count as u64))
}

/// Runs work on a stream, without the interpreter lock. Work on many bytes handles signals.
fn on_stream<T: Send + 'static>(
    py: Python<'_>,
    stream: &Stream,
    bytes: u64,
    work: impl FnOnce(&forebay::Context) -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let on = stream.0.clone();
    obeying_signals(py, seconds_of(bytes), move || {
        let _entered = on.enter();
        work(on.context())
    })
}

/// Returns the number of bytes of elements, or as many as there can be.
fn bytes_of(data_type: forebay::DataType, shape: &[u64]) -> u64 {
    forebay::TensorType::new(data_type, shape).checked_size_bytes().unwrap_or(u64::MAX)
}

#[pymethods]
impl DeviceTensor {
    #[staticmethod]
    fn from_host(py: Python<'_>, stream: &Stream, given: Given<'_>) -> PyResult<DeviceTensor> {
        let (name, shape, bytes) = &given;
        let bytes = bytes.as_slice().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let is_unified = stream.0.context().device().limits().unified;
        if bytes.len() <= PIECE_BYTES || is_unified || !fits(bytes.len(), name, shape)? {
            let array = tensor(given)?;
            return on_stream(py, stream, array.bytes().len() as u64, move |context| {
                Ok(DeviceTensor(forebay::DeviceTensor::from_host(context, &array)?))
            });
        }
        // Copied directly from the array, in pieces, with signals checked in between.
        let made = DeviceTensor::empty(py, stream, name, shape.clone())?;
        for (piece, bytes) in bytes.chunks(PIECE_BYTES).enumerate() {
            let start = (piece * PIECE_BYTES) as u64;
            let written = py.detach(|| {
                let _entered = stream.0.enter();
                made.0.slice().part(start..start + bytes.len() as u64)?.write(bytes)
            });
            written.map_err(|error| exception(py, &error.into()))?;
            py.check_signals()?;
        }
        Ok(made)
    }

    /// Creates a tensor whose bytes are undefined.
    #[staticmethod]
    fn empty(py: Python<'_>, stream: &Stream, type_name: &str, shape: Vec<u64>) -> PyResult<DeviceTensor> {
        let data_type = data_type(type_name)?;
        on_stream(py, stream, bytes_of(data_type, &shape), move |context| {
            let ty = forebay::TensorType::new(data_type, &shape);
            // A tensor without elements takes the place of one.
            let own = ty.checked_size_bytes().map(|bytes| bytes.max(data_type.size_bytes()));
            let bytes = own.and_then(|bytes| bytes.checked_next_multiple_of(4));
            let reason = || Error::Option { reason: format!("{ty} is larger than the address space") };
            let slice = context.allocate(bytes.ok_or_else(reason)?, "empty")?;
            Ok(DeviceTensor(slice.tensor(data_type, &shape)?))
        })
    }

    /// Creates a tensor filled with the only element of an array.
    #[staticmethod]
    fn full(py: Python<'_>, stream: &Stream, shape: Vec<u64>, value: Given<'_>) -> PyResult<DeviceTensor> {
        let value = tensor(value)?;
        on_stream(py, stream, bytes_of(value.data_type(), &shape), move |context| {
            Ok(DeviceTensor(forebay::DeviceTensor::full(context, &shape, &value)?))
        })
    }

    fn shape(&self) -> Vec<u64> {
        self.0.shape().to_vec()
    }

    fn data_type(&self) -> &'static str {
        self.0.data_type().name()
    }

    /// Copies the tensor to the host, after the stream's work so far, and waits for the copy.
    fn to_host<'py>(&self, py: Python<'py>, stream: &Stream) -> PyResult<Taken<'py>> {
        let (tensor, on) = (self.0.clone(), stream.0.clone());
        let copied = waiting(py, &stream.0, size_bytes(&self.0), move || {
            let _entered = on.enter();
            Ok(tensor.to_host()?)
        })?;
        Ok(array(py, copied))
    }

    /// Returns the bytes in place, as an array that keeps the tensor, after the stream's work so far; `None` if the host has no access.
    fn shared<'py>(slf: &Bound<'py, Self>, stream: &Stream) -> PyResult<Option<Taken<'py>>> {
        let py = slf.py();
        let (tensor, on) = (slf.get().0.clone(), stream.0.clone());
        let bytes = tensor.slice().size_bytes().min(size_bytes(&tensor)) as usize;
        let address = waiting(py, &stream.0, 0, move || {
            let _entered = on.enter();
            Ok(tensor.host_address()?.map(|address| address.expose_provenance()))
        })?;
        let Some(address) = address else { return Ok(None) };
        let address = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the tensor owns these bytes for as long as it exists, and the array keeps it. The user of the array orders accesses
        // against streams, as for every array shared by DLPack.
        let array = unsafe {
            let view = ArrayView1::from_shape_ptr(bytes, address.cast_const());
            PyArray1::borrow_from_array(&view, slf.clone().into_any())
        };
        Ok(Some((slf.get().0.data_type().name(), slf.get().0.shape().to_vec(), array)))
    }

    fn copy_from(&self, py: Python<'_>, stream: &Stream, other: &DeviceTensor) -> PyResult<()> {
        let (own, other) = (self.0.clone(), other.0.clone());
        on_stream(py, stream, size_bytes(&self.0), move |_| Ok(own.copy_from(&other)?))
    }

    /// Overwrites the tensor with an array of its type and shape.
    fn write(&self, py: Python<'_>, stream: &Stream, given: Given<'_>) -> PyResult<()> {
        let array = tensor(given)?;
        let (own, on) = (self.0.clone(), stream.0.clone());
        obeying_signals(py, f64::INFINITY, move || {
            let _entered = on.enter();
            if array.data_type() != own.data_type() || array.shape() != own.shape() {
                let ty = forebay::TensorType::new(own.data_type(), own.shape());
                return Err(Error::Option { reason: format!("{} cannot be written to {ty}", array.ty()) });
            }
            Ok(own.slice().part(..array.bytes().len() as u64)?.write(array.bytes())?)
        })
    }

    fn fill(&self, py: Python<'_>, stream: &Stream, value: Given<'_>) -> PyResult<()> {
        let (own, value) = (self.0.clone(), tensor(value)?);
        on_stream(py, stream, size_bytes(&self.0), move |_| Ok(own.fill(&value)?))
    }

    /// Launches an ONNX operator on a stream.
    #[staticmethod]
    fn operation(
        py: Python<'_>,
        stream: &Stream,
        op_type: &str,
        name: Option<String>,
        inputs: Vec<Option<Operand<'_>>>,
        attributes: BTreeMap<String, Bound<'_, PyAny>>,
        output_count: usize,
    ) -> PyResult<Vec<DeviceTensor>> {
        let held = |operand: Option<Operand<'_>>| match operand {
            None => Ok(Held::None),
            Some(Operand::Device(tensor)) => Ok(Held::Device(tensor.get().0.clone())),
            Some(Operand::Host(given)) => Ok::<Held, PyErr>(Held::Host(tensor(given)?)),
        };
        let inputs = inputs.into_iter().map(held).collect::<PyResult<Vec<Held>>>()?;
        let value = |(name, value): (String, Bound<'_, PyAny>)| {
            attribute(py, op_type, &name, &value).map(|found| (name, found))
        };
        let attributes = attributes.into_iter().map(value).collect::<PyResult<Vec<_>>>()?;
        let bytes = |held: &Held| match held {
            Held::Device(tensor) => size_bytes(tensor),
            Held::Host(array) => array.bytes().len() as u64,
            Held::None => 0,
        };
        let (bytes, op_type) = (inputs.iter().map(bytes).sum(), op_type.to_owned());
        on_stream(py, stream, bytes, move |context| {
            let mut operation = context.operation(&op_type);
            if let Some(name) = name {
                operation = operation.name(&name);
            }
            for (name, value) in attributes {
                operation = operation.attribute(&name, value.into());
            }
            for input in &inputs {
                operation = match input {
                    Held::Device(tensor) => operation.input(tensor),
                    Held::Host(array) => operation.input(array.clone()),
                    Held::None => operation.input(forebay::eager::Input::None),
                };
            }
            Ok(operation.run(output_count)?.into_iter().map(DeviceTensor).collect())
        })
    }
}
