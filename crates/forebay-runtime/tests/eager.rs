//! Eager work: order, lifetimes, memory pressure, and invalid uses.

use std::sync::Arc;

use forebay_base::Command;
use forebay_device::Device;
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};
use forebay_model::Tensor;
use forebay_model::graph::Attribute;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor, Event, Input, Stream};

fn host() -> Arc<HostDevice> {
    Arc::new(HostDevice::new(&HostOptions { threads: Some(2), ..HostOptions::default() }).unwrap())
}

fn recording() -> ContextOptions {
    ContextOptions::default().record(true)
}

fn context() -> Context {
    Context::new(host(), &recording()).unwrap()
}

fn values(tensor: &DeviceTensor) -> Vec<f32> {
    tensor.to_host().unwrap().to_f32().unwrap()
}

fn ones(context: &Context, count: u64) -> DeviceTensor {
    DeviceTensor::from_host(context, &Tensor::from_f32(&[count], &vec![1.0; count as usize])).unwrap()
}

/// Counts the commands of a kind that a null device received.
fn count(device: &NullDevice, wanted: fn(&Command) -> bool) -> usize {
    device.commands().iter().filter(|command| wanted(command)).count()
}

#[test]
fn operators_compute_what_they_should() {
    let context = context();
    let a = DeviceTensor::from_host(&context, &Tensor::from_f32(&[2, 3], &[1.0, -2.0, 3.0, -4.0, 5.0, -6.0])).unwrap();
    assert_eq!(values(&a.relu().unwrap()), [1.0, 0.0, 3.0, 0.0, 5.0, 0.0]);
    assert_eq!(values(&a.add(1.0).unwrap().mul(&a).unwrap()), [2.0, 2.0, 12.0, 12.0, 30.0, 30.0]);
    assert_eq!(values(&a.matmul(&a.transpose(&[1, 0]).unwrap()).unwrap()), [14.0, -32.0, -32.0, 77.0]);
    let reshaped = a.reshape(&[3, 2]).unwrap();
    assert_eq!((reshaped.shape(), values(&reshaped)), (&[3, 2][..], values(&a)));
    assert_eq!(values(&a.sum().unwrap()), [-3.0]);
    // Optional inputs, several outputs, attributes.
    let padded = context
        .operation("Pad")
        .input(&a)
        .input(Tensor::from_i64(&[4], &[0, 1, 0, 0]))
        .input(Input::None)
        .attribute("mode", Attribute::String("constant".to_string()))
        .run_single()
        .unwrap();
    assert_eq!(padded.shape(), [2, 4]);
    let parts = context
        .operation("Split")
        .input(&a)
        .input(Tensor::from_i64(&[2], &[1, 2]))
        .attribute("axis", Attribute::Int(1))
        .run(2)
        .unwrap();
    assert_eq!((values(&parts[0]), values(&parts[1])), (vec![1.0, -4.0], vec![-2.0, 3.0, 5.0, -6.0]));
    context.check().unwrap();
}

#[test]
fn large_arrays_go_there_and_back() {
    let context = context();
    let numbers: Vec<f32> = (0..3_000_001).map(|i| i as f32).collect();
    let there = DeviceTensor::from_host(&context, &Tensor::from_f32(&[3_000_001], &numbers)).unwrap();
    assert!(values(&there) == numbers);
    let zeros = DeviceTensor::zeros(&context, forebay_base::DataType::UInt8, &[3]).unwrap();
    assert_eq!(zeros.to_host().unwrap().bytes()[..], [0; 3]);
    assert!(context.device().usage().host_bytes < 16 << 20, "arrays go in pieces");
    context.check().unwrap();
}

