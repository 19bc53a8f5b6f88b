//! Weights larger than memory: plans do not read them, and runs read them in pieces.

use std::fs::File;
use std::process::Output;

use crate::common::group::after;
use crate::common::{Folder, assert_says, failure, forebay, json, least_kib, message, number};
use forebay::Tensor;
use forebay::data::npy;

/// The limit on the process's memory outside a plan's device and host memory, in KiB. Weights must not be in this memory.
const OWN_KIB: u64 = 100_000;

/// Runs the program with little memory for itself.
fn within(arguments: &[&str]) -> Output {
    after(&format!("ulimit -d {OWN_KIB}"), arguments)
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A chain of square matrices, in a file next to the model, with zeros that take no disk space. Returns `None` if the file system cannot
/// hold a file of this size.
fn matrices(folder: &Folder, count: u64, width: u64) -> Option<String> {
    let size_bytes = 4 * width * width;
    File::create(folder.path("weights.bin")).unwrap().set_len(count * size_bytes).ok()?;
    let info = |name: &str| {
        let sizes: Vec<u8> = [1, width].iter().flat_map(|&size| message(1, &number(1, size as i64))).collect();
        let tensor = [number(1, 1), message(2, &sizes)].concat();
        [message(1, name.as_bytes()), message(2, &message(1, &tensor))].concat()
    };
    let mut graph = Vec::new();
    for i in 0..count {
        let value = |i: u64| if i == 0 { "x".to_owned() } else { format!("h{i}") };
        let (from, weight, to) = (value(i), format!("w{i}"), value(i + 1));
        let names = [message(1, from.as_bytes()), message(1, weight.as_bytes()), message(2, to.as_bytes())].concat();
        graph.extend(message(1, &[names, message(4, b"MatMul")].concat()));
        let entry = |key: &str, value: u64| {
            message(13, &[message(1, key.as_bytes()), message(2, value.to_string().as_bytes())].concat())
        };
        let place = [
            message(13, &[message(1, b"location"), message(2, b"weights.bin")].concat()),
            entry("offset", i * size_bytes),
            entry("length", size_bytes),
            number(14, 1),
        ];
        let tensor = [number(1, width as i64), number(1, width as i64), number(2, 1), message(8, weight.as_bytes())];
        graph.extend(message(5, &[tensor.concat(), place.concat()].concat()));
    }
    graph.extend([message(2, b"matrices"), message(11, &info("x")), message(12, &info(&format!("h{count}")))].concat());
    let model = [number(1, 8), message(7, &graph), message(8, &[message(1, b""), number(2, 17)].concat())].concat();
    Some(folder.write("model.onnx", &model))
}

/// Writes samples for a chain of matrices, and creates a folder to spill to. Returns their paths.
fn data_and_spill_folder(folder: &Folder, samples: usize, width: usize) -> [String; 2] {
    let tensor = |value| Tensor::from_f32(&[samples as u64, width as u64], &vec![value; samples * width]);
    let data = folder.archive("data.npz", &[("x", &tensor(1.0)), ("y", &tensor(0.5))]);
    let spill = folder.text("spill");
    std::fs::create_dir(&spill).unwrap();
    [data, spill]
}

/// Two matrices of 10 GiB each.
#[test]
fn weights_larger_than_memory_are_planned() {
    let folder = Folder::new();
    let Some(model) = matrices(&folder, 2, 51_200) else {
        eprintln!("SKIPPED: the file system cannot hold a file of 20 GiB");
        return;
    };
    let plan = |flags: &[&str]| said(&within(&[&["plan", &model, "--threads", "2"], flags].concat()));
    assert_says(&plan(&[]), &["19.5"]);
    assert_says(&plan(&["--device-memory", "1GiB", "--machine", "h200"]), &["device budget     1 GiB"]);
    assert_says(&plan(&["--train", "--loss", "mse", "--machine", "h200"]), &["device peak"]);
}

/// A run takes its budgets plus the data being copied, not the size of the weights.
#[test]
fn a_run_takes_no_more_memory_than_its_budgets() {
    let folder = Folder::new();
    let model = matrices(&folder, 8, 3072).expect("288 MiB without room");
    npy::write(&folder.path("x.npy"), &Tensor::from_f32(&[1, 3072], &[1.0; 3072])).unwrap();
    let (input, spill, output) = (format!("x={}", folder.text("x.npy")), folder.text("spill"), folder.text("out"));
    std::fs::create_dir(&spill).unwrap();
    let run = ["run", &model, "--input", &input, "--threads", "2", "--output-dir", &output];
    let budgets = ["--device-memory", "48MiB", "--host-memory", "16MiB", "--spill-dir", &spill];
    for memory in ["planned", "automatic"] {
        let arguments = [&run[..], &budgets, &["--memory", memory]].concat();
        said(&within(&arguments));
        assert_eq!(
            npy::read(&folder.path("out/h8.npy")).unwrap(),
            Tensor::from_f32(&[1, 3072], &[0.0; 3072]),
            "{memory}"
        );
    }
}

/// One pool: weights that exceed the limit are read from their file, and nothing is written.
#[test]
fn a_model_larger_than_the_limit_runs_from_its_file() {
    let folder = Folder::new();
    let model = matrices(&folder, 16, 2048).expect("256 MiB without room");
    npy::write(&folder.path("x.npy"), &Tensor::from_f32(&[1, 2048], &[1.0; 2048])).unwrap();
    let input = format!("x={}", folder.text("x.npy"));
    let run = |limit: &str| json(&["run", &model, "--input", &input, "--threads", "2", "--memory-limit", limit]);
    let whole = run("1GiB");
    assert_eq!(whole["model_files_bytes"], 0);
    assert!(whole["resident_peak_bytes"].as_u64().unwrap() > 256 << 20, "{whole}");
    let limited = run("160MiB");
    let number = |key: &str| limited[key].as_u64().unwrap_or_else(|| panic!("{key} in {limited}"));
    assert!(number("resident_peak_bytes") <= 160 << 20, "{limited}");
    assert!(number("bytes_from_model_files") > 128 << 20 && number("spill_bytes") == 0, "{limited}");
    let flags = ["--input", &input, "--threads", "2", "--memory-limit"];
    let error = failure(1, &[&["run", &model], &flags[..], &["20MiB"]].concat());
    let least = run(&format!("{}KiB", least_kib(&error, "pass at least ")));
    assert!(least["model_files_bytes"].as_u64().unwrap() > 200 << 20, "{least}");
}

/// The same for training, in which parameters and state also move from the training plan to the validation plan and back.
#[test]
fn a_training_run_takes_no_more_memory_than_its_budgets() {
    let folder = Folder::new();
    let model = matrices(&folder, 8, 1536).expect("72 MiB without room");
    let [data, spill] = data_and_spill_folder(&folder, 2, 1536);
    let train = ["train", &model, "--data", &data, "--validate", &data, "--loss", "mse", "--optimizer", "adam"];
    let flags = ["--steps", "4", "--threads", "2", "--no-compare", "--simulate-device", "48MiB"];
    for memory in ["planned", "automatic"] {
        let budgets = ["--host-memory", "32MiB", "--spill-dir", &spill, "--memory", memory];
        let output = said(&within(&[&train[..], &flags, &budgets].concat()));
        // The product of zeros is 0, and so are all gradients.
        assert_says(&output, &["step 4/4  loss 0.250000", "validation"]);
        assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 0, "{memory}");
    }
}

