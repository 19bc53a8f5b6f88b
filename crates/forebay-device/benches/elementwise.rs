//! Speed of the host device's elementwise kernels and reductions, for operands in different layouts.
//!
//! `cargo bench -p forebay-device --bench elementwise [-- FILTER]` prints and records the best time of several runs and the bytes that are
//! read and written per second, with one thread and with all threads. Everything goes through the public device, as a plan's launches do.

mod launching;

use std::error::Error;

use forebay_base::kernel::{Activation, BinaryOp, ReduceOp, UnaryOp};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_bench_record::{Column, Record, Table};

use launching::{Machine, Run};

fn of(data_type: DataType, sizes: &[u64]) -> Result<TensorDesc, Box<dyn Error>> {
    Ok(TensorDesc::packed(data_type, sizes)?)
}

/// Functions of one variable, from memory-bound ones to those that take longest.
const FUNCTIONS: &[UnaryOp] = &[
    UnaryOp::Relu,
    UnaryOp::Affine { scale: 2.0, shift: 1.0 },
    UnaryOp::Sqrt,
    UnaryOp::Exp,
    UnaryOp::Sigmoid,
    UnaryOp::Silu,
    UnaryOp::Tanh,
    UnaryOp::Gelu,
    UnaryOp::Sin,
];

/// Elements of an operand in the first-level cache, in the second-level cache and in memory.
const COUNTS: &[u64] = &[1 << 11, 1 << 14, 1 << 22];

fn cases() -> Result<Vec<(String, Run)>, Box<dyn Error>> {
    let mut cases = Vec::new();
    let mut add = |layout: &str, kernel: Kernel, reads: Vec<TensorDesc>, write: TensorDesc| {
        cases.push((layout.to_owned(), Run { kernel, reads, writes: vec![write] }));
    };
    let binary = |op: BinaryOp| Kernel::Binary { op, activation: Activation::None };
    for &count in COUNTS {
        let x = of(DataType::Float32, &[count])?;
        for &op in FUNCTIONS {
            add(&format!("{op:?} of {count}"), Kernel::Unary(op), vec![x.clone()], x.clone());
        }
        for op in [UnaryOp::Relu, UnaryOp::Silu, UnaryOp::Gelu] {
            add(
                &format!("slope of {op:?} of {count}"),
                Kernel::UnaryGradient(op),
                vec![x.clone(), x.clone()],
                x.clone(),
            );
        }
        add(&format!("sum of {count}"), binary(BinaryOp::Add), vec![x.clone(), x.clone()], x.clone());
        let y = of(DataType::Bool, &[count])?;
        add(&format!("comparison of {count}"), binary(BinaryOp::Less), vec![x.clone(), x.clone()], y);
    }
    let (ids, mask) = (of(DataType::Int64, &[1 << 20])?, of(DataType::Bool, &[1 << 20])?);
    add("int64 sum", binary(BinaryOp::Add), vec![ids.clone(), ids.clone()], ids.clone());
    add("int64 comparison", binary(BinaryOp::Equal), vec![ids.clone(), ids], mask);
    let half = of(DataType::Float16, &[1 << 20])?;
    add("float16 Relu", Kernel::Unary(UnaryOp::Relu), vec![half.clone()], half.clone());
    add("float16 Sigmoid", Kernel::Unary(UnaryOp::Sigmoid), vec![half.clone()], half.clone());
    add("float16 sum", binary(BinaryOp::Add), vec![half.clone(), half.clone()], half);
    for [outer, inner] in [[1 << 18, 4], [1 << 15, 32], [1 << 10, 1 << 10]] {
        let x = of(DataType::Float32, &[outer, inner])?;
        let turned = TensorDesc::strided(DataType::Float32, &[outer, inner], &[1, outer])?;
        for (what, sizes) in [("row", [1, inner]), ("column", [outer, 1])] {
            let other = of(DataType::Float32, &sizes)?;
            add(
                &format!("sum of {outer} x {inner} and {what}"),
                binary(BinaryOp::Add),
                vec![x.clone(), other],
                x.clone(),
            );
        }
        add(
            &format!("sum of {outer} x {inner} and transposed"),
            binary(BinaryOp::Add),
            vec![x.clone(), turned],
            x.clone(),
        );
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::L2] {
            for axis in [0, 1] {
                let y = of(DataType::Float32, &[[inner, outer][axis]])?;
                add(
                    &format!("{op:?} of axis {axis} of {outer} x {inner}"),
                    Kernel::Reduce { op, axes: vec![axis] },
                    vec![x.clone()],
                    y,
                );
            }
        }
        let (x, y) = (of(DataType::Int64, &[outer, inner])?, of(DataType::Int64, &[outer])?);
        add(
            &format!("int64 Sum of axis 1 of {outer} x {inner}"),
            Kernel::Reduce { op: ReduceOp::Sum, axes: vec![1] },
            vec![x],
            y,
        );
    }
    Ok(cases)
}

fn main() -> Result<(), Box<dyn Error>> {
    let given = forebay_bench_record::arguments()?;
    let filter = given.words.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let machines = [Machine::new(Some(1))?, Machine::new(None)?];
    let mut columns = vec![Column::text("case")];
    for threads in ["one thread", "all threads"] {
        columns.extend([Column::number(threads, "us", 1).of("best"), Column::number(threads, "GB/s", 1).of("best")]);
    }
    let mut table = Table::new("elementwise", columns);
    for (name, run) in cases()?.iter().filter(|(name, _)| name.contains(&filter)) {
        let bytes: u64 = run.reads.iter().chain(&run.writes).map(TensorDesc::total_size_bytes).sum();
        let mut row = vec![name.as_str().into()];
        for machine in &machines {
            let seconds = machine.time(run)?.as_secs_f64();
            row.extend([(seconds * 1e6).into(), (bytes as f64 / seconds / 1e9).into()]);
        }
        table.print(row);
    }
    let what = "Elementwise kernels and reductions of the host device";
    let record = Record::new("elementwise", what, "cargo bench -p forebay-device --bench elementwise --", &given.words);
    record.with(table).save(given.output.as_deref())?;
    Ok(())
}
