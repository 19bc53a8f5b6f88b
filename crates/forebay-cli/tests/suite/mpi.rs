//! Processes started by MPI train together and produce the same files as a single process.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, Folder, digits_data, digits_model, texts};
use forebay::Tensor;
use forebay_testing::Random;
use forebay_testing::parts::skipped;

/// The available launchers, each with the flags that permit more processes than processors.
fn launchers() -> Vec<(&'static str, &'static [&'static str])> {
    let all: [(&str, &[&str]); 2] = [
        (
            "mpirun.openmpi",
            &["--oversubscribe", "--quiet", "--mca", "plm", "isolated", "--mca", "btl", "self,vader,tcp"],
        ),
        ("mpirun.mpich", &[]),
    ];
    let is_there =
        |name: &str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let found: Vec<_> = all.into_iter().filter(|(name, _)| is_there(name)).collect();
    if found.len() < all.len() {
        let there: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        skipped(
            "mpi",
            format!("expected mpirun.openmpi and mpirun.mpich (packages openmpi-bin and mpich), found {there:?}"),
        );
    }
    found
}

/// A training run of some processes.
fn mpirun((launcher, flags): (&str, &[&str]), processes: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new(launcher);
    command.args(flags).args(["-n", &processes.to_string(), env!("CARGO_BIN_EXE_forebay")]).args(arguments);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

fn succeeds(mut command: Command) -> String {
    let output = command.output().expect("the launcher starts");
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{command:?}\n{stdout}\n{stderr}");
    stdout
}

/// The flags of a run on digits that do not divide evenly, so that the last step has fewer of them.
fn training<'a>(model: &'a str, data: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let flags = ["train", model, "--data", data, "--input-scale", "0.0625", "--batch-size", "50", "--shuffle", "3"];
    [&flags, more, &["--no-compare", "--threads", "1"]].concat()
}

/// The flags of an inference run.
fn running<'a>(model: &'a str, inputs: &'a str, results: &'a str) -> [&'a str; 8] {
    ["run", model, "--threads", "1", "--inputs", inputs, "--output-dir", results]
}

fn model_bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a saved model")
}

/// The tensors of a checkpoint.
fn tensors(folder: &Path) -> Vec<u8> {
    let files = std::fs::read_dir(folder).expect("a checkpoint").map(|entry| entry.expect("an entry").path());
    let file = files.into_iter().find(|path| path.extension().is_some_and(|name| name == "safetensors"));
    std::fs::read(file.expect("tensors")).expect("readable tensors")
}

#[test]
fn any_number_of_processes_leaves_the_bytes_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, data, held_out) =
        (digits_model(), format!("{}#0..430", digits_data()), format!("{}#1500..1600", digits_data()));
    let more = ["--epochs", "2", "--momentum", "0.9", "--clip-norm", "1", "--validate", &held_out, "--json"];
    let (saved, checkpoint) = (path("one.onnx"), path("one"));
    let one = common::success(&training(
        &model,
        &data,
        &[&more, &["--save", &saved, "--checkpoint", &checkpoint][..]].concat(),
    ));
    let numbers = |text: &str| {
        let json: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let losses: Vec<_> = json["steps"].as_array().unwrap().iter().map(|step| step["loss"].clone()).collect();
        (losses, json["validation"].clone())
    };
    for (number, launcher) in launchers().into_iter().enumerate() {
        // With more processes than processors, MPICH's processes wait for each other in turns.
        for processes in if number == 0 { vec![2, 3] } else { vec![2] } {
            let (saved, checkpoint) = (path("several.onnx"), path("several"));
            let flags = [&more, &["--save", &saved, "--checkpoint", &checkpoint][..]].concat();
            let several = succeeds(mpirun(launcher, processes, &training(&model, &data, &flags)));
            assert_eq!(numbers(&several), numbers(&one), "{launcher:?}, {processes} processes");
            assert!(model_bytes(saved.as_ref()) == model_bytes(path("one.onnx").as_ref()), "{launcher:?}, {processes}");
            assert!(tensors(checkpoint.as_ref()) == tensors(path("one").as_ref()), "{launcher:?}, {processes}");
        }
    }
}

