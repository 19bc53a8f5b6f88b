//! The native part of the Python package `forebay`: a thin layer over models, sessions, trainers and plans. The public interface is written
//! in Python (`python/forebay`) and converts arguments to the types in this module, which is private to the package.
//!
//! | module | holds |
//! |---|---|
//! | [`errors`] | Rust errors as Python exceptions |
//! | [`arrays`] | tensors from NumPy arrays, and back |
//! | [`losses`], [`optimizers`], [`options`] | dictionaries of options |
//! | [`recipe`] | schedules, gradient clipping, parameter groups |
//! | [`metrics`] | metrics of validation |
//! | [`long_work`] | work without Python's interpreter lock, which Ctrl-C interrupts |
//! | [`model`], [`session`], [`trainer`], [`plan`] | the classes |
//! | [`processes`] | processes connected by MPI |
//! | [`eager`], [`device_tensor`] | streams and events; tensors on the device, and operations on them |
//! | [`managed`] | memory for more data than the device holds |
//! | [`command_line`] | the program `forebay` |

mod arrays;
mod command_line;
mod device_tensor;
mod eager;
mod errors;
mod long_work;
mod losses;
mod managed;
mod metrics;
mod model;
mod optimizers;
mod options;
mod plan;
mod processes;
mod recipe;
mod session;
mod trainer;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<model::Model>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<trainer::Trainer>()?;
    module.add_class::<metrics::Metrics>()?;
    module.add_class::<processes::Processes>()?;
    module.add_class::<plan::SimulatedStep>()?;
    module.add_class::<eager::Context>()?;
    module.add_class::<eager::Stream>()?;
    module.add_class::<eager::Event>()?;
    module.add_class::<device_tensor::DeviceTensor>()?;
    module.add_class::<managed::ManagedMemory>()?;
    module.add_class::<managed::ManagedBuffer>()?;
    module.add_function(wrap_pyfunction!(managed::probe, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan::machines, module)?)?;
    module.add_function(wrap_pyfunction!(plan::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(plan::format_size, module)?)?;
    module.add_function(wrap_pyfunction!(model::devices, module)?)?;
    module.add_function(wrap_pyfunction!(command_line::run_command_line, module)?)
}
