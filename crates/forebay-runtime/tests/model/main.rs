//! The lifetimes of eager memory under a model checker: user threads and the threads of two streams, in every schedule with a bounded
//! number of delays, and in many random ones. `cargo test -p forebay-runtime --features shuttle --test model -- --nocapture` prints the
//! number of schedules.
//!
//! The device stops if two commands use the same bytes at once or if tiles in use are unmapped; contents reveal commands in the wrong
//! order; the race checker checks what was submitted; a wait that would never end is a deadlock.

mod device;

use std::sync::Arc;

use forebay_model::Tensor;
use forebay_queue::bounded::BoundedScheduler;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor, Stream};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use device::{ModelDevice, TILE_BYTES};

const COUNT: usize = TILE_BYTES as usize / 4;

fn check(name: &str, delays_max: usize, random: usize, case: impl Fn() + Send + Sync + Clone + 'static) {
    let bounded = Runner::new(BoundedScheduler::new(delays_max), Config::new()).run(case.clone());
    let any = Runner::new(RandomScheduler::new_from_seed(1, random), Config::new()).run(case.clone());
    let few = Runner::new(PctScheduler::new_from_seed(2, 3, random), Config::new()).run(case);
    println!("| {name} | all with up to {delays_max} delays: {bounded} | {} |", any + few);
}

/// A context with room for this many tensors.
fn context(tensors: u64) -> Context {
    context_with(tensors, 4)
}

/// A context with room for this many tensors on the device, and for others on their way there.
fn context_with(tensors: u64, on_the_way: u64) -> Context {
    let options = ContextOptions::default()
        .device_memory_bytes(tensors * TILE_BYTES)
        .segment_bytes(TILE_BYTES)
        .staging_bytes(on_the_way * TILE_BYTES)
        .record(true);
    Context::new(Arc::new(ModelDevice::new()), &options).expect("a context")
}

fn tensor(context: &Context, value: f32) -> DeviceTensor {
    DeviceTensor::from_host(context, &Tensor::from_f32(&[COUNT as u64], &[value; COUNT])).expect("there is room")
}

fn assert_holds(tensor: &DeviceTensor, value: f32) {
    assert_eq!(tensor.to_host().expect("no failure").to_f32(), Some(vec![value; COUNT]));
}

/// Checks that everything submitted was in order and that all memory is returned.
fn finish(context: &Context) {
    context.trim().expect("no failure");
    assert_eq!(context.memory_statistics().in_use_bytes, 0);
    assert_eq!(context.device().usage().heap_bytes, 0);
    context.check().unwrap_or_else(|races| panic!("{races}"));
}

/// Copies a tensor of the default stream on another one.
fn copy_on(stream: &Stream, from: &DeviceTensor) -> DeviceTensor {
    let _entered = stream.enter();
    let to = DeviceTensor::zeros(from.context(), from.data_type(), from.shape()).expect("there is room");
    to.copy_from(from).expect("no failure");
    to
}

/// Frees a tensor while another stream copies it, then requests its bytes again, with room for this many tensors.
fn freed_while_copied(room: u64) {
    let context = context(room);
    let stream = Stream::new(&context, 0).expect("a stream");
    let a = tensor(&context, 1.0);
    stream.wait_stream(&context.default_stream()).expect("no failure");
    let b = copy_on(&stream, &a);
    drop(a);
    let c = tensor(&context, 2.0);
    context.default_stream().wait_stream(&stream).expect("no failure");
    assert_holds(&b, 1.0);
    assert_holds(&c, 2.0);
    drop((b, c, stream));
    finish(&context);
}

#[test]
fn memory_stays_while_another_stream_uses_it() {
    check("freed while another stream copies it; the bytes are wanted again", 1, 1000, || freed_while_copied(4));
}

#[test]
fn under_pressure_bytes_are_waited_for() {
    // Only the freed tensor's memory is left for the next one.
    check("the same with room for two: the host waits for the use", 1, 1000, || freed_while_copied(2));
}

#[test]
fn threads_free_and_allocate_at_once() {
    check("two threads on two streams, room for three, each frees what the other reads", 1, 1000, || {
        let context = context(3);
        let a = tensor(&context, 1.0);
        let other = {
            let (context, a) = (context.clone(), a.clone());
            thread::spawn(move || {
                let stream = Stream::new(&context, 0).expect("a stream");
                stream.wait_stream(&context.default_stream()).expect("no failure");
                let b = copy_on(&stream, &a);
                drop(a);
                let _entered = stream.enter();
                assert_holds(&b, 1.0);
            })
        };
        drop(a);
        let c = tensor(&context, 2.0);
        assert_holds(&c, 2.0);
        other.join().expect("no panic");
        drop(c);
        finish(&context);
    });
}

#[test]
fn threads_share_a_host_block() {
    check("two threads write through one host block", 1, 1000, || {
        let context = context_with(2, 1);
        let other = {
            let context = context.clone();
            thread::spawn(move || drop(tensor(&context, 1.0)))
        };
        drop(tensor(&context, 2.0));
        other.join().expect("no panic");
        finish(&context);
    });
}
