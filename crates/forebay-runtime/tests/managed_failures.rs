//! Managed memory on a device that refuses calls: the error names the call, no data is lost, nothing leaks. On a slow device, a thread that
//! waits for it does not block others.

use std::path::Path;
use std::sync::Arc;

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
                refusing.relent();
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
        assert!(error.contains("as told") && calls < 1000, "{calls}: {error}");
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
