//! Files written by the program: where they go, what they replace, and what happens if they cannot be written.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Folder, assert_says, digits_data, digits_model, example, failure, forebay, success};
use forebay::Checkpoint;
use forebay::Tensor;
use forebay::data::{npy, npz};

/// Arguments that train the digits network. All paths are absolute, so they work in any folder.
fn train<'a>(model: &'a str, data: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let common = ["--batch-size", "50", "--input-scale", "0.0625", "--learning-rate", "0.05", "--momentum", "0.9"];
    [&["train", model, "--data", data], common.as_slice(), flags].concat()
}

fn texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Returns the exit code and standard error.
fn ended(output: Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Starts endless training and waits for its first step.
fn endless(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("step 1/"), "{line}");
    child
}

fn send(signal: &str, child: &Child) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

fn same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn only_a_trained_model_replaces_the_model() {
    let folder = Folder::new();
    let before = fs::read(digits_model()).unwrap();
    let (model, data) = (folder.write("model.onnx", &before), digits_data());
    for flag in ["--report", "--log", "--trace", "--save-costs"] {
        let error = failure(2, &train(&model, &data, &["--steps", "1", flag, &model]));
        assert_says(&error, &[flag, "would replace", "model.onnx, which this command reads"]);
        assert!(fs::read(&model).unwrap() == before, "{flag}");
    }
    success(&train(&model, &data, &["--steps", "1", "--save", &model]));
    assert!(fs::read(&model).unwrap() != before);
}

#[test]
fn what_a_path_names_decides_how_it_is_written() {
    let (folder, model) = (Folder::new(), digits_model());
    let table = folder.write("buffers.csv", b"id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\n");
    let draw = ["plan", &model, "--batch-size", "2", "--memory-svg"];
    let place = ["place", &table, "--output"];
    for command in [&draw[..], &place[..]] {
        let to = |path: &str| -> Vec<String> { command.iter().copied().chain([path]).map(str::to_owned).collect() };
        let regular = folder.path("regular");
        // A user's file with a name that temporary files once had.
        let partial = folder.write("regular.partial", b"precious");
        success(&texts(&to(regular.to_str().unwrap())));
        assert_eq!(fs::read(partial).unwrap(), b"precious");
        symlink("target", folder.path("link")).unwrap();
        success(&texts(&to(&folder.text("link"))));
        assert!(folder.path("link").is_symlink() && same(&folder.path("target"), &regular));
        let protected = folder.write("protected", b"precious");
        fs::set_permissions(&protected, Permissions::from_mode(0o400)).unwrap();
        assert_says(&failure(1, &texts(&to(&protected))), &["protected", "write-protected"]);
        assert_eq!(fs::read(&protected).unwrap(), b"precious");
        success(&texts(&to("/dev/null")));
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        assert_says(&failure(1, &texts(&to("/dev/full"))), &["/dev/full", "No space left"]);
        let pipe = folder.text("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        success(&texts(&to(&pipe)));
        assert_eq!(reader.join().unwrap(), fs::read(&regular).unwrap());
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        let device = folder.text("device");
        if Command::new("mknod").args([&device, "c", "1", "3"]).output().unwrap().status.success() {
            // The file system may not allow devices; then this is an error.
            let _ = forebay(&texts(&to(&device))).output().unwrap();
            assert!(fs::metadata(&device).unwrap().file_type().is_char_device());
            fs::remove_file(device).unwrap();
        } else {
            println!("SKIPPED: only a privileged user can create device nodes");
        }
        for name in ["regular", "link", "target", "protected", "pipe"] {
            fs::remove_file(folder.path(name)).unwrap();
        }
        assert_eq!(names(&folder.path("")), ["buffers.csv", "regular.partial"]);
    }
}

#[test]
fn output_that_is_written_to_standard_output_is_all_there() {
    let folder = Folder::new();
    let buffers = folder.write("buffers.csv", b"id,lower,upper,size\nb1,0,3,4\n");
    let log = folder.path("log");
    let output =
        forebay(&["place", &buffers, "--output", "/dev/stdout"]).stdout(fs::File::create(&log).unwrap()).output();
    assert!(output.unwrap().status.success());
    let text = fs::read_to_string(log).unwrap();
    assert_says(&text, &["id,lower,upper,size,offset", "lower bound"]);
}

#[test]
fn standard_output_that_takes_nothing_is_a_failure() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let buffers = folder.write("buffers.csv", b"id,lower,upper,size\nb1,0,3,4\n");
    let saved = folder.text("saved.onnx");
    for arguments in [
        vec!["plan", &model, "--batch-size", "2", "--json"],
        vec!["plan", &model, "--batch-size", "2"],
        vec!["devices"],
        vec!["place", &buffers],
        vec!["place", &buffers, "--json"],
        vec!["--help"],
        vec!["--version"],
        train(&model, &data, &["--steps", "2", "--save", &saved]),
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, error) = ended(forebay(&arguments).stdout(full).output().unwrap());
        assert_eq!(code, Some(1), "{arguments:?}: {error}");
        assert_says(&error, &["standard output", "No space left"]);
    }
    assert!(Path::new(&saved).exists(), "what is worth more than words is still done");
}