#[test]
fn a_stream_has_a_barrier_where_a_hazard_needs_one_and_nowhere_else() {
    let device = Arc::new(NullDevice::new(NullProfile::Tiled));
    let context = Context::new(device.clone(), &recording()).unwrap();
    let a = ones(&context, 64);
    let barriers = || count(&device, |command| matches!(command, Command::Barrier { .. }));
    let b = a.exp().unwrap();
    let c = a.sqrt().unwrap();
    assert_eq!(barriers(), 1, "both read what the copy wrote, and neither what the other does");
    let d = b.add(&c).unwrap();
    assert_eq!(barriers(), 2);
    drop(b);
    let _e = a.tanh().unwrap();
    assert_eq!(barriers(), 3, "it gets the bytes of b, which d reads");
    drop(d);
    context.check().unwrap();
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let (one, other) = (context(), context());
    let (event, stream) = (Event::new(&one, false), Stream::new(&one, 0).unwrap());
    let text = |error: RuntimeError| error.to_string();
    assert_eq!(event.wait().unwrap_err(), RuntimeError::NeverRecorded);
    assert_eq!(event.query().unwrap_err(), RuntimeError::NeverRecorded);
    assert_eq!(event.synchronize().unwrap_err(), RuntimeError::NeverRecorded);
    assert_eq!(stream.wait_event(&event).unwrap_err(), RuntimeError::NeverRecorded);
    event.record().unwrap();
    let end = stream.record_event().unwrap();
    assert_eq!(event.elapsed_time(&end).unwrap_err(), RuntimeError::NoTiming);
    let mixed = |result: Result<(), RuntimeError>| matches!(result, Err(RuntimeError::OtherContext { .. }));
    assert!(mixed(other.default_stream().wait_stream(&stream)));
    assert!(mixed(other.default_stream().wait_event(&event)));
    assert!(mixed(event.record_on(&other.default_stream())));
    let (a, b) = (ones(&one, 4), ones(&other, 4));
    assert!(mixed(a.add(&b).map(|_| ())) && mixed(a.copy_from(&b)));
    assert!(text(a.matmul(&ones(&one, 3)).unwrap_err()).contains("MatMul"));
    assert!(text(a.reshape(&[3]).unwrap_err()).contains("Reshape"));
    assert!(text(a.copy_from(&ones(&one, 3)).unwrap_err()).contains("cannot be copied"));
    assert!(text(one.operation("Frobnicate").run_single().unwrap_err()).contains("Frobnicate"));
    let scaled = one.operation("Relu").input(&a).attribute("alpha", Attribute::Float(2.0));
    assert!(text(scaled.run_single().unwrap_err()).contains("no attribute 'alpha'"));
    assert!(text(one.operation("Relu").input(&a).input(&a).run_single().unwrap_err()).contains("takes at most 1"));
    assert!(matches!(DeviceTensor::zeros(&one, a.data_type(), &[u64::MAX, 2]), Err(RuntimeError::Tensor { .. })));
    assert_eq!(values(&a), [1.0; 4], "refusals leave everything usable");
}

#[test]
fn streams_have_numbers() {
    let context = context();
    let (one, other) = (Stream::new(&context, 0).unwrap(), Stream::new(&context, 0).unwrap());
    assert_eq!(context.default_stream().number(), 0);
    assert!(one.number() != other.number() && one.number() == one.clone().number());
}

#[test]
fn time_is_measured_between_events() {
    for device in [host() as Arc<dyn Device>, Arc::new(ChaosDevice::new(host(), 3).unwrap())] {
        let context = Context::new(device, &recording()).unwrap();
        let (start, end) = (Event::new(&context, true), Event::new(&context, true));
        let mut tensor = ones(&context, 100_000);
        start.record().unwrap();
        for _ in 0..10 {
            tensor = tensor.exp().unwrap().tanh().unwrap();
        }
        end.record().unwrap();
        end.synchronize().unwrap();
        assert!(end.query().unwrap() && start.query().unwrap());
        let milliseconds = start.elapsed_time(&end).unwrap();
        assert!(milliseconds > 0.0 && start.elapsed_time(&start).unwrap() == 0.0);
        assert_eq!(end.elapsed_time(&start).unwrap(), -milliseconds);
        context.check().unwrap();
    }
}

#[test]
fn streams_and_events_share_a_bounded_number_of_device_events() {
    let device = Arc::new(NullDevice::new(NullProfile::Tiled));
    let context = Context::new(device, &recording().event_limit(8)).unwrap();
    // Four events serve streams and four measure time; plain events take none.
    let streams: Vec<Stream> = (0..20).map(|_| Stream::new(&context, 0).unwrap()).collect();
    assert!(streams.iter().filter(|stream| **stream == streams[19]).count() > 1, "streams beyond share");
    let plain: Vec<Event> = streams.iter().map(|stream| stream.record_event().unwrap()).collect();
    plain.iter().for_each(|event| event.synchronize().unwrap());
    let mut timing: Vec<Event> = (0..5).map(|_| Event::new(&context, true)).collect();
    timing[..4].iter().for_each(|event| event.record().unwrap());
    assert_eq!(timing[4].record(), Err(RuntimeError::EventLimit { limit: 4 }));
    timing.remove(0);
    timing[3].record().unwrap();
    for _ in 0..100 {
        let event = &timing[3];
        event.record().unwrap();
    }
    context.check().unwrap();
}

#[test]
fn streams_are_pooled() {
    let context = context();
    let first = Stream::new(&context, 0).unwrap();
    let urgent = Stream::new(&context, -1).unwrap();
    assert!(first != urgent && first != context.default_stream());
    let debug = format!("{first:?}");
    drop(first);
    assert_eq!(format!("{:?}", Stream::new(&context, 0).unwrap()), debug);
    assert_ne!(format!("{:?}", Stream::new(&context, 5).unwrap()), debug, "priorities are kept");
}