#[test]
fn slices_leave_the_bytes_of_the_whole() {
    let Some(launcher) = launchers().into_iter().next() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, data, held_out) =
        (digits_model(), format!("{}#0..330", digits_data()), format!("{}#1500..1600", digits_data()));
    let recipe =
        ["--steps", "9", "--optimizer", "adam", "--learning-rate", "1e-3", "--ema", "0.9", "--validate", &held_out];
    let flags = |of: &str| {
        let mut flags: Vec<String> = recipe.iter().map(|flag| flag.to_string()).collect();
        for (flag, name) in [
            ("--save", "model.onnx"),
            ("--save-ema", "ema.onnx"),
            ("--checkpoint", "last"),
            ("--best-checkpoint", "best"),
        ] {
            flags.extend([flag.to_owned(), path(&format!("{of}-{name}"))]);
        }
        flags.extend(["--checkpoint-every", "4", "--validate-every", "3"].map(str::to_owned));
        flags
    };
    let results = |of: &str| {
        let file = |name: &str| path(&format!("{of}-{name}"));
        let models = ["model.onnx", "ema.onnx"].map(|name| model_bytes(file(name).as_ref()));
        (models, ["last", "best"].map(|name| tensors(file(name).as_ref())))
    };
    let of = |flags: &[String], more: &[&'static str]| {
        let all: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
        training(&model, &data, &all).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let alone = of(&flags("one"), &[]);
    common::success(&alone.iter().map(String::as_str).collect::<Vec<_>>());
    for (processes, shard) in [(2, "state"), (3, "gradients"), (2, "parameters")] {
        let run = of(&flags("several"), &["--shard", shard, "--json"]);
        let run: Vec<&str> = run.iter().map(String::as_str).collect();
        let json: serde_json::Value = serde_json::from_str(&succeeds(mpirun(launcher, processes, &run))).unwrap();
        let bytes = |key: &str| json["processes"][key].as_u64().unwrap_or_else(|| panic!("{key}: {json}"));
        assert!(bytes("own_shard_bytes") > 0 && bytes("own_shard_bytes") < bytes("sharded_bytes"), "{json}");
        assert!(results("several") == results("one"), "{processes} processes, --shard {shard}");
    }
    let plan = ["plan", &model, "--train", "--batch-size", "64", "--optimizer", "adam", "--ranks", "4", "--check"];
    let device_bytes = |shard: &[&str]| {
        let plan: serde_json::Value = common::json(&[&plan[..], shard].concat());
        plan["device_peak_bytes"].as_u64().unwrap_or_else(|| panic!("{plan}"))
    };
    assert!(device_bytes(&["--shard", "parameters"]) < device_bytes(&[]));
}

#[test]
fn runs_of_a_model_are_shared_out() {
    let folder = Folder::new();
    let values: Vec<f32> = (0..130 * 64).map(|i| (i % 17) as f32).collect();
    let inputs = folder.archive("inputs.npz", &[("x", &Tensor::from_f32(&[130, 1, 8, 8], &values))]);
    let others =
        folder.archive("others.npz", &[("x", &Tensor::from_f32(&[130, 1, 8, 8], &values[..1].repeat(130 * 64)))]);
    let model = digits_model();
    let output = |results: &str| {
        let files = std::fs::read_dir(results).expect("results").map(|entry| entry.expect("an entry").path());
        let mut files: Vec<_> = files.filter(|file| file.extension().is_some_and(|name| name == "npy")).collect();
        assert_eq!(files.len(), 1);
        std::fs::read(files.remove(0)).expect("an output")
    };
    let one = folder.text("one");
    // The processes of a machine divide its free memory. What others take of it changes, so the larger limit of two runs counts.
    let limited = ["--memory-limit", "80%free"];
    let limit = |report: &serde_json::Value| report["memory_limit_bytes"].as_u64().expect("a limit");
    let limit_of_one = || limit(&common::json(&[&running(&model, &inputs, &one)[..], &limited].concat()));
    let before = limit_of_one();
    for (number, launcher) in launchers().into_iter().enumerate() {
        for processes in if number == 0 { vec![2, 3] } else { vec![2] } {
            let several = folder.text(&format!("several-{number}-{processes}"));
            let arguments = [&running(&model, &inputs, &several)[..], &limited, &["--json", "--repeat=2"]].concat();
            let said = succeeds(mpirun(launcher, processes, &arguments));
            let json: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
            assert_eq!(json["processes"]["count"], processes, "{arguments:?}");
            assert!(json["processes"]["shared_launches"].as_u64() > Some(0), "{json}");
            assert!(output(&several) == output(&one), "{launcher:?}, {processes} processes");
            let (several, one) = (limit(&json), before.max(limit_of_one()));
            assert!(several < one / 4 * 3, "{launcher:?}, {processes} processes: {several} of {one} bytes");
        }
        if number == 0 {
            let never = folder.text("never");
            let mut command = mpirun(launcher, 1, &running(&model, &inputs, &never));
            command.args([":", "-n", "1", env!("CARGO_BIN_EXE_forebay")]).args(running(&model, &others, &never));
            let (_, stderr) = texts(&command.output().expect("the launcher starts"));
            assert!(stderr.contains("process 1 of 2 has --inputs"), "{stderr}");
            assert!(!folder.path("never").exists());
        }
    }
}

