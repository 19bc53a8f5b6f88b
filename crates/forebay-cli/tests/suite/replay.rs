//! `forebay replay`: traces in, schedules and figures out.

use crate::common::{Folder, assert_says, example, failure, json, success};

/// Two kernels and a tensor between them that is used again at the end; three tensors fit at once.
const TRACE: &str = r#"{"device_memory_bytes":12288,"host_memory_bytes":1048576,"link_bytes_per_s":1000000000,"ssd_bytes_per_s":1000000000}
{"tensor":0,"size_bytes":4096,"persistent":true}
{"tensor":1,"size_bytes":4096,"persistent":false}
{"tensor":2,"size_bytes":4096,"persistent":false}
{"tensor":3,"size_bytes":4096,"persistent":false}
{"kernel":0,"name":"make","duration_ns":20000,"reads":[0],"writes":[1],"workspace_bytes":0}
{"kernel":1,"name":"widen","duration_ns":20000,"reads":[],"writes":[2,3],"workspace_bytes":0}
{"kernel":2,"name":"merge","duration_ns":20000,"reads":[2,3],"writes":[2],"workspace_bytes":4096}
{"kernel":3,"name":"learn","duration_ns":20000,"reads":[0,1,2],"writes":[0],"workspace_bytes":0}
"#;

#[test]
fn a_report_in_words_and_in_json() {
    let folder = Folder::new();
    let trace = folder.write("trace.jsonl", TRACE.as_bytes());
    let text = success(&["replay", &trace]);
    assert_says(
        &text,
        &["ideal", "lower bound", "planned", "demand LRU", "device peak", "host traffic", "late prefetches"],
    );
    let report = json(&["replay", &trace, "--device-memory", "1MiB"]);
    assert_eq!(report["time_over_ideal"].as_f64(), Some(1.0), "{report}");
    assert_eq!(report["ideal_ns"].as_u64(), Some(80_000));
    assert_eq!(report["live_peak_bytes"].as_u64(), Some(5 * 4096));
    let paged = json(&["replay", &trace, "--policy", "lru"]);
    let planned = json(&["replay", &trace]);
    assert_eq!(paged["policy"], "lru");
    assert!(planned["step_ns"].as_u64() <= paged["step_ns"].as_u64(), "{planned} {paged}");
    assert!(planned["lower_bound_ns"].as_u64() <= planned["step_ns"].as_u64(), "{planned}");
    assert!(planned["device_peak_bytes"].as_u64() <= Some(12_288), "{planned}");
    assert_eq!(planned["lru_ns"], paged["step_ns"]);
}

#[test]
fn a_public_trace_and_its_schedule() {
    let folder = Folder::new();
    let schedule = folder.text("schedule.json");
    let trace = example("traces/bert-b256.jsonl.gz");
    let report = json(&["replay", &trace, "--device-memory", "60GiB", "--schedule", &schedule]);
    assert_eq!(report["time_over_ideal"].as_f64(), Some(1.0), "{report}");
    let written: forebay::replay::Schedule =
        serde_json::from_str(&std::fs::read_to_string(&schedule).unwrap()).unwrap();
    let mut workload = forebay::replay::read_trace(trace.as_ref()).unwrap();
    workload.machine.device_memory_bytes = 60 << 30;
    let account = forebay::replay::verify(&workload, &written).unwrap();
    assert_eq!(report["step_ns"].as_u64(), Some(account.step_ns));
}

#[test]
fn what_cannot_be_read_or_does_not_fit() {
    let folder = Folder::new();
    let trace = folder.write("trace.jsonl", TRACE.as_bytes());
    assert_says(&failure(1, &["replay", &trace, "--device-memory", "8KiB"]), &["kernel 2 'merge'", "12288", "8192"]);
    assert_says(&failure(1, &["replay", &folder.text("none.jsonl")]), &["none.jsonl"]);
    assert_says(&failure(2, &["replay"]), &["TRACE"]);
    assert_says(&failure(2, &["replay", &trace, "--policy", "random"]), &["--policy"]);
    let lines: Vec<&str> = TRACE.lines().collect();
    let broken = |name: &str, line: usize, text: &str| {
        let mut lines = lines.clone();
        lines[line - 1] = text;
        folder.write(name, lines.join("\n").as_bytes())
    };
    let header = broken("header.jsonl", 1, "{}");
    assert_says(&failure(1, &["replay", &header]), &["header.jsonl", "line 1", "device_memory_bytes"]);
    let tensor = broken("tensor.jsonl", 3, r#"{"tensor":7,"size_bytes":1,"persistent":true}"#);
    assert_says(&failure(1, &["replay", &tensor]), &["line 3", "tensor 7", "expected tensor 1"]);
    let kernel = broken(
        "kernel.jsonl",
        6,
        r#"{"kernel":0,"name":"make","duration_ns":-1,"reads":[],"writes":[],"workspace_bytes":0}"#,
    );
    assert_says(&failure(1, &["replay", &kernel]), &["line 6", "-1"]);
    let unknown = broken(
        "unknown.jsonl",
        6,
        r#"{"kernel":0,"name":"make","duration_ns":1,"reads":[9],"writes":[],"workspace_bytes":0}"#,
    );
    assert_says(&failure(1, &["replay", &unknown]), &["line 6", "tensor 9", "4 tensors"]);
    let cut = folder.write("cut.jsonl.gz", &[0x1f, 0x8b, 8, 0]);
    assert_says(&failure(1, &["replay", &cut]), &["cut.jsonl.gz"]);
}