#[test]
fn the_current_stream_is_the_one_entered_last() {
    let context = context();
    let (s1, s2) = (Stream::new(&context, 0).unwrap(), Stream::new(&context, 0).unwrap());
    assert!(context.current_stream() == context.default_stream());
    let outer = s1.enter();
    {
        let _inner = s2.enter();
        assert!(context.current_stream() == s2);
        let other = context.clone();
        std::thread::spawn(move || assert!(other.current_stream() == other.default_stream())).join().unwrap();
    }
    let again = s1.enter();
    drop(outer);
    assert!(context.current_stream() == s1, "guards may go in any order");
    drop(again);
    assert!(context.current_stream() == context.default_stream());
}

/// Memory of s0 that s1 uses returns through s2: from s1 to s2 to s0.
#[test]
fn memory_returns_through_a_third_stream() {
    let device = Arc::new(NullDevice::new(NullProfile::Tiled));
    let context = Context::new(device, &recording()).unwrap();
    let (s1, s2) = (Stream::new(&context, 0).unwrap(), Stream::new(&context, 0).unwrap());
    let a = ones(&context, 1000);
    let place = format!("{a:?}");
    s1.wait_stream(&context.default_stream()).unwrap();
    let _b = {
        let _entered = s1.enter();
        a.exp().unwrap()
    };
    drop(a);
    let c = ones(&context, 1000);
    assert_ne!(format!("{c:?}"), place, "s1 may still read it");
    s2.wait_stream(&s1).unwrap();
    context.default_stream().wait_stream(&s2).unwrap();
    let d = ones(&context, 1000);
    assert_eq!(format!("{d:?}"), place, "the use has returned");
    context.check().unwrap();
}

#[test]
fn under_pressure_the_host_waits_for_the_oldest_use_only() {
    let device = Arc::new(ChaosDevice::new(host(), 11).unwrap());
    let options = recording().device_memory_bytes(4 << 20);
    let context = Context::new(device, &options).unwrap();
    let streams: Vec<Stream> = (0..3).map(|_| Stream::new(&context, 0).unwrap()).collect();
    // Every round leaves a tensor of 1 MiB that another stream still reads; only four fit.
    let mut sums = Vec::new();
    for round in 0..24usize {
        let tensor = ones(&context, 1 << 18);
        let stream = &streams[round % 3];
        stream.wait_stream(&context.default_stream()).unwrap();
        let _entered = stream.enter();
        sums.push(tensor.sum().unwrap());
    }
    context.synchronize().unwrap();
    assert!(sums.iter().all(|sum| values(sum) == [(1 << 18) as f32]));
    assert!(context.memory_statistics().reserved_peak_bytes <= 4 << 20);
    context.check().unwrap();
}

#[test]
fn when_memory_runs_out_the_error_has_the_numbers() {
    let options = recording().device_memory_bytes(4 << 20);
    let context = Context::new(host(), &options).unwrap();
    let kept = ones(&context, 3 << 18);
    let error = DeviceTensor::zeros(&context, kept.data_type(), &[1 << 19]).unwrap_err();
    let RuntimeError::OutOfMemory(details) = &error else { panic!("{error}") };
    assert_eq!((details.requested_bytes, details.cap_bytes), (2 << 20, Some(4 << 20)));
    assert_eq!(details.holders, [("from_host".to_string(), 3 << 20)]);
    for part in ["2097152 bytes requested", "4194304 allowed", "from_host holds 3145728", "drop tensors"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    drop(kept);
    assert!(
        DeviceTensor::zeros(&context, forebay_base::DataType::Float32, &[1 << 20]).is_ok(),
        "segments are given back"
    );
}

#[test]
fn memory_goes_back_to_the_device() {
    let device = host();
    let context = Context::new(device.clone(), &recording()).unwrap();
    let stream = Stream::new(&context, 0).unwrap();
    let tensors: Vec<DeviceTensor> = (1..20).map(|i| ones(&context, i * 50_000)).collect();
    stream.wait_stream(&context.default_stream()).unwrap();
    let sums: Vec<DeviceTensor> = {
        let _entered = stream.enter();
        tensors.iter().map(|tensor| tensor.add(1.0).unwrap().sum().unwrap()).collect()
    };
    drop(tensors);
    drop(sums);
    assert!(context.trim().unwrap() > 0);
    assert_eq!((context.memory_statistics().in_use_bytes, device.usage().heap_bytes), (0, 0));
    context.check().unwrap();
    drop(stream);
    drop(context);
    assert_eq!(device.usage().host_bytes, host().usage().host_bytes, "staging is given back, too");
}

#[test]
fn threads_share_a_context() {
    let context = context();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let context = &context;
            scope.spawn(move || {
                let stream = Stream::new(context, 0).unwrap();
                let _entered = stream.enter();
                for round in 0..50u64 {
                    let tensor = ones(context, 1000 + round);
                    assert_eq!(
                        values(&tensor.add(thread as f64).unwrap().sum().unwrap())[0],
                        (1000 + round) as f32 * (1.0 + thread as f32)
                    );
                }
            });
        }
    });
    context.check().unwrap();
    context.trim().unwrap();
    assert_eq!(context.memory_statistics().in_use_bytes, 0);
}