/// The last row of a batch of tokens has one that the model does not know, so only the process that reads this row can complain.
#[test]
fn each_process_reads_its_own_share() {
    let Some(launcher) = launchers().into_iter().next() else { return };
    let folder = Folder::new();
    let model = common::example("../testdata/golden/tiny-gpt/model.onnx");
    let mut tokens: Vec<i64> = (0..8 * 64).map(|i| i % 256).collect();
    tokens[8 * 64 - 1] = 256;
    let inputs = folder.archive("inputs.npz", &[("x", &Tensor::from_i64(&[8, 64], &tokens))]);
    let results = folder.text("results");
    let output = mpirun(launcher, 2, &running(&model, &inputs, &results)).output().expect("the launcher starts");
    let (_, stderr) = texts(&output);
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(!output.status.success() && errors.len() == 1, "{stderr}");
    assert!(errors[0].contains("process 1 of 2: input 'x' contains index 256 at [7, 63]"), "{stderr}");
    assert!(!Path::new(&results).exists());
}

/// The first process waits for another run's outputs, after the second one has done all that it has to do.
#[test]
fn an_end_that_others_do_not_reach_is_bounded() {
    for launcher in launchers() {
        let folder = Folder::new();
        let values: Vec<f32> = (0..64 * 64).map(|i| (i % 17) as f32).collect();
        let inputs = folder.archive("inputs.npz", &[("x", &Tensor::from_f32(&[64, 1, 8, 8], &values))]);
        let (model, results) = (digits_model(), folder.path("results"));
        let _lock = forebay::files::FolderLock::take(&results, ".forebay-outputs.lock").expect("nobody else has it");
        let mut command = mpirun(launcher, 2, &running(&model, &inputs, results.to_str().expect("a path")));
        command.args(["--network-timeout", "2"]);
        let start = Instant::now();
        let output = command.output().expect("the launcher starts");
        let (stdout, stderr) = texts(&output);
        assert!(!output.status.success(), "{stdout}\n{stderr}");
        let words = "error: process 1 of 2: this process has ended, but process 0 has not after 2 s more";
        assert!(stderr.contains(words), "{stderr}");
        assert!(start.elapsed() < Duration::from_secs(60), "{stderr}");
    }
}

#[test]
fn plans_say_what_processes_exchange() {
    let model = digits_model();
    let plan = |flags: &[&str]| {
        let all = ["plan", &model, "--train", "--batch-size", "64", "--ranks"];
        common::json(&[&all[..], flags].concat())
    };
    let (slow, fast) = (plan(&["4", "--network", "ethernet-1g"]), plan(&["4", "--network", "100GB/s,1us"]));
    let of = |plan: &serde_json::Value, key: &str| {
        plan["processes"][key].as_f64().unwrap_or_else(|| panic!("{key}: {plan}"))
    };
    assert!(of(&slow, "predicted_seconds") > of(&fast, "predicted_seconds"));
    assert!(of(&slow, "sent_bytes_per_step") > 0.0 && of(&slow, "exchanges_per_step") > 0.0);
    assert_eq!(of(&slow, "count"), 4.0);
    assert_eq!(plan(&["4"])["processes"]["network"], "ethernet-10g");
    let efficiency = of(&fast, "predicted_seconds_of_one") / of(&fast, "predicted_seconds") / 4.0;
    assert!((of(&fast, "efficiency") - efficiency).abs() < 1e-9);
    let alone = common::json(&["plan", &model, "--train", "--batch-size", "64"]);
    assert!(slow["device_peak_bytes"].as_u64() < alone["device_peak_bytes"].as_u64(), "a share takes less memory");
    let run = common::json(&["plan", &model, "--batch-size", "64", "--ranks", "4", "--network", "ethernet-1g"]);
    assert!(of(&run, "shared_launches") > 0.0 && of(&run, "predicted_seconds_of_one") > 0.0, "{run}");
    for (flags, words) in [
        (&["--ranks", "1", "--train"][..], "1 is not in 2..=4096"),
        (&["--ranks", "2", "--shard", "state"], "--train"),
        (&["--ranks", "2", "--train", "--network", "wet"], "the name of a network: ethernet-1g"),
    ] {
        let output = common::forebay(&[&["plan", &model], flags].concat()).output().unwrap();
        assert!(output.status.code() == Some(2) && texts(&output).1.contains(words), "{flags:?}: {output:?}");
    }
}

