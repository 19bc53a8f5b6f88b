//! The two smallest graphs that show the purpose of barriers, as the command line would plan and run them.

use std::path::PathBuf;

use forebay::{LaunchOrder, Model, Session, Tensor, command_lines};
use forebay_golden::host;
use serde_json::Value;

fn example(name: &str) -> Model {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/barriers");
    Model::from_file(folder.join(name)).unwrap()
}

/// A session with no fusion: one launch for each operator, and one for each piece of a concatenation.
fn unmerged(name: &str, order: LaunchOrder) -> Session {
    let engine = host(2).fuse(false).order(order).check(true).trace(true);
    Session::builder(&example(name)).engine(engine).build().unwrap()
}

/// The compute stream's commands except for records, each as its node's name or its kind.
fn compute_stream(session: &Session) -> Vec<String> {
    let of_stream = |line: &&String| line.starts_with("s0 ");
    let lines = command_lines(session.plan().unwrap());
    lines
        .iter()
        .filter(of_stream)
        .map(|line| match line.rsplit_once("  (") {
            Some((_, name)) => name.trim_end_matches(')').to_string(),
            None => line.split(' ').nth(1).unwrap_or_default().to_string(),
        })
        .filter(|command| command != "record")
        .collect()
}

#[test]
fn a_chain_needs_a_barrier_between_each_two_operators() {
    for order in [LaunchOrder::File, LaunchOrder::Barriers] {
        let session = unmerged("chain.onnx", order);
        assert_eq!((session.statistics().unwrap().launches, session.statistics().unwrap().barriers), (3, 2));
        let stream = compute_stream(&session);
        // Nothing waits for an input, since it is read from the caller's memory.
        assert_eq!(stream, ["conv1", "barrier", "relu1", "barrier", "batch1"]);
    }
}

#[test]
fn a_diamond_needs_no_barrier_between_its_sides() {
    let session = unmerged("diamond.onnx", LaunchOrder::default());
    assert_eq!((session.statistics().unwrap().launches, session.statistics().unwrap().barriers), (5, 2));
    let stream = compute_stream(&session);
    let sides = ["barrier", "conv1", "conv2", "barrier", "join1", "join1"];
    assert_eq!(stream, [&["pool1"], sides.as_slice()].concat());
}

/// The start and end of a node's slice in the latest run of the trace, in microseconds.
fn slice(events: &[Value], name: &str) -> (f64, f64) {
    let slice = events.iter().rev().find(|event| event["ph"] == "X" && event["name"] == name).unwrap();
    let start = slice["ts"].as_f64().unwrap();
    (start, start + slice["dur"].as_f64().unwrap())
}

#[test]
fn both_sides_of_a_diamond_run_at_the_same_time() {
    let mut session = unmerged("diamond.onnx", LaunchOrder::default());
    let x = Tensor::from_f32(&[1, 16, 256, 256], &[0.5; 16 * 256 * 256]);
    // A busy machine may run the threads one after the other, but not every time.
    let overlap = (0..200).any(|_| {
        session.run([("x".to_string(), x.clone())].into()).unwrap();
        let trace = session.trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let ((first_start, first_end), (second_start, second_end)) = (slice(events, "conv1"), slice(events, "conv2"));
        first_start.max(second_start) < first_end.min(second_end)
    });
    assert!(overlap, "in 200 runs, the convolutions never ran at the same time");
}
