//! The program `forebay`. Its command line is a library, which the Python package also uses.

use std::process::ExitCode;

use forebay_device::last_resort;

/// Records allocations that the system refused, for the final message of a program that ran out of memory.
#[global_allocator]
static ALLOCATOR: last_resort::Allocator = last_resort::Allocator;

/// Leaves panics of the crate `parquet` without a message: it panics on some damaged files, and the reader of Parquet files makes an error
/// of each of these panics, which names the file.
fn hide_panics_of_parquet() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|place| place.file().contains("/parquet-")) {
            others(panic);
        }
    }));
}

fn main() -> ExitCode {
    last_resort::install();
    hide_panics_of_parquet();
    ExitCode::from(forebay_cli::run_command_line(std::env::args_os()))
}
