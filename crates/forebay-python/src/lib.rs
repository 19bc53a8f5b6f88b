//! The native part of the Python package `forebay`: models, sessions, trainers and plans behind one thin layer. What people call is Python
//! (`python/forebay`); it turns arguments into what stands here, so this module is private to the package.
//!
//! | module | holds |
//! |---|---|
//! | [`errors`] | Rust's errors as Python's exceptions |
//! | [`arrays`] | tensors from arrays of NumPy, and back |
//! | [`options`] | dictionaries of options |
//! | [`recipe`] | schedules, limits of gradients, groups of parameters |
//! | [`long_work`] | work that leaves Python alone, and that Ctrl-C interrupts |
//! | [`model`], [`session`], [`trainer`], [`plan`] | the classes |
//! | [`command_line`] | the program `forebay` |

mod arrays;
mod command_line;
mod errors;
mod long_work;
mod model;
mod options;
mod plan;
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
    module.add_function(wrap_pyfunction!(plan::plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan::machines, module)?)?;
    module.add_function(wrap_pyfunction!(plan::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(plan::format_size, module)?)?;
    module.add_function(wrap_pyfunction!(model::devices, module)?)?;
    module.add_function(wrap_pyfunction!(command_line::run_command_line, module)?)
}
