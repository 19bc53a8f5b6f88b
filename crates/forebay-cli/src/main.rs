//! The program `forebay`. Its command line is a library, which the Python package also uses.

use std::process::ExitCode;

use forebay_device::last_resort;

/// Records allocations that the system refused, for the final message of a program that ran out of memory.
#[global_allocator]
static ALLOCATOR: last_resort::Allocator = last_resort::Allocator;

fn main() -> ExitCode {
    last_resort::install();
    ExitCode::from(forebay_cli::run_command_line(std::env::args_os()))
}
