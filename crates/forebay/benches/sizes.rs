//! The cost of a call besides its kernels: at one size, at ten sizes in turn, and at borders between stages; and how long models of ten
//! thousand nodes take until they can run.
//!
//! ```text
//! cargo bench -p forebay --bench sizes -- [--output FILE.json]
//! ```
//!
//! The time in which a call's commands ran is subtracted. Memory is that of the process, as counted by the system. The cost of a border
//! between stages is the difference from a call of one stage, per border.

use std::time::Instant;

use forebay::{Error, Model, Session, Tensor};
use forebay_bench_record::{Cell, Column, Record, Table};
use forebay_testing::onnx::builder::{BOOL, FLOAT, GraphBuilder, INT64, Value};

type Failure = Box<dyn std::error::Error>;

/// The number of measured calls, after unmeasured ones of every size.
const CALLS: usize = 1000;

/// The number of sessions created for each large model.
const MAKES: usize = 3;

/// The minimum number of nodes of a large model.
const NODES: usize = 10_000;

fn main() -> Result<(), Failure> {
    let given = forebay_bench_record::arguments()?;
    let columns = [
        Column::text("model"),
        Column::number("call", "us", 1).of("median"),
        Column::number("besides its commands", "us", 1).of("median"),
        Column::number("the same by border", "us", 1).of("median"),
        Column::number("plans made", "", 0),
        Column::number("memory grew by", "KiB", 0),
    ];
    let mut calls = Table::new("calls", columns);
    let one_stage = measure("one operator, one size", &chain()?, &[64], None, &mut calls)?;
    let ten: Vec<u64> = (1..=10).map(|i| 16 * i).collect();
    measure("one operator, ten sizes in turn", &chain()?, &ten, None, &mut calls)?;
    measure("a computed condition and a branch", &branch()?, &[64], Some((1, one_stage)), &mut calls)?;
    measure("`NonZero` between two stages", &indices()?, &[64], Some((2, one_stage)), &mut calls)?;
    measure("a loop of 20 iterations until a condition", &repeats()?, &[64], Some((21, one_stage)), &mut calls)?;
    let columns = [
        Column::text("model"),
        Column::number("nodes", "", 0),
        Column::number("launches", "", 0),
        Column::number("import", "s", 2).of("median"),
        Column::number("plan", "s", 2).of("median"),
    ];
    let mut models = Table::new("models", columns);
    for (name, (graph, nodes)) in
        [("residual layers", residual()), ("a transformer", transformer()), ("element by element", elementwise())]
    {
        plan(name, graph, nodes, &mut models)?;
    }
    let what = "Calls of a session: what they cost besides their kernels; and the time until large models can run";
    let record = Record::new("sizes", what, "cargo bench -p forebay --bench sizes --", &given.words);
    let record = record.under(format!("medians of {CALLS} calls, and of {MAKES} sessions"));
    record.with(calls).with(models).save(given.output.as_deref())?;
    Ok(())
}

/// y = max(x, 0).
fn chain() -> Result<Model, Error> {
    let graph = GraphBuilder::new();
    let graph = graph.input("x", FLOAT, &["N", "8"]).node("Relu", &["x"], &["y"]).output("y", FLOAT, &["N", "8"]);
    Model::from_bytes(&graph.build())
}

/// y = x or -x, depending on the mean.
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

/// The negated numbers above a limit: two plans around a list of indices.
fn indices() -> Result<Model, Error> {
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "8"])
        .floats("limit", &[], &[0.125])
        .node("Greater", &["x", "limit"], &["is_above"])
        .node("NonZero", &["is_above"], &["places"])
        .node_with("Transpose", &["places"], &["rows"], vec![("perm", Value::Ints(vec![1, 0]))])
        .node("GatherND", &["x", "rows"], &["chosen"])
        .node("Neg", &["chosen"], &["y"])
        .output("y", FLOAT, &["count"]);
    Model::from_bytes(&graph.build())
}

