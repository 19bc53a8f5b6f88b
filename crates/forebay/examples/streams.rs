//! Streams and events: one function for each sample in MindSpore's guide to them, with the same names. What is wrong in the guide is also
//! wrong here, and visibly so. All samples run on a device that reorders whatever it is allowed to.
//!
//!     cargo run --release -p forebay --example streams

#![allow(non_snake_case, reason = "the names are the guide's")]

use std::error::Error;
use std::sync::Arc;

use forebay::{Context, ContextOptions, DeviceTensor, Event, Stream, Tensor};
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The number of times that each sample is run, each time in a different order.
const ROUNDS: u64 = 20;

fn main() -> Result<()> {
    for sample in SAMPLES {
        let outcome = run(&sample)?;
        println!("{}: wrong in {} of {ROUNDS} runs", sample.name, outcome.wrong);
        match outcome.race {
            Some(race) => println!("    {race}"),
            None => println!("    the checker finds no race"),
        }
    }
    Ok(())
}

/// A program from the guide.
pub struct Sample {
    /// What the program shows.
    pub name: &'static str,
    /// The program, which returns its final result.
    pub program: fn(&Context) -> Result<DeviceTensor>,
    /// The same arithmetic on one stream.
    pub meant: fn(&Context) -> Result<DeviceTensor>,
    /// Whether freed memory is kept while another stream uses it.
    pub extend_lifetimes: bool,
    /// Whether the program is correct.
    pub right: bool,
}

/// All samples, in the guide's order.
pub const SAMPLES: [Sample; 8] = [
    Sample { program: no_wait, right: false, ..sample("sum on another stream, nothing waits", sum_of_product) },
    Sample { program: wait_stream, ..sample("the same with wait_stream", sum_of_product) },
    Sample { program: stream_per_call, ..sample("a new stream in every call", sums_of_product) },
    Sample { program: stream_kept, ..sample("one stream for all calls", sums_of_product) },
    Sample { program: events_as_printed, right: false, ..sample("events, as printed", sum_plus_one) },
    Sample { program: events_as_meant, ..sample("events, as meant", sum_plus_one) },
    Sample {
        program: mess_output,
        extend_lifetimes: false,
        right: false,
        ..sample("mess_output, lifetimes not extended", plus_three)
    },
    Sample { program: mess_output, ..sample("mess_output", plus_three) },
];

const fn sample(name: &'static str, meant: fn(&Context) -> Result<DeviceTensor>) -> Sample {
    Sample { name, program: meant, meant, extend_lifetimes: true, right: true }
}

/// The outcome of a sample.
pub struct Outcome {
    /// The number of runs whose result is not the intended one.
    pub wrong: u64,
    /// The first race that the checker found.
    pub race: Option<String>,
}

/// Runs a sample on a device that reorders, and on one that does not.
///
/// # Errors
/// If the device fails.
pub fn run(sample: &Sample) -> Result<Outcome> {
    let options = ContextOptions::default().record(true).extend_lifetimes(sample.extend_lifetimes);
    let host = Arc::new(HostDevice::new(&HostOptions { threads: Some(2), ..HostOptions::default() })?);
    let meant = (sample.meant)(&Context::new(host.clone(), &options)?)?.to_host()?;
    let mut outcome = Outcome { wrong: 0, race: None };
    for seed in 1..=ROUNDS {
        let context = Context::new(Arc::new(ChaosDevice::new(host.clone(), seed)?), &options)?;
        let computed = (sample.program)(&context)?;
        context.synchronize()?;
        outcome.wrong += u64::from(computed.to_host()? != meant);
        if let Err(races) = context.check() {
            outcome.race.get_or_insert_with(|| races.sentences.first().cloned().unwrap_or_default());
        }
    }
    Ok(outcome)
}

/// Not correct: `sum` may start before `matmul` has finished.
fn no_wait(context: &Context) -> Result<DeviceTensor> {
    let s = Stream::new(context, 0)?;
    let A = randn(context, &[20, 20], 1)?;
    let B = A.matmul(&A)?;
    let _entered = s.enter();
    let C = B.sum()?;
    Ok(C)
}

fn wait_stream(context: &Context) -> Result<DeviceTensor> {
    let s = Stream::new(context, 0)?;
    let A = randn(context, &[20, 20], 1)?;
    let B = A.matmul(&A)?;
    s.wait_stream(&context.current_stream())?;
    let _entered = s.enter();
    let C = B.sum()?;
    Ok(C)
}

fn sum_of_product(context: &Context) -> Result<DeviceTensor> {
    let A = randn(context, &[20, 20], 1)?;
    Ok(A.matmul(&A)?.sum()?)
}