#[test]
fn one_run_writes_checkpoints_into_a_folder() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let checkpoint = folder.text("run");
    let flags = ["--steps", "1000000", "--checkpoint", &checkpoint, "--checkpoint-every", "1"];
    let mut first = endless(forebay(&train(&model, &data, &flags)));
    let short = train(&model, &data, &["--steps", "2", "--checkpoint", &checkpoint]);
    let error = failure(1, &short);
    assert_says(&error, &["run", &format!("process {}", first.id()), "another folder"]);
    while Checkpoint::written_at(&checkpoint).is_none() {
        assert!(first.try_wait().unwrap().is_none());
    }
    // Concurrent reads are allowed and never find a manifest without its tensors.
    let exported = folder.text("exported.onnx");
    for _ in 0..5 {
        success(&["export", &checkpoint, "--model", &model, "--save", &exported]);
    }
    first.kill().unwrap();
    first.wait().unwrap();
    // The killed process left its lock file, which locks nothing; the resumed run writes to the folder that it reads from.
    let done = Checkpoint::read(&checkpoint).unwrap().step;
    let steps = (done + 1).to_string();
    let flags = ["--steps", &steps, "--resume", &checkpoint, "--checkpoint", &checkpoint];
    success(&train(&model, &data, &flags));
    assert_eq!(Checkpoint::read(&checkpoint).unwrap().step, done + 1);
    assert_eq!(names(Path::new(&checkpoint)).len(), 3);
}

#[test]
fn runs_into_one_folder_leave_the_outputs_of_one_of_them() {
    let (folder, model) = (Folder::new(), digits_model());
    let results = folder.text("results");
    let mut expected = Vec::new();
    let mut inputs = Vec::new();
    for value in 0..4u8 {
        let array = Tensor::from_f32(&[2, 1, 8, 8], &[f32::from(value); 128]);
        inputs.push(folder.archive(&format!("{value}.npz"), &[("x", &array)]));
        success(&["run", &model, "--inputs", &inputs[usize::from(value)], "--output-dir", &results]);
        expected.push(npy::read(&folder.path("results/logits.npy")).unwrap());
    }
    for _ in 0..3 {
        let runs: Vec<Child> = inputs
            .iter()
            .map(|input| {
                let mut run = forebay(&["run", &model, "--inputs", input, "--output-dir", &results]);
                run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for _ in 0..50 {
            let read = npy::read(&folder.path("results/logits.npy")).unwrap();
            assert!(expected.contains(&read), "a torn file");
        }
        for run in runs {
            let (code, error) = ended(run.wait_with_output().unwrap());
            assert_eq!(code, Some(0), "{error}");
        }
        assert_eq!(names(&folder.path("results")), ["logits.npy"]);
    }
}

#[test]
fn a_finished_run_can_still_be_saved_validated_and_exported() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let [checkpoint, straight, resumed, exported, other] =
        ["run", "a.onnx", "b.onnx", "c.onnx", "other"].map(|name| folder.text(name));
    success(&train(&model, &data, &["--steps", "3", "--checkpoint", &checkpoint, "--save", &straight]));
    let resume = train(&model, &data, &["--steps", "3", "--resume", &checkpoint]);
    success(&[&resume[..], &["--save", &resumed, "--simulate-device", "70%"]].concat());
    assert!(same(straight.as_ref(), resumed.as_ref()));
    let text = success(&[&resume[..], &["--validate", &format!("{data}#0..100")]].concat());
    assert_says(&text, &["accuracy"]);
    success(&[&resume[..], &["--checkpoint", &other]].concat());
    assert_eq!(Checkpoint::read(&other).unwrap().step, 3);
    assert_says(&failure(2, &[&resume[..], &["--checkpoint", &checkpoint]].concat()), &["at step 3", "--save"]);
    success(&["export", &checkpoint, "--model", &model, "--save", &exported]);
    assert!(same(straight.as_ref(), exported.as_ref()));
    let brain = example("brain/unet3d.onnx");
    let error = failure(1, &["export", &checkpoint, "--model", &brain, "--save", &exported]);
    assert_says(&error, &["unet3d.onnx", "checkpoint.json", "but the model does not"]);
    assert!(same(straight.as_ref(), exported.as_ref()));
    assert_says(&failure(1, &["export", &folder.text("none"), "--model", &model, "--save", &exported]), &["none"]);
}

#[test]
fn a_checkpoint_that_cannot_be_written_does_not_end_training() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    // A folder in place of the manifest prevents every checkpoint from being written.
    fs::create_dir_all(folder.path("run/checkpoint.json")).unwrap();
    let (checkpoint, saved) = (folder.text("run"), folder.text("saved.onnx"));
    let flags = ["--steps", "4", "--checkpoint", &checkpoint, "--checkpoint-every", "2", "--save", &saved];
    let output = forebay(&train(&model, &data, &flags)).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let (code, error) = ended(output);
    assert_eq!(code, Some(1), "{error}");
    assert_says(&stdout, &["step 4/4", "training continues", "saved"]);
    assert_says(&error, &["error: cannot write", "checkpoint.json"]);
    assert!(Path::new(&saved).exists());
    assert_eq!(names(Path::new(&checkpoint)), ["checkpoint.json"], "tensors that no manifest names");
}