#[test]
fn the_plans_of_all_processes_are_simulated_together() {
    let model = digits_model();
    let all = ["plan", &model, "--train", "--batch-size", "64", "--machine", "h200", "--ranks"];
    let plan = |flags: &[&str]| common::json(&[&all[..], flags].concat())["processes"].clone();
    let even = plan(&["4", "--simulate"]);
    let (predicted, simulated) = (even["predicted_seconds"].as_f64().unwrap(), &even["simulated"]);
    let seconds = |of: &serde_json::Value| of["seconds"].as_f64().unwrap();
    assert!((0.999..1.03).contains(&(seconds(simulated) / predicted)), "64 samples are shared out evenly: {even}");
    let speedup = even["predicted_seconds_of_one"].as_f64().unwrap() / seconds(simulated);
    assert_eq!(simulated["speedup"].as_f64(), Some(speedup));
    assert_eq!(simulated["efficiency"].as_f64(), Some(speedup / 4.0));
    assert_eq!(simulated["each"].as_array().map(Vec::len), Some(4));
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let uneven = plan(&["4", "--simulate", "--slow", "2=3", "--trace", trace.to_str().unwrap()]);
    let (uneven, each) = (&uneven["simulated"], &uneven["simulated"]["each"]);
    assert!(seconds(uneven) > 1.5 * predicted && uneven["slowest"] == 2, "{uneven}");
    for rank in 0..4 {
        let waiting = each[rank]["waiting_seconds"].as_f64().unwrap();
        assert_eq!(rank == 2, waiting < 0.1 * predicted, "{uneven}");
        let parts = ["own_seconds", "exchange_seconds", "waiting_seconds"].map(|key| each[rank][key].as_f64().unwrap());
        assert!((parts.iter().sum::<f64>() - seconds(&each[rank])).abs() < 1e-9, "{uneven}");
    }
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let names = events.iter().filter(|event| event["name"] == "process_name").map(|event| &event["args"]["name"]);
    let names: Vec<_> = names.collect();
    assert!(names.iter().any(|name| **name == "process 2") && names.len() > 1, "{names:?}");
    let text = common::success(&[&all[..], &["4", "--simulate", "--slow", "2=3"]].concat());
    assert!(text.contains("process 2 is the slowest") && text.contains("\n                  2 "), "{text}");
    let run = common::json(&["plan", &model, "--batch-size", "64", "--ranks", "2", "--simulate"]);
    assert!(seconds(&run["processes"]["simulated"]) > 0.0, "{run}");
    for (flags, words) in [
        (&["4", "--slow", "1=2"][..], "--simulate"),
        (&["4", "--simulate", "--slow", "1"], "a process and a factor, as in 3=2"),
        (&["4", "--simulate", "--slow", "4=2"], "process 4 cannot be slow: the processes are numbered 0 to 3"),
        (&["4", "--simulate", "--slow", "1=0"], "process 1 cannot be 0 times as slow; expected a factor from 0.001 to"),
    ] {
        let output = common::forebay(&[&all[..], flags].concat()).output().unwrap();
        assert!(output.status.code() == Some(2) && texts(&output).1.contains(words), "{flags:?}: {output:?}");
    }
}

#[test]
fn runs_go_on_with_another_number_of_processes() {
    let Some(launcher) = launchers().into_iter().next() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, data, checkpoint) = (digits_model(), format!("{}#0..430", digits_data()), path("checkpoint"));
    let adam = ["--optimizer", "adam", "--learning-rate", "1e-3"];
    let (one, several) = (path("one.onnx"), path("several.onnx"));
    common::success(&training(&model, &data, &[&adam, &["--steps", "14", "--save", &one][..]].concat()));
    let first = [&adam, &["--steps", "5", "--checkpoint", &checkpoint][..]].concat();
    succeeds(mpirun(launcher, 3, &training(&model, &data, &first)));
    let then = [&adam, &["--steps", "11", "--resume", &checkpoint, "--checkpoint", &checkpoint][..]].concat();
    succeeds(mpirun(launcher, 2, &training(&model, &data, &then)));
    let last = [&adam, &["--steps", "14", "--resume", &checkpoint, "--save", &several][..]].concat();
    common::success(&training(&model, &data, &last));
    assert!(model_bytes(one.as_ref()) == model_bytes(several.as_ref()));
}