/// Managed memory that spills to disk needs room for one unit on the host, in addition to the buffers for the disk, not for all units that
/// leave the device at once.
#[test]
fn managed_memory_trains_within_the_least_host_memory() {
    let folder = Folder::new();
    let model = matrices(&folder, 4, 1024).expect("16 MiB without room");
    let [data, spill] = data_and_spill_folder(&folder, 1, 1024);
    for memory in ["automatic", "direct", "cooperative"] {
        let train = |host: &str| {
            let train = ["train", &model, "--data", &data, "--loss", "mse", "--optimizer", "adam", "--steps", "2"];
            let budgets = ["--device-memory", "20MiB", "--host-memory", host, "--spill-dir", &spill];
            within(&[&train[..], &budgets, &["--threads", "2", "--no-compare", "--memory", memory]].concat())
        };
        let error = String::from_utf8_lossy(&train("1MiB").stderr).into_owned();
        assert_says(&error, &["a host budget of 1048576 bytes is too small for managed memory"]);
        let least = format!("{}KiB", least_kib(&error, "--host-memory "));
        assert_says(&said(&train(&least)), &["step 2/2  loss 0.250000"]);
    }
}

#[test]
fn weights_that_are_not_there_are_named() {
    let folder = Folder::new();
    let model = matrices(&folder, 2, 64).unwrap();
    let file =
        |size_bytes: u64| File::options().write(true).open(folder.path("weights.bin")).unwrap().set_len(size_bytes);
    file(32_000).unwrap();
    let error = failure(1, &["plan", &model]);
    assert_says(
        &error,
        &["weights.bin", "tensor 'w1' is stored at bytes 16384 to 16384 + 16384, but the file has 32000 bytes"],
    );
    std::fs::remove_file(folder.path("weights.bin")).unwrap();
    assert_says(&failure(1, &["plan", &model]), &["weights.bin", "No such file"]);
    std::fs::create_dir(folder.path("weights.bin")).unwrap();
    assert_says(&failure(1, &["plan", &model]), &["weights.bin", "not a regular file"]);
    std::fs::remove_dir(folder.path("weights.bin")).unwrap();
    // Planning needs no permission to read the weights, but a run does.
    file_without_permission(&folder);
    assert!(forebay(&["plan", &model]).output().unwrap().status.success());
    if File::open(folder.path("weights.bin")).is_ok() {
        eprintln!("SKIPPED: this user can read every file");
        return;
    }
    npy::write(&folder.path("x.npy"), &Tensor::from_f32(&[1, 64], &[1.0; 64])).unwrap();
    let error = failure(1, &["run", &model, "--input", &format!("x={}", folder.text("x.npy"))]);
    assert_says(&error, &["weights.bin", "tensor 'w0'", "Permission denied"]);
}

fn file_without_permission(folder: &Folder) {
    use std::os::unix::fs::PermissionsExt;
    let file = File::create(folder.path("weights.bin")).unwrap();
    file.set_len(2 * 4 * 64 * 64).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o000)).unwrap();
}
