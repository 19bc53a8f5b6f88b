//! What a call costs besides its kernels: at one size, at ten sizes in turn, and with a branch whose condition is computed.
//!
//! ```text
//! cargo bench -p forebay --bench sizes -- [--output FILE.json]
//! ```
//!
//! Of each call, the time in which its commands ran is taken away. Memory is that of the process, as the system counts it.

use std::time::Instant;

use forebay::{Error, Model, Session, Tensor};
use forebay_bench_record::{Cell, Column, Record, Table};
use forebay_testing::onnx::builder::{GraphBuilder, Value, FLOAT};

type Failure = Box<dyn std::error::Error>;

/// Calls that are measured, after those of every size that are not.
const CALLS: usize = 1000;

fn main() -> Result<(), Failure> {
    let given = forebay_bench_record::arguments()?;
    let columns = [
        Column::text("model"),
        Column::number("call", "us", 1).of("median"),
        Column::number("besides its commands", "us", 1).of("median"),
        Column::number("plans made", "", 0),
        Column::number("memory grew by", "KiB", 0),
    ];
    let mut table = Table::new("calls", columns);
    for (name, model, sizes) in [
        ("one operator, one size", chain()?, vec![64]),
        ("one operator, ten sizes in turn", chain()?, (1..=10).map(|i| 16 * i).collect()),
        ("a computed condition and a branch", branch()?, vec![64]),
    ] {
        measure(name, &model, &sizes, &mut table)?;
    }
    let what = "Calls of a session: what they cost besides their kernels";
    let record = Record::new("sizes", what, "cargo bench -p forebay --bench sizes --", &given.words);
    record.under(format!("medians of {CALLS} calls")).with(table).save(given.output.as_deref())?;
    Ok(())
}

/// y = max(x, 0).
fn chain() -> Result<Model, Error> {
    let graph = GraphBuilder::new();
    let graph = graph.input("x", FLOAT, &["N", "8"]).node("Relu", &["x"], &["y"]).output("y", FLOAT, &["N", "8"]);
    Model::from_bytes(&graph.build())
}

/// y = x or -x, as the mean says.
fn branch() -> Result<Model, Error> {
    let one =
        |operator: &str| GraphBuilder::new().node(operator, &["x"], &["result"]).output("result", FLOAT, &["N", "8"]);
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "8"])
        .floats("limit", &[], &[0.5])
        .node_with("ReduceMean", &["x"], &["mean"], vec![("keepdims", Value::Int(0))])
        .node("Greater", &["mean", "limit"], &["condition"])
        .node_with(
            "If",
            &["condition"],
            &["y"],
            vec![("then_branch", Value::Graph(one("Relu"))), ("else_branch", Value::Graph(one("Neg")))],
        )
        .output("y", FLOAT, &["N", "8"]);
    Model::from_bytes(&graph.build())
}

fn measure(name: &str, model: &Model, sizes: &[u64], table: &mut Table) -> Result<(), Failure> {
    let mut session = Session::builder(model).build()?;
    let inputs: Vec<Tensor> =
        sizes.iter().map(|&size| Tensor::from_f32(&[size, 8], &vec![0.25; 8 * size as usize])).collect();
    let mut call = |i: usize| -> Result<(f64, f64), Error> {
        let input = [("x".to_string(), inputs[i % inputs.len()].clone())].into();
        let start = Instant::now();
        session.run(input)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok((seconds, seconds - session.last_run().seconds))
    };
    for i in 0..10 * inputs.len() {
        call(i)?;
    }
    let before = resident_kib();
    let mut all = (0..CALLS).map(&mut call).collect::<Result<Vec<_>, _>>()?;
    let grown = resident_kib() - before;
    let made = session.plan_cache().made;
    let mut median = |of: fn(&(f64, f64)) -> f64| {
        all.sort_by(|a, b| of(a).total_cmp(&of(b)));
        of(&all[all.len() / 2]) * 1e6
    };
    let (call, besides) = (median(|times| times.0), median(|times| times.1));
    println!("{name}: {call:.1} us, {besides:.1} us besides commands, {made} plans, {grown} KiB");
    table.push([Cell::from(name), call.into(), besides.into(), (made as f64).into(), (grown as f64).into()]);
    Ok(())
}

/// KiB of memory that the process has.
fn resident_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