#[test]
fn what_one_process_cannot_do_is_said_once_and_ends_all() {
    let Some(launcher) = launchers().into_iter().next() else { return };
    let (model, data) = (digits_model(), format!("{}#0..100", digits_data()));
    let run = |[first, own]: [&str; 2], flags: &[&str], own_flags: &[&str]| {
        let mut command = mpirun(launcher, 1, &training(&model, first, flags));
        command.args([":", "-n", "1", env!("CARGO_BIN_EXE_forebay")]).args(training(&model, own, own_flags));
        let start = Instant::now();
        let output = command.output().expect("the launcher starts");
        assert!(start.elapsed() < Duration::from_secs(60), "{command:?}");
        let (stdout, stderr) = texts(&output);
        let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(!output.status.success() && errors.len() == 1, "{command:?}\n{stdout}\n{stderr}");
        errors[0].to_owned()
    };
    let (steps, nowhere) = (["--steps", "3"], "/nowhere/data.npz");
    let error = run([&data, &data], &steps, &["--steps", "3", "--learning-rate", "0.5"]);
    assert!(error.contains("process 1 of 2 has --learning-rate 0.5, but process 0 has no --learning-rate"), "{error}");
    let error = run([&data, nowhere], &steps, &steps);
    assert!(error.contains("process 1 of 2: ") && error.contains(nowhere), "{error}");
    // All processes fail in the same way, so the error names no process.
    let error = run([nowhere, nowhere], &steps, &steps);
    assert!(error.contains(nowhere) && !error.contains("process"), "{error}");
    let small = ["--steps", "3", "--simulate-device", "4KiB"];
    let error = run([&data, &data], &small, &small);
    assert!(error.contains("pass at least --simulate-device ") && !error.contains("process"), "{error}");
    // A run that has nothing left to do, which only the process that writes checkpoints could know.
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint").to_str().unwrap().to_owned();
    let done = ["--steps", "2", "--checkpoint", &checkpoint];
    common::success(&training(&model, &data, &done));
    let again = [&done[..], &["--resume", &checkpoint]].concat();
    let error = run([&data, &data], &again, &again);
    assert!(error.contains("nothing left to do") && !error.contains("process"), "{error}");
    // In the middle of a run.
    let diverges = ["--steps", "30", "--learning-rate", "1e30"];
    let error = run([&data, &data], &diverges, &diverges);
    assert!(error.starts_with("error: step ") && error.contains("NaN"), "{error}");
}

#[test]
fn a_process_that_is_killed_ends_all_and_runs_go_on_from_the_last_checkpoint() {
    let Some(launcher) = launchers().into_iter().next() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, data) = (digits_model(), format!("{}#0..430", digits_data()));
    let one = path("one.onnx");
    common::success(&training(&model, &data, &["--steps", "150", "--save", &one]));
    for victim in 0..2 {
        let (checkpoint, saved) = (path(&format!("checkpoint-{victim}")), path("several.onnx"));
        let kept = ["--checkpoint", &checkpoint, "--checkpoint-every", "1", "--steps"];
        let mut command = mpirun(launcher, 2, &training(&model, &data, &[&kept[..], &["1000000"]].concat()));
        let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the launcher starts");
        wait_for(|| Path::new(&checkpoint).join("checkpoint.json").exists());
        std::thread::sleep(Duration::from_millis(100 + 150 * victim));
        let processes = children_of(run.id());
        assert_eq!(processes.len(), 2, "processes of the launcher");
        kill(processes[victim as usize]);
        let start = Instant::now();
        wait_for(|| run.try_wait().expect("a process").is_some());
        assert!(start.elapsed() < Duration::from_secs(30), "the others go on");
        assert!(!run.wait().expect("a process").success());
        wait_for(|| processes.iter().all(|process| !Path::new(&format!("/proc/{process}/exe")).exists()));
        let then = ["--steps", "150", "--resume", &checkpoint, "--save", &saved];
        succeeds(mpirun(launcher, 2, &training(&model, &data, &then)));
        assert!(model_bytes(one.as_ref()) == model_bytes(saved.as_ref()), "process {victim} was killed");
    }
}