/// A file system that is unmounted at the end.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        // If the test fails, its own error matters more than a failure here.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_leaves_the_old_checkpoint_and_the_model() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let disk = folder.text("disk");
    fs::create_dir(&disk).unwrap();
    // Room for one checkpoint, not for two.
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=300k", "none", &disk]).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: no small file system can be mounted here");
        return;
    }
    let mounted = Mounted(disk.clone());
    let (checkpoint, saved) = (format!("{disk}/run"), folder.text("saved.onnx"));
    let flags = ["--steps", "3", "--checkpoint", &checkpoint, "--checkpoint-every", "1", "--save", &saved];
    let output = forebay(&train(&model, &data, &flags)).output().unwrap();
    let kept = Checkpoint::read(&checkpoint);
    let left = names(Path::new(&checkpoint));
    let full = fs::write(format!("{disk}/filler"), [0; 300 << 10]).is_err();
    let at_start = failure(1, &train(&model, &data, &["--steps", "3", "--save", &format!("{disk}/saved.onnx")]));
    drop(mounted);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let (code, error) = ended(output);
    assert_eq!(code, Some(1), "{error}");
    assert_says(&stdout, &["step 3/3", "training continues, and the checkpoint of step 1 in", "is intact"]);
    assert_says(&error, &["error: cannot write", "No space left"]);
    assert_eq!(kept.unwrap().step, 1);
    assert_eq!(left.len(), 3, "{left:?}: a manifest, tensors, and what the run was asked for");
    assert!(Path::new(&saved).exists());
    assert!(full);
    assert_says(&at_start, &["No space left"]);
}

/// The limit is refused after the search for the least that can be met, which takes seconds.
#[test]
fn an_interruption_ends_planning_at_once() {
    let (model, data) = (example("brain/unet3d.onnx"), example("brain"));
    let flags = ["train", &model, "--data", &data, "--steps", "1", "--momentum", "0.9", "--memory-limit", "100MiB"];
    let mut child = forebay(&flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // From here on, the program handles the signal.
    let handles = |status: &str| {
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|caught| u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (2 - 1) != 0)
    };
    while !handles(&fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap()) {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    send("-INT", &child);
    let (code, error) = ended(child.wait_with_output().unwrap());
    assert_eq!(code, Some(130), "{error}");
    assert_says(&error, &["interrupted before the first step"]);
}

#[test]
fn an_interrupted_run_in_a_folder_that_takes_no_files_is_saved_elsewhere() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    // No user can create files there, however privileged.
    let mut command = forebay(&train(&model, &data, &["--steps", "1000000"]));
    command.current_dir("/proc").env("TMPDIR", folder.path(""));
    let child = endless(command);
    send("-INT", &child);
    let id = child.id();
    let (code, error) = ended(child.wait_with_output().unwrap());
    assert_eq!(code, Some(130), "{error}");
    let rescued = folder.text(&format!("forebay-checkpoint-{id}"));
    assert_says(&error, &["note: cannot write to ./forebay-checkpoint", "--checkpoint", &rescued, "--resume"]);
    assert!(Checkpoint::read(&rescued).unwrap().step > 0);
}