/// The guide does not recommend this, because creating a stream takes time there. Here, the streams of the device are pooled.
fn stream_per_call(context: &Context) -> Result<DeviceTensor> {
    repeat(context, |A| func(A, &Stream::new(context, 0)?))
}

fn stream_kept(context: &Context) -> Result<DeviceTensor> {
    let s1 = Stream::new(context, 0)?;
    repeat(context, |A| func(A, &s1))
}

fn func(A: &DeviceTensor, s1: &Stream) -> Result<DeviceTensor> {
    let context = A.context();
    s1.wait_stream(&context.current_stream())?;
    let C = {
        let _entered = s1.enter();
        A.sum()?
    };
    context.current_stream().wait_stream(s1)?;
    Ok(C)
}

fn sums_of_product(context: &Context) -> Result<DeviceTensor> {
    repeat(context, |A| Ok(A.sum()?))
}

fn repeat(context: &Context, func: impl Fn(&DeviceTensor) -> Result<DeviceTensor>) -> Result<DeviceTensor> {
    let A = randn(context, &[20, 20], 1)?;
    let mut total = func(&A.matmul(&A)?)?;
    for _ in 0..4 {
        total = total.add(&func(&A.matmul(&A)?)?)?;
    }
    Ok(total)
}

/// As printed in the guide. The last wait is for `ev1`, and therefore not for `sum`.
fn events_as_printed(context: &Context) -> Result<DeviceTensor> {
    let s = Stream::new(context, 0)?;
    let ev1 = Event::new(context, false);
    let ev2 = Event::new(context, false);

    let A = randn(context, &[20, 20], 1)?;
    let B = A.matmul(&A)?;
    ev1.record()?;
    let C = {
        let _entered = s.enter();
        ev1.wait()?; // Ensure 'B = ops.matmul(A, A)' is complete.
        let C = B.sum()?;
        ev2.record()?;
        C
    };
    ev1.wait()?; // Ensure 'C = ops.sum(B)' is complete (it does not).
    let D = C.add(1.0)?;
    Ok(D)
}

fn events_as_meant(context: &Context) -> Result<DeviceTensor> {
    let s = Stream::new(context, 0)?;
    let ev1 = Event::new(context, false);
    let ev2 = Event::new(context, false);

    let A = randn(context, &[20, 20], 1)?;
    let B = A.matmul(&A)?;
    ev1.record()?;
    let C = {
        let _entered = s.enter();
        ev1.wait()?; // Ensure 'B = ops.matmul(A, A)' is complete.
        let C = B.sum()?;
        ev2.record()?;
        C
    };
    ev2.wait()?; // Ensure 'C = ops.sum(B)' is complete.
    let D = C.add(1.0)?;
    Ok(D)
}

fn sum_plus_one(context: &Context) -> Result<DeviceTensor> {
    Ok(sum_of_product(context)?.add(1.0)?)
}

/// `add_s0` is dropped while `s1` still reads it, and the next allocation asks for memory of the same size.
fn mess_output(context: &Context) -> Result<DeviceTensor> {
    let s1 = Stream::new(context, 0)?;

    let input_s0 = randn(context, &[10, 32, 32, 32], 1)?;
    let weight_s0 = randn(context, &[32, 32, 3, 3], 2)?;
    let mess_input = randn(context, &[10, 32, 32, 32], 3)?;

    // Use default stream
    let add_s0 = input_s0.add(1.0)?;
    s1.wait_stream(&context.default_stream())?;
    let (_conv_res, add_s1, ev) = {
        let _entered = s1.enter();
        // Use conv2d because this operator takes a long time in device.
        let conv_res = add_s0.convolution(&weight_s0)?;
        let add_s1 = add_s0.add(1.0)?;
        let ev = s1.record_event()?;
        (conv_res, add_s1, ev)
    };
    drop(add_s0);

    // Mess up the mem of add_s0. The value of add_s1 might be wrong.
    let _mess_output = mess_input.add(1.0)?;
    ev.wait()?;
    let add_1_s0 = add_s1.add(1.0)?;
    Ok(add_1_s0)
}

fn plus_three(context: &Context) -> Result<DeviceTensor> {
    Ok(randn(context, &[10, 32, 32, 32], 1)?.add(1.0)?.add(1.0)?.add(1.0)?)
}

/// Pseudorandom numbers between -1 and 1, determined by `seed`.
fn randn(context: &Context, shape: &[u64], seed: u64) -> Result<DeviceTensor> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product::<u64>()).map(|_| number()).collect();
    Ok(DeviceTensor::from_host(context, &Tensor::from_f32(shape, &values))?)
}