/// `FOREBAY_KILLS` times, one of two or three processes is killed at a random moment. Runs continue from the last checkpoint with other
/// numbers of processes and other slices, and end with the model of one process.
#[test]
#[ignore = "takes minutes: cargo xtask kills"]
fn processes_are_killed_at_random_moments() {
    let Some(launcher) = launchers().into_iter().next() else { return };
    let kills: usize = std::env::var("FOREBAY_KILLS").map_or(Ok(10), |text| text.parse()).expect("a number of kills");
    let mut random = Random::new(kills as u64);
    let (model, data) = (digits_model(), format!("{}#0..430", digits_data()));
    let recipe = ["--optimizer", "adam", "--learning-rate", "1e-3", "--steps", "200", "--checkpoint-every", "1"];
    let whole = Folder::new();
    let one = whole.text("one.onnx");
    common::success(&training(&model, &data, &[&recipe[..6], &["--save", &one]].concat()));
    let (mut done, mut ended) = (0, 0);
    while done < kills {
        let folder = Folder::new();
        let (checkpoint, saved) = (folder.text("checkpoint"), folder.text("several.onnx"));
        loop {
            let processes = 2 + random.index(2);
            let mut flags = [&recipe[..], &["--checkpoint", &checkpoint, "--save", &saved]].concat();
            if Path::new(&checkpoint).join("checkpoint.json").exists() {
                assert!(forebay::Checkpoint::read(&checkpoint).is_ok(), "the last checkpoint is whole");
                flags.extend(["--resume", &checkpoint]);
            }
            let shards = ["", "state", "gradients", "parameters"];
            let shard = shards[random.index(shards.len())];
            if !shard.is_empty() {
                flags.extend(["--shard", shard]);
            }
            let mut command = mpirun(launcher, processes, &training(&model, &data, &flags));
            let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the launcher starts");
            std::thread::sleep(Duration::from_millis(random.below(2500)));
            let victims = children_of(run.id());
            if let Some(victim) = victims.get(random.index(processes)).filter(|_| done < kills) {
                // It may have just ended.
                let killed = Command::new("kill").args(["-KILL", &victim.to_string()]).stderr(Stdio::null()).status();
                done += usize::from(killed.expect("kill starts").success());
            }
            wait_for(|| run.try_wait().expect("a process").is_some());
            let is_gone = |process: &u32| !Path::new(&format!("/proc/{process}/exe")).exists();
            wait_for(|| victims.iter().all(is_gone));
            if run.wait().expect("a process").success() {
                break;
            }
        }
        assert!(model_bytes(one.as_ref()) == model_bytes(saved.as_ref()), "after {done} kills");
        ended += 1;
    }
    println!("{done} processes were killed; {ended} runs ended with the model of one process");
}

#[test]
fn a_process_that_does_not_answer_ends_all() {
    let Some(launcher) = launchers().into_iter().next() else { return };
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint").to_str().unwrap().to_owned();
    let (model, data) = (digits_model(), format!("{}#0..430", digits_data()));
    let flags =
        ["--checkpoint", &checkpoint, "--checkpoint-every", "1", "--steps", "1000000", "--network-timeout", "2"];
    let mut command = mpirun(launcher, 2, &training(&model, &data, &flags));
    let run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the launcher starts");
    wait_for(|| Path::new(&checkpoint).join("checkpoint.json").exists());
    let processes = children_of(run.id());
    assert_eq!(processes.len(), 2, "processes of the launcher");
    signal("-STOP", processes[1]);
    let start = Instant::now();
    let output = run.wait_with_output().expect("a process");
    let stderr = texts(&output).1;
    assert!(start.elapsed() < Duration::from_secs(30), "{stderr}");
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("error: process 0 of 2: ") && stderr.contains("process 1"), "{stderr}");
    wait_for(|| processes.iter().all(|process| !Path::new(&format!("/proc/{process}/exe")).exists()));
    assert!(forebay::Checkpoint::read(&checkpoint).is_ok(), "the last checkpoint is whole");
}

fn wait_for(is_so: impl FnMut() -> bool) {
    let (start, mut is_so) = (Instant::now(), is_so);
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the processes that a launcher started, in the order of their numbers.
fn children_of(launcher: u32) -> Vec<u32> {
    let children = |process: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    let is_program = |process: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        name.trim() == "forebay"
    };
    children(launcher).into_iter().filter(is_program).collect()
}

fn kill(process: u32) {
    signal("-KILL", process);
}

fn signal(signal: &str, process: u32) {
    let output: Output = Command::new("kill").args([signal, &process.to_string()]).output().expect("kill starts");
    assert!(output.status.success());
}