#[test]
fn a_model_that_cannot_be_saved_in_the_end_is_left_as_a_checkpoint() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let expected = folder.text("expected.onnx");
    success(&train(&model, &data, &["--steps", "2", "--save", &expected]));
    let mut command = forebay(&train(&model, &data, &["--steps", "2", "--save", "/dev/full"]));
    let (code, error) = ended(command.current_dir(folder.path("")).output().unwrap());
    assert_eq!(code, Some(1), "{error}");
    assert_says(&error, &["cannot write /dev/full", "step 2 is in forebay-checkpoint", "forebay export"]);
    let (checkpoint, exported) = (folder.text("forebay-checkpoint"), folder.text("exported.onnx"));
    success(&["export", &checkpoint, "--model", &model, "--save", &exported]);
    assert!(same(expected.as_ref(), exported.as_ref()));
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_with_words() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let saved = folder.text("saved.onnx");
    let run = |kilobytes: u64, flags: &[&str]| {
        let script = format!("ulimit -f {kilobytes}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("bash");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_forebay")]).args(train(&model, &data, flags));
        ended(shell.current_dir(folder.path("")).env("TMPDIR", folder.path("")).output().unwrap())
    };
    let (code, error) = run(40, &["--steps", "1", "--save", &saved]);
    assert_eq!(code, Some(1), "{error}");
    assert_says(&error, &["heap", "ulimit -f"]);
    let placed = ["--steps", "1", "--save", &saved, "--heap-size", "16KiB", "--tile-size", "4KiB"];
    let (code, error) = run(40, &placed);
    assert_eq!(code, Some(1), "{error}");
    assert_says(&error, &["error: cannot write", "saved.onnx", "File too large", "ulimit -f"]);
    assert_eq!(names(&folder.path("")), Vec::<String>::new());
    let (code, error) = run(400, &placed);
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn other_data_under_a_checkpoint_is_noticed() {
    let (folder, model) = (Folder::new(), digits_model());
    let mut archive = npz::Archive::open(Path::new(&digits_data())).unwrap();
    let (x, y) = (archive.read("x").unwrap(), archive.read("y").unwrap());
    let first = folder.archive("first.npz", &[("x", &x), ("y", &y)]);
    let checkpoint = folder.text("run");
    success(&train(&model, &first, &["--steps", "1", "--checkpoint", &checkpoint]));
    let resume = |data: &str, flags: &[&str]| -> Vec<String> {
        let flags = [&["--steps", "2", "--resume", &checkpoint], flags].concat();
        train(&model, data, &flags).iter().map(|&argument| argument.to_owned()).collect()
    };
    let of =
        |arguments: Vec<String>| forebay(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
    // The same content in another file counts as the same data.
    npz::write(&folder.path("packed.npz"), &[("x", &x), ("y", &y)], true).unwrap();
    let (code, error) = ended(of(resume(&folder.text("packed.npz"), &[])));
    assert_eq!(code, Some(0), "{error}");
    let mut labels = y.bytes().to_vec();
    labels[8 * 1000] ^= 1;
    let relabeled = Tensor::new(y.data_type(), y.shape(), labels).unwrap();
    let other = folder.archive("other.npz", &[("x", &x), ("y", &relabeled)]);
    let (code, error) = ended(of(resume(&other, &[])));
    assert_eq!(code, Some(1), "{error}");
    assert_says(&error, &["other.npz", "first.npz", "digest", "--data-changed ok"]);
    let (code, error) = ended(of(resume(&other, &["--data-changed", "ok"])));
    assert_eq!(code, Some(0), "{error}");
    assert_says(&error, &["warning", "digest"]);
    let fewer = format!("{first}#0..100");
    let (code, error) = ended(of(resume(&fewer, &["--data-changed", "ok"])));
    assert_eq!(code, Some(0), "{error}");
    // A checkpoint of an earlier version has no digest.
    let mut old = Checkpoint::read(&checkpoint).unwrap();
    old.position.as_object_mut().unwrap().remove("digest").unwrap();
    old.write(&checkpoint).unwrap();
    let (code, error) = ended(of(resume(&other, &[])));
    assert_eq!(code, Some(0), "{error}");
}

#[test]
fn the_second_interruption_leaves_no_temporary_file() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let checkpoint = folder.text("run");
    let flags = ["--steps", "1000000", "--checkpoint", &checkpoint, "--checkpoint-every", "1"];
    for _ in 0..3 {
        let mut child = endless(forebay(&train(&model, &data, &flags)));
        send("-INT", &child);
        send("-INT", &child);
        // Its remaining output must not block it.
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        child.wait().unwrap();
        let left: Vec<String> =
            names(Path::new(&checkpoint)).into_iter().filter(|name| name.ends_with(".partial")).collect();
        assert_eq!(left, Vec::<String>::new());
    }
}
