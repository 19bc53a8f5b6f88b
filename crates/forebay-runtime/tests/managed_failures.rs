//! Managed memory on a device that refuses calls: the error names the call, no data is lost, nothing leaks. On a slow device, a thread that
//! waits for it does not block others.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::{Device, DeviceUsage};
use forebay_device_testing::Refusing;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::managed::{Location, Policy};
use forebay_runtime::eager::{Context, ContextOptions, ManagedBuffer, ManagedMemory, ManagedOptions};

const UNIT_BYTES: u64 = 64 << 10;
/// The number of units in each buffer.
const UNITS: u64 = 3;

/// Buffers, and the number that fills each; `None` while the number is unknown.
struct Bench {
    memory: ManagedMemory,
    context: Context,
    buffers: Vec<(ManagedBuffer, Option<f32>)>,
}

impl Bench {
    fn new(device: Arc<dyn Device>, folder: &Path) -> Result<Bench, RuntimeError> {
        let context = Context::new(device, &ContextOptions::default().record(true))?;
        let options = ManagedOptions::new(2 * UNITS * UNIT_BYTES, Policy::Driver)
            .unit_bytes(UNIT_BYTES)
            .host_bytes(2 * UNITS * UNIT_BYTES)
            .spill_dir(folder.to_owned());
        let memory = ManagedMemory::new(&context, &options)?;
        Ok(Bench { memory, context, buffers: Vec::new() })
    }

    /// Works on more data than device and host hold: it is written by the device and by the host, moved, changed, and read.
    fn work(&mut self) -> Result<(), RuntimeError> {
        for number in 0..6 {
            self.buffers.push((self.memory.buffer(UNITS * UNIT_BYTES)?, None));
            self.fill(number)?;
        }
        for number in [1, 4] {
            let (buffer, known) = &mut self.buffers[number];
            *known = None;
            buffer.write(0, &9.5f32.to_le_bytes().repeat((UNITS * UNIT_BYTES / 4) as usize))?;
            *known = Some(9.5);
        }
        self.buffers[0].0.prefetch(.., Location::Device)?;
        self.buffers[0].0.prefetch(.., Location::Host)?;
        self.check()?;
        self.fill(2)?;
        drop(self.buffers.remove(3));
        self.fill(0)?;
        self.check()
    }

    fn fill(&mut self, number: usize) -> Result<(), RuntimeError> {
        let (buffer, known) = &mut self.buffers[number];
        *known = None;
        buffer.fill((number as f32).to_le_bytes())?;
        *known = Some(number as f32);
        Ok(())
    }

    /// Checks that every buffer holds the right values.
    fn check(&self) -> Result<(), RuntimeError> {
        for (number, (buffer, known)) in self.buffers.iter().enumerate() {
            let mut bytes = vec![0; buffer.size_bytes() as usize];
            buffer.read(0, &mut bytes)?;
            let expected = known.map(|value| value.to_le_bytes().repeat(bytes.len() / 4));
            assert!(expected.is_none_or(|expected| expected == bytes), "buffer {number} is not {known:?}");
        }
        Ok(())
    }
}

fn held(usage: DeviceUsage) -> (u64, u64, u64) {
    (usage.heap_bytes, usage.host_bytes, usage.disk_bytes)
}

