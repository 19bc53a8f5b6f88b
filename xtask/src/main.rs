//! Development tasks, run as `cargo xtask TASK`.
//!
//! | module | task |
//! |---|---|
//! | [`command`] | how tasks run other programs |
//! | [`parts`] | optional parts of the machine, and `FOREBAY_REQUIRE` |
//! | [`spirv`] | processing of compiled shaders before they are committed |
//! | [`source`] | the repository's text files |
//! | [`imports`] | which files of a crate import which |
//! | [`circles`] | circular imports |
//! | [`layers`] | which crates and files may import which |
//! | [`markdown`] | the parts of Markdown that the checks of documents need |
//! | [`links`] | links between documents |
//! | [`operators`] | whether the guide lists exactly the supported operators |
//! | [`examples`] | whether every public type of the library has an example |
//! | [`recipes`] | whether the recipes of `CONTRIBUTING.md` hold |
//! | [`tidy`] | everything about the source that no compiler checks |
//! | [`docs`] | `cargo xtask docs`: the guide as a book |
//! | [`mod@test`] | `cargo xtask test`: everything that has to pass |
//! | [`aarch64`] | `cargo xtask aarch64`: the CPU's kernels on an emulated ARM processor |
//! | [`fuzz`] | `cargo xtask fuzz`: each fuzz target for some minutes |
//! | [`accuracy`] | `cargo xtask accuracy`: elementary functions on every single-precision number |
//! | [`kills`] | `cargo xtask kills`: training runs whose processes are killed, 100 times |
//! | [`networks`] | `cargo xtask networks`: random networks at several budgets |
//! | [`preconditions`] | `cargo xtask preconditions`: kernels with the standard library's checks of unsafe code |
//! | [`swiftshader`] | `cargo xtask swiftshader`: every Vulkan test on a second driver |
//! | [`conformance`] | `cargo xtask conformance`: ONNX's own test cases, counted and listed |
//! | [`mod@bench`] | `cargo xtask bench`: speed compared with other frameworks |
//! | [`stories`] | `cargo xtask stories`: checks the claims of the guide's stories |
//! | [`results`] | `cargo xtask results`: the page of results, rendered from its records |
//! | [`package`] | `cargo xtask package` and `semver`: the published packages, and breaking changes |
//! | [`python`] | `cargo xtask python` and `wheel`: the Python package, tested and as released |
//! | [`kernels`] | `cargo xtask kernels`: compiles shaders to SPIR-V |

mod aarch64;
mod accuracy;
mod bench;
mod circles;
mod command;
mod conformance;
mod docs;
mod examples;
mod fuzz;
mod imports;
mod kernels;
mod kills;
mod layers;
mod links;
mod markdown;
mod networks;
mod operators;
mod package;
mod parts;
mod preconditions;
mod python;
mod recipes;
mod results;
mod source;
mod spirv;
mod stories;
mod swiftshader;
mod test;
mod tidy;
mod unused_files;

use std::process::ExitCode;

const HELP: &str = "Development tasks:

  cargo xtask test                      format, lints, tidiness, all tests and doctests
  cargo xtask tidy                      layers between files, file lengths, leftovers, links, recipes and results of documents
  cargo xtask docs                      builds the guide (docs/) into target/book and checks its links; needs mdbook
  cargo xtask fuzz [TARGET] [--minutes N]   fuzz targets, 10 minutes each; needs cargo-fuzz and a C++ compiler
  cargo xtask accuracy                  errors of the CPU's elementary functions at every single-precision number; takes minutes
  cargo xtask kills [--times N]         kills processes of training runs, 100 times, and continues the runs; needs Open MPI
  cargo xtask networks [--count N]      200 random networks train to the same bits at any budget
  cargo xtask preconditions             the CPU's kernels with the standard library's checks of unsafe code
  cargo xtask aarch64                   the CPU's kernels and the same bits on an emulated ARM processor; `test` compares the bits
  cargo xtask swiftshader               every Vulkan test on SwiftShader, half an hour; `test` runs the short ones; needs cargo-nextest
  cargo xtask conformance [ARGUMENTS]   ONNX's own test cases, counted and listed; see --help
  cargo xtask bench [ARGUMENTS]         speed next to PyTorch; needs python3 with torch, onnx and numpy
  cargo xtask stories [NAME] [ARGUMENTS]   the guide's stories (docs/stories.md), minutes each; needs python3 with numpy, onnx and onnxruntime
  cargo xtask results [--check]         renders benches/RESULTS.md from the records in benches/results
  cargo xtask results record [--output FILE]   completes a record read from the standard input; see benches/results/README.md
  cargo xtask package [--no-verify]     every crate as it would be published, in order; uploads nothing
  cargo xtask python                    builds the Python package and tests it; needs python3 with maturin
  cargo xtask wheel [TARGET [PYTHON..]] the Python package as it is released, tested by a Python of the target; needs python3 with maturin and ziglang
  cargo xtask semver [REVISION]         breaking changes of the library since a revision; needs cargo-semver-checks
  cargo xtask kernels [--check]         compiles kernels/*.slang to SPIR-V; needs FOREBAY_SLANGC, or python3 with pip

Checks that need something the machine lacks are reported as SKIPPED, with the reason; FOREBAY_REQUIRE=onnxruntime turns such a skip
into a failure.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (task, rest) = match arguments.split_first() {
        Some((task, rest)) => (task.as_str(), rest),
        None => ("help", [].as_slice()),
    };
    let result = match task {
        "test" => test::test(),
        "tidy" => tidy::tidy(),
        "docs" => docs::docs(),
        "fuzz" => fuzz::fuzz(rest),
        "aarch64" => aarch64::aarch64(),
        "accuracy" => accuracy::accuracy(rest),
        "kills" => kills::kills(rest),
        "networks" => networks::networks(rest),
        "preconditions" => preconditions::preconditions(),
        "swiftshader" => swiftshader::swiftshader(),
        "conformance" => conformance::conformance(rest),
        "bench" => bench::bench(rest),
        "stories" => stories::stories(rest),
        "results" => results::results(rest),
        "package" => package::package(rest),
        "semver" => package::semver(rest),
        "python" => python::test(),
        "wheel" => python::wheel(rest),
        "kernels" => kernels::kernels(rest),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown task '{other}'\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}
