//! The program `forebay`: its command line is a library, which the Python package has, too.

use std::process::ExitCode;

use forebay_device::last_resort;

/// Remembers what the system refused, for the last word of a program without memory.
#[global_allocator]
static ALLOCATOR: last_resort::Allocator = last_resort::Allocator;

fn main() -> ExitCode {
    last_resort::install();
    ExitCode::from(forebay_cli::run_command_line(std::env::args_os()))
}