fn every_call_is_refused_once(tiled: bool) {
    let folder = std::env::temp_dir().join(format!("forebay-failures-{tiled}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let options = HostOptions { threads: Some(2), tiled, ..HostOptions::default() };
    let device: Arc<dyn Device> = Arc::new(HostDevice::new(&options).unwrap());
    // The first spill file allocates buffers that remain.
    device.destroy_memory(device.create_spill(&folder, 4096).unwrap());
    let before = held(device.usage());
    let mut refused = Vec::new();
    for calls in 0.. {
        let refusing = Arc::new(Refusing::new(device.clone(), calls));
        let result = Bench::new(refusing.clone(), &folder).and_then(|mut bench| {
            let result = bench.work();
            if result.is_err() {
                refusing.stop_refusing();
                bench.check().unwrap();
                for number in 0..bench.buffers.len() {
                    bench.fill(number).unwrap();
                }
                bench.check().unwrap();
            }
            if let Err(races) = bench.context.check() {
                panic!("after refusal {calls}: {races}");
            }
            result
        });
        assert_eq!(held(device.usage()), before, "after refusal {calls}");
        let Err(error) = result else { break };
        let error = error.to_string();
        assert!(error.contains("on purpose") && calls < 1000, "{calls}: {error}");
        refused.push(error);
    }
    let kinds = if tiled { ["a heap", "a mapping"] } else { ["a placed heap", "a host block"] };
    for what in kinds.into_iter().chain(["a host block", "a spill file", "a stream"]) {
        assert!(refused.iter().any(|error| error.contains(what)), "{what} was never refused");
    }
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
fn with_tiles_every_refused_call_is_reported_and_nothing_is_lost() {
    every_call_is_refused_once(true);
}

#[test]
fn without_tiles_every_refused_call_is_reported_and_nothing_is_lost() {
    every_call_is_refused_once(false);
}

#[test]
fn who_waits_for_the_device_holds_up_nobody_else() {
    // Ten milliseconds per unit.
    let link_bytes_per_second = Some(100 * UNIT_BYTES);
    let options = HostOptions { threads: Some(2), link_bytes_per_second, ..HostOptions::default() };
    let context = Context::new(Arc::new(HostDevice::new(&options).unwrap()), &ContextOptions::default()).unwrap();
    let options = ManagedOptions::new(4 * UNIT_BYTES, Policy::Touch).unit_bytes(UNIT_BYTES);
    let memory = ManagedMemory::new(&context, &options).unwrap();
    let (large, small) = (memory.buffer(32 * UNIT_BYTES).unwrap(), memory.buffer(UNIT_BYTES).unwrap());
    std::thread::scope(|scope| {
        let work = scope.spawn(|| large.fill([1; 4]).unwrap());
        // While it evicts one unit after another, the lock is free again and again.
        let mut questions = 0;
        while !work.is_finished() {
            assert!(small.resident_bytes() == 0 && memory.statistics().resident_bytes <= 4 * UNIT_BYTES);
            questions += 1;
        }
        let stalls = memory.statistics().stalls;
        assert!(stalls > 0 && questions > stalls, "{questions} questions during {stalls} stalls");
    });
    let mut bytes = vec![0; 32 * UNIT_BYTES as usize];
    large.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 1));
}

/// A managed memory of one unit on the device and two on the host, with files for the rest.
fn spilling(device: Arc<HostDevice>, unit_bytes: u64) -> ManagedMemory {
    let context = Context::new(device, &ContextOptions::default()).unwrap();
    let options = ManagedOptions::new(unit_bytes, Policy::Touch)
        .unit_bytes(unit_bytes)
        .host_bytes(2 * unit_bytes)
        .spill_dir(std::env::temp_dir());
    ManagedMemory::new(&context, &options).unwrap()
}

/// Lets this many pieces be written to files.
fn failing_disk(disk_writes: u64) -> HostOptions {
    let disk_writes_before_failure = Some(disk_writes);
    HostOptions { threads: Some(2), disk_writes_before_failure, ..HostOptions::default() }
}

/// A buffer of one unit that the host has written.
fn written(memory: &ManagedMemory, unit_bytes: u64) -> Result<ManagedBuffer, RuntimeError> {
    let buffer = memory.buffer(unit_bytes)?;
    buffer.write(0, &vec![1; unit_bytes as usize])?;
    Ok(buffer)
}

#[test]
fn memory_is_freed_only_after_what_still_runs_when_a_disk_fails() {
    const UNIT_BYTES: u64 = 4 << 20;
    // Two units of four pieces are written, and then no more; reading a unit takes a quarter of a second.
    let options = HostOptions { disk_bytes_per_second: Some(16 << 20), ..failing_disk(8) };
    let device = Arc::new(HostDevice::new(&options).unwrap());
    let memory = spilling(device.clone(), UNIT_BYTES);
    let [a, b, c] = [(); 3].map(|()| written(&memory, UNIT_BYTES).unwrap());
    a.prefetch(.., Location::Device).unwrap();
    while memory.statistics().unspilled_bytes == 0 {
        std::thread::yield_now();
    }
    // The read of the first buffer goes on while another one is written, and fails.
    drop(a);
    let error = written(&memory, UNIT_BYTES).unwrap_err().to_string();
    assert!(error.contains("No space left on device"), "{error}");
    drop((b, c, memory));
    // If its memory is gone, the read ends the process.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(device.usage().heap_bytes, 0);
}

#[test]
fn after_a_failure_nobody_waits_for_a_prefetch() {
    // Whether a record is still accepted after the copy that fails is a matter of luck.
    for _ in 0..20 {
        let memory = spilling(Arc::new(HostDevice::new(&failing_disk(2)).unwrap()), UNIT_BYTES);
        let kept: Vec<_> = (0..4).map(|_| written(&memory, UNIT_BYTES).unwrap()).collect();
        let error = written(&memory, UNIT_BYTES).unwrap_err().to_string();
        assert!(error.contains("No space left on device"), "{error}");
        // What failed is not there, and reading does not claim that it is.
        for buffer in &kept {
            assert!(buffer.read(0, &mut [0]).is_err());
        }
        kept[0].prefetch(.., Location::Device).unwrap();
        let (tell, told) = mpsc::channel();
        let waiting = memory.clone();
        std::thread::spawn(move || tell.send(waiting.synchronize().is_err()));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    }
}

#[test]
fn a_prefetch_that_fails_leaves_none_behind() {
    let context = Context::new(Arc::new(HostDevice::new(&HostOptions::default()).unwrap()), &ContextOptions::default());
    let context = context.unwrap();
    let bytes = UNITS * UNIT_BYTES;
    let options = ManagedOptions::new(bytes, Policy::Driver).unit_bytes(UNIT_BYTES).host_bytes(bytes);
    let memory = ManagedMemory::new(&context, &options).unwrap();
    let (a, b) = (memory.buffer(bytes).unwrap(), memory.buffer(bytes).unwrap());
    a.write(0, &vec![1; bytes as usize]).unwrap();
    b.fill([2; 4]).unwrap();
    assert!(matches!(b.prefetch(.., Location::Host), Err(RuntimeError::HostMemory { .. })));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(memory.synchronize()));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())));
}