/// Adds to x until its largest element is too large, which happens after 20 times.
fn repeats() -> Result<Model, Error> {
    let body = GraphBuilder::new()
        .input("i", INT64, &[])
        .input("go_on", BOOL, &[])
        .input("a", FLOAT, &["N", "8"])
        .node("Add", &["a", "one"], &["sum"])
        .node_with("ReduceMax", &["sum"], &["most"], vec![("keepdims", Value::Int(0))])
        .node("Less", &["most", "limit"], &["is_less"])
        .output("is_less", BOOL, &[])
        .output("sum", FLOAT, &["N", "8"]);
    let graph = GraphBuilder::new()
        .input("x", FLOAT, &["N", "8"])
        .floats("one", &[], &[1.0])
        .floats("limit", &[], &[20.0])
        .node_with("Loop", &["", "", "x"], &["y"], vec![("body", Value::Graph(body))])
        .output("y", FLOAT, &["N", "8"]);
    Model::from_bytes(&graph.build())
}

/// A graph that grows node by node, with the name of its last value.
struct Chain {
    graph: GraphBuilder,
    nodes: usize,
}

impl Chain {
    fn new(sizes: &[&str]) -> Chain {
        Chain { graph: GraphBuilder::new().input("x", FLOAT, sizes), nodes: 0 }
    }

    /// Adds a weight and returns its name.
    fn weight(&mut self, shape: &[usize]) -> String {
        let name = format!("w{}", self.nodes);
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| 0.01 * ((i * 7 + self.nodes) % 13) as f32).collect();
        self.graph = std::mem::take(&mut self.graph).floats(&name, shape, &values);
        name
    }

    /// Adds a node and returns the name of its output.
    fn node(&mut self, operator: &str, inputs: &[&str], attributes: Vec<(&str, Value)>) -> String {
        self.nodes += 1;
        let name = format!("v{}", self.nodes);
        self.graph = std::mem::take(&mut self.graph).node_with(operator, inputs, &[&name], attributes);
        name
    }

    fn end(self, last: &str, sizes: &[&str]) -> (GraphBuilder, usize) {
        (self.graph.node("Identity", &[last], &["y"]).output("y", FLOAT, sizes), self.nodes + 1)
    }

    /// x * w + b.
    fn linear(&mut self, x: &str, width: usize) -> String {
        let weight = self.weight(&[width, width]);
        let product = self.node("MatMul", &[x, &weight], Vec::new());
        let bias = self.weight(&[width]);
        self.node("Add", &[&product, &bias], Vec::new())
    }

    /// A normalization over the last axis, operator by operator, as older exporters write it.
    fn normalization(&mut self, x: &str, width: usize) -> String {
        let mean = |chain: &mut Chain, x: &str| chain.node("ReduceMean", &[x, "last"], Vec::new());
        let m = mean(self, x);
        let centered = self.node("Sub", &[x, &m], Vec::new());
        let squares = self.node("Mul", &[&centered, &centered], Vec::new());
        let variance = mean(self, &squares);
        let shifted = self.node("Add", &[&variance, "epsilon"], Vec::new());
        let deviation = self.node("Sqrt", &[&shifted], Vec::new());
        let normal = self.node("Div", &[&centered, &deviation], Vec::new());
        let scale = self.weight(&[width]);
        self.node("Mul", &[&normal, &scale], Vec::new())
    }
}

/// Layers of a product, a bias, an activation and a sum with the layer's input.
fn residual() -> (GraphBuilder, usize) {
    let mut chain = Chain::new(&["4", "16"]);
    let mut last = "x".to_owned();
    while chain.nodes < NODES {
        let linear = chain.linear(&last, 16);
        let active = chain.node("Relu", &[&linear], Vec::new());
        last = chain.node("Add", &[&last, &active], Vec::new());
    }
    chain.end(&last, &["4", "16"])
}

/// Layers of a transformer, operator by operator.
fn transformer() -> (GraphBuilder, usize) {
    let mut chain = Chain::new(&["2", "8", "16"]);
    let graph = std::mem::take(&mut chain.graph);
    chain.graph = graph
        .integers("heads", &[4], &[2, 8, 2, 8])
        .integers("joined", &[3], &[2, 8, 16])
        .integers("last", &[1], &[-1])
        .floats("epsilon", &[], &[1e-5])
        .floats("scale", &[], &[0.35])
        .floats("half", &[], &[0.5])
        .floats("root", &[], &[std::f32::consts::SQRT_2])
        .floats("one", &[], &[1.0]);
    let mut last = "x".to_owned();
    while chain.nodes < NODES {
        let normal = chain.normalization(&last, 16);
        let mut heads = Vec::new();
        for order in [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]] {
            let linear = chain.linear(&normal, 16);
            let split = chain.node("Reshape", &[&linear, "heads"], Vec::new());
            heads.push(chain.node("Transpose", &[&split], vec![("perm", Value::Ints(order.to_vec()))]));
        }
        let scores = chain.node("MatMul", &[&heads[0], &heads[1]], Vec::new());
        let scaled = chain.node("Mul", &[&scores, "scale"], Vec::new());
        let shares = chain.node("Softmax", &[&scaled], Vec::new());
        let mixed = chain.node("MatMul", &[&shares, &heads[2]], Vec::new());
        let turned = chain.node("Transpose", &[&mixed], vec![("perm", Value::Ints(vec![0, 2, 1, 3]))]);
        let joined = chain.node("Reshape", &[&turned, "joined"], Vec::new());
        let linear = chain.linear(&joined, 16);
        let attended = chain.node("Add", &[&last, &linear], Vec::new());
        let normal = chain.normalization(&attended, 16);
        let wide = chain.linear(&normal, 16);
        let divided = chain.node("Div", &[&wide, "root"], Vec::new());
        let error = chain.node("Erf", &[&divided], Vec::new());
        let shifted = chain.node("Add", &[&error, "one"], Vec::new());
        let product = chain.node("Mul", &[&wide, &shifted], Vec::new());
        let active = chain.node("Mul", &[&product, "half"], Vec::new());
        let linear = chain.linear(&active, 16);
        last = chain.node("Add", &[&attended, &linear], Vec::new());
    }
    chain.end(&last, &["2", "8", "16"])
}

/// Eight chains of elementwise functions, which are added at the end.
fn elementwise() -> (GraphBuilder, usize) {
    let mut chain = Chain::new(&["4", "16"]);
    let mut ends = vec!["x".to_owned(); 8];
    while chain.nodes < NODES {
        for end in &mut ends {
            let operator = ["Tanh", "Sigmoid", "Neg", "Softplus"][chain.nodes / 8 % 4];
            let next = chain.node(operator, &[end], Vec::new());
            *end = if chain.nodes % 40 < 8 { chain.node("Mul", &[&next, "x"], Vec::new()) } else { next };
        }
    }
    let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
    let sum = chain.node("Sum", &ends, Vec::new());
    chain.end(&sum, &["4", "16"])
}

/// Measures how long a model takes until it can run.
fn plan(name: &str, graph: GraphBuilder, nodes: usize, table: &mut Table) -> Result<(), Failure> {
    let bytes = graph.build();
    let (mut imports, mut plans, mut launches) = (Vec::new(), Vec::new(), 0);
    for _ in 0..MAKES {
        let start = Instant::now();
        let model = Model::from_bytes(&bytes)?;
        imports.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let session = Session::builder(&model).build()?;
        plans.push(start.elapsed().as_secs_f64());
        launches = session.statistics().ok_or("there is a plan")?.launches;
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (import, plan) = (median(&mut imports), median(&mut plans));
    println!("{name}: {nodes} nodes, {launches} launches, {import:.2} s to import, {plan:.2} s to plan");
    table.push([Cell::from(name), (nodes as f64).into(), (launches as f64).into(), import.into(), plan.into()]);
    Ok(())
}

/// Measures calls and returns the microseconds besides commands. For models of several stages, `borders` holds the number of borders and
/// the cost of a call of one stage.
fn measure(
    name: &str,
    model: &Model,
    sizes: &[u64],
    borders: Option<(u32, f64)>,
    table: &mut Table,
) -> Result<f64, Failure> {
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
    let border = borders.map(|(count, one_stage)| (besides - one_stage) / f64::from(count));
    let by_border = border.map(|border| format!(", {border:.1} us by border")).unwrap_or_default();
    println!("{name}: {call:.1} us, {besides:.1} us besides commands{by_border}, {made} plans, {grown} KiB");
    table.push([
        Cell::from(name),
        call.into(),
        besides.into(),
        border.map_or(Cell::Nothing, Cell::from),
        (made as f64).into(),
        (grown as f64).into(),
    ]);
    Ok(besides)
}

/// Returns the resident memory of the process in KiB.
fn resident_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
