//! The executor on a device that copies immediately, counts what it hands out, and fails on demand.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_base::{
    ByteRange, Command, DataType, EventId, HeapId, Kernel, Limits, MemoryId, Region, Space, StreamId, TensorDesc,
};
use forebay_device::{Device, DeviceError, DeviceUsage, IndexFault, Readable, TraceRecord};
use forebay_model::tensor::{Contents, Tensor};
use forebay_plan::plan::{MemoryKind, PlanMemory, PlanStream};
use forebay_plan::{BackingLocation, Plan};
use forebay_runtime::{Decision, Executor, RuntimeError};

#[derive(Default)]
struct State {
    next_id: u32,
    memories: BTreeMap<MemoryId, Vec<u8>>,
    heaps: BTreeMap<HeapId, u64>,
    streams: Vec<StreamId>,
    /// For each event, the generation that fired last.
    events: BTreeMap<EventId, u64>,
    /// The submitted commands, including maps.
    submitted: Vec<Command>,
    /// The number of calls that obtain something before they fail.
    calls_left: Option<usize>,
    /// The number of submissions before they fail.
    submissions_left: Option<usize>,
    /// Whether the next submission fails as a disk does.
    disk_fails: bool,
    /// A failure that stays until it is cleared.
    failure: Option<DeviceError>,
}

/// A device that runs copies and fills immediately.
struct CopyDevice {
    limits: Limits,
    state: Mutex<State>,
}

impl CopyDevice {
    fn new() -> Arc<CopyDevice> {
        let limits = Limits {
            name: "copies".to_string(),
            tiled: true,
            unified: false,
            tile_size_bytes: 64,
            heap_size_max_bytes: 1 << 30,
            memory_bytes: 1 << 30,
            offset_alignment_bytes: 16,
            tensor_elements_max: u64::MAX,
            copy_streams: false,
            in_process: false,
            copies_use_workers: false,
            link_bytes_per_second: None,
            applies_functions: false,
            workers: 1,
        };
        // Ids do not start at 0, so that an id that was not renumbered is detected.
        Arc::new(CopyDevice { limits, state: Mutex::new(State { next_id: 40, ..State::default() }) })
    }

    fn obtain<T>(&self, insert: impl FnOnce(&mut State, u32) -> T) -> Result<T, DeviceError> {
        let mut state = self.state.lock().unwrap();
        if let Some(left) = &mut state.calls_left {
            if *left == 0 {
                let reason = "on purpose".to_string();
                return Err(DeviceError::OutOfMemory { what: "a test", requested_bytes: 1, reason });
            }
            *left -= 1;
        }
        state.next_id += 1;
        let id = state.next_id;
        Ok(insert(&mut state, id))
    }

    fn create_memory(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.obtain(|state, id| {
            // Fresh memory contains garbage: zeros must be written.
            state.memories.insert(MemoryId(id), vec![0xee; size_bytes as usize]);
            MemoryId(id)
        })
    }

    fn holds_nothing(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.memories.is_empty() && state.heaps.is_empty() && state.streams.is_empty() && state.events.is_empty()
    }
}

fn bytes_of(state: &mut State, region: Region) -> &mut [u8] {
    let memory = state.memories.get_mut(&region.memory).expect("a memory of this device");
    &mut memory[region.range.start as usize..region.range.end as usize]
}

impl Device for CopyDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn workspace_bytes(&self, _: &Kernel, _: &[TensorDesc], _: &[TensorDesc]) -> Result<u64, DeviceError> {
        Ok(0)
    }

    fn create_heap(&self, size_bytes: u64) -> Result<HeapId, DeviceError> {
        self.obtain(|state, id| {
            state.heaps.insert(HeapId(id), size_bytes);
            HeapId(id)
        })
    }

    fn destroy_heap(&self, heap: HeapId) {
        assert!(self.state.lock().unwrap().heaps.remove(&heap).is_some());
    }

    fn create_reservation(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.create_memory(size_bytes)
    }

    fn create_placed(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.create_memory(size_bytes)
    }

    fn create_host_block(&self, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.create_memory(size_bytes)
    }

    fn release_host(&self, region: Region) {
        bytes_of(&mut self.state.lock().unwrap(), region).fill(0);
    }

    fn create_spill(&self, _: &Path, size_bytes: u64) -> Result<MemoryId, DeviceError> {
        self.create_memory(size_bytes)
    }

    fn create_read_only(&self, bytes: Arc<dyn Readable>) -> Result<MemoryId, DeviceError> {
        self.create_memory(bytes.size_bytes())
    }

    fn destroy_memory(&self, memory: MemoryId) {
        assert!(self.state.lock().unwrap().memories.remove(&memory).is_some());
    }

    fn create_stream(&self, _: &str, _: i32) -> Result<StreamId, DeviceError> {
        self.obtain(|state, id| {
            state.streams.push(StreamId(id));
            StreamId(id)
        })
    }

    fn destroy_stream(&self, stream: StreamId) {
        self.state.lock().unwrap().streams.retain(|&known| known != stream);
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.obtain(|state, id| {
            state.events.insert(EventId(id), 0);
            EventId(id)
        })
    }

    fn destroy_event(&self, event: EventId) {
        assert!(self.state.lock().unwrap().events.remove(&event).is_some());
    }

    fn submit(&self, commands: &[Command]) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap();
        if let Some(left) = &mut state.submissions_left {
            if *left == 0 {
                return Err(DeviceError::Lost { reason: "on purpose".to_string() });
            }
            *left -= 1;
        }
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if std::mem::take(&mut state.disk_fails) {
            let (folder, reason) = ("here".into(), "on purpose".to_string());
            state.failure = Some(DeviceError::Spill { folder, action: "read", bytes: 1, reason });
            return Ok(());
        }
        for command in commands {
            if let Some(stream) = command.stream() {
                assert!(state.streams.contains(&stream), "{command} names no stream of this device");
            }
            match command {
                Command::Copy { from, to, .. } => {
                    let bytes = bytes_of(&mut state, *from).to_vec();
                    bytes_of(&mut state, *to).copy_from_slice(&bytes);
                }
                Command::Fill { region, pattern, .. } => {
                    bytes_of(&mut state, *region).chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(pattern));
                }
                Command::Record { event, generation, .. } => {
                    let fired = state.events.get_mut(event).expect("an event of this device");
                    assert_eq!(*generation, *fired + 1, "generations follow each other");
                    *fired = *generation;
                }
                Command::Wait { event, generation, .. } => {
                    assert!(state.events[event] >= *generation, "a wait stands after its record");
                }
                Command::Map { region, heap, .. } => {
                    assert!(state.memories.contains_key(&region.memory) && state.heaps.contains_key(heap));
                }
                _ => {}
            }
            state.submitted.push(command.clone());
        }
        Ok(())
    }

    fn synchronize(&self, _: StreamId) -> Result<(), DeviceError> {
        self.state.lock().unwrap().failure.clone().map_or(Ok(()), Err)
    }

    fn recover(&self) -> Result<(), DeviceError> {
        self.state.lock().unwrap().failure = None;
        Ok(())
    }

    fn wait_event(&self, _: EventId, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn query_event(&self, event: EventId) -> u64 {
        self.state.lock().unwrap().events[&event]
    }

    fn event_time(&self, _: EventId, _: u64) -> Option<Duration> {
        None
    }

    fn write_host(&self, region: Region, bytes: &[u8]) {
        bytes_of(&mut self.state.lock().unwrap(), region).copy_from_slice(bytes);
    }

    fn read_host(&self, region: Region, bytes: &mut [u8]) {
        bytes.copy_from_slice(bytes_of(&mut self.state.lock().unwrap(), region));
    }

    fn take_index_fault(&self) -> Option<IndexFault> {
        None
    }

    fn usage(&self) -> DeviceUsage {
        DeviceUsage::default()
    }

    fn set_trace(&self, _: bool) {}

    fn take_trace(&self) -> Vec<TraceRecord> {
        Vec::new()
    }
}

const DEVICE: MemoryId = MemoryId(0);
const HOST: MemoryId = MemoryId(1);
const STREAM: StreamId = StreamId(0);

fn backing(name: &str, data_type: DataType, shape: &[u64], pieces: &[(u64, Region)]) -> BackingLocation {
    let pieces = pieces.iter().map(|&(start, region)| (ByteRange::new(start, start + region.range.len()), region));
    BackingLocation { name: name.to_string(), shape: shape.to_vec(), data_type, pieces: pieces.collect() }
}

/// A step that copies `x` to `y`, then (in its update phase) copies `x` over `w`. `w` is half on the device, half on the host; `large` is
/// on the device and takes several chunks; `flags` has a size that is rounded up for buffers.
fn plan() -> Plan {
    let device = |start, size| Region::new(DEVICE, start, size);
    let host = |start, size| Region::new(HOST, start, size);
    let record = |generation| Command::Record { stream: STREAM, event: EventId(0), generation };
    let wait = |generation| Command::Wait { stream: STREAM, event: EventId(0), generation };
    Plan {
        memories: vec![
            PlanMemory { kind: MemoryKind::Reservation, space: Space::Device(0), size_bytes: 4 << 20 },
            PlanMemory { kind: MemoryKind::HostBlock, space: Space::Host, size_bytes: 1024 },
        ],
        heaps: vec![4 << 20],
        prologue: vec![Command::Map { region: device(0, 4 << 20), heap: HeapId(0), heap_offset_bytes: 0 }],
        streams: vec![PlanStream { name: "compute".to_string() }],
        event_count: 1,
        commands: vec![
            Command::Copy { stream: STREAM, from: host(0, 16), to: host(64, 16) },
            record(1),
            wait(1),
            Command::Copy { stream: STREAM, from: host(0, 8), to: device(0, 8) },
            Command::Copy { stream: STREAM, from: host(8, 8), to: host(128, 8) },
            record(2),
            wait(2),
        ],
        update_start: 3,
        inputs: vec![backing("x", DataType::Float32, &[4], &[(0, host(0, 16))])],
        outputs: vec![backing("y", DataType::Float32, &[4], &[(0, host(64, 16))])],
        persistent: vec![
            backing("w", DataType::Float32, &[4], &[(0, device(0, 8)), (8, host(128, 8))]),
            backing("large", DataType::Int64, &[300_000], &[(0, device(64, 2_400_000))]),
            backing("flags", DataType::Bool, &[5], &[(0, device(3 << 20, 8))]),
            backing("unused", DataType::Float32, &[3], &[]),
        ],
        ..Plan::default()
    }
}

fn tensors() -> BTreeMap<String, Tensor> {
    let large: Vec<i64> = (0..300_000).collect();
    BTreeMap::from([
        ("w".to_string(), Tensor::from_f32(&[4], &[1.0, 2.0, 3.0, 4.0])),
        ("large".to_string(), Tensor::from_i64(&[300_000], &large)),
    ])
}

fn contents() -> BTreeMap<String, Contents> {
    tensors().into_iter().map(|(name, tensor)| (name, tensor.into())).collect()
}

fn input(value: f32) -> Tensor {
    Tensor::from_f32(&[4], &[value; 4])
}

/// As when a device shares its memory with the host: the input is dead once the result of the step takes a part of its place.
#[test]
fn an_output_in_the_place_of_an_input_is_kept_until_it_is_read() {
    let device = CopyDevice::new();
    let place = |start, size| Region::new(DEVICE, start, size);
    let plan = Plan {
        memories: vec![PlanMemory { kind: MemoryKind::Reservation, space: Space::Device(0), size_bytes: 64 }],
        heaps: vec![64],
        prologue: vec![Command::Map { region: place(0, 64), heap: HeapId(0), heap_offset_bytes: 0 }],
        streams: vec![PlanStream { name: "compute".to_string() }],
        commands: vec![
            Command::Copy { stream: STREAM, from: place(16, 16), to: place(32, 16) },
            Command::Copy { stream: STREAM, from: place(32, 16), to: place(8, 16) },
        ],
        update_start: 2,
        inputs: vec![backing("x", DataType::Float32, &[8], &[(0, place(0, 32))])],
        outputs: vec![backing("y", DataType::Float32, &[4], &[(0, place(8, 16))])],
        ..Plan::default()
    };
    let mut executor = Executor::new(device.clone(), plan, &BTreeMap::new()).unwrap();
    for first in [1.0, 2.0] {
        let x: Vec<f32> = (0..8).map(|i| first + i as f32).collect();
        executor.write_input("x", Tensor::from_f32(&[8], &x).bytes()).unwrap();
        executor.run().unwrap();
        assert_eq!(executor.read_output("y").unwrap(), Tensor::from_f32(&[4], &x[4..]));
    }
    let mut state = device.state.lock().unwrap();
    let memory = state.memories.values_mut().find(|memory| memory.len() == 64).expect("the device memory");
    assert_eq!((&memory[..8], &memory[24..32]), (&[0; 8][..], &[0; 8][..]), "the rest of the input is given back");
}

#[test]
fn persistent_tensors_are_loaded_and_read_back_wherever_they_lie() {
    let device = CopyDevice::new();
    let mut executor = Executor::new(device.clone(), plan(), &contents()).unwrap();
    for (name, tensor) in tensors() {
        assert_eq!(executor.read_persistent(&name).unwrap(), tensor);
    }
    let flags = executor.read_persistent("flags").unwrap();
    assert_eq!(flags.bytes()[..], [0; 5], "without contents it is zeros");
    executor.write_persistent("flags", &[1, 0, 1, 0, 1]).unwrap();
    assert_eq!(executor.read_persistent("flags").unwrap().bytes()[..], [1, 0, 1, 0, 1]);
    drop(executor);
    assert!(device.holds_nothing());
}

#[test]
fn a_stopped_step_leaves_state_alone_and_generations_in_order() {
    let device = CopyDevice::new();
    let mut executor = Executor::new(device, plan(), &contents()).unwrap();
    let mut expected = tensors()["w"].clone();
    for (step, decision) in [Decision::Continue, Decision::Stop, Decision::Stop, Decision::Continue].iter().enumerate()
    {
        let x = input(step as f32 + 10.0);
        executor.write_input("x", x.bytes()).unwrap();
        executor
            .run_in_phases(&mut |executor| {
                assert_eq!(executor.read_output("y")?, x);
                Ok(*decision)
            })
            .unwrap();
        if *decision == Decision::Continue {
            expected = x;
        }
        assert_eq!(executor.read_persistent("w").unwrap(), expected, "step {step}");
    }
    executor.write_input("x", input(99.0).bytes()).unwrap();
    executor.run().unwrap();
    assert_eq!(executor.read_persistent("w").unwrap(), input(99.0));
}

#[test]
fn everything_is_given_back_whichever_call_fails() {
    for calls_left in 0..9 {
        let device = CopyDevice::new();
        device.state.lock().unwrap().calls_left = Some(calls_left);
        let result = Executor::new(device.clone(), plan(), &contents());
        assert_eq!(result.is_ok(), calls_left >= 7, "heap, two memories, staging, stream, the plan's event, its own");
        drop(result);
        assert!(device.holds_nothing(), "after {calls_left} calls");
    }
}

#[test]
fn after_a_failure_nothing_runs_any_more() {
    let device = CopyDevice::new();
    let mut executor = Executor::new(device.clone(), plan(), &contents()).unwrap();
    executor.write_input("x", input(1.0).bytes()).unwrap();
    device.state.lock().unwrap().submissions_left = Some(0);
    assert!(matches!(executor.run(), Err(RuntimeError::Device { .. })));
    device.state.lock().unwrap().submissions_left = None;
    assert_eq!(executor.run(), Err(RuntimeError::Broken));
    drop(executor);
    assert!(device.holds_nothing());
}

#[test]
fn a_disk_that_fails_once_keeps_nothing_from_being_read() {
    let device = CopyDevice::new();
    let mut warmed_up = plan();
    let from = Region::new(HOST, 256, 8);
    warmed_up.warm_up = vec![Command::Copy { stream: STREAM, from, to: Region::new(DEVICE, 32, 8) }];
    let mut executor = Executor::new(device.clone(), warmed_up, &contents()).unwrap();
    let fail = || device.state.lock().unwrap().disk_fails = true;
    let fails = |result: Result<(), RuntimeError>| {
        matches!(result, Err(RuntimeError::Device { error: DeviceError::Spill { .. }, .. }))
    };
    fail();
    assert!(fails(executor.read_persistent("large").map(drop)));
    assert_eq!(executor.read_persistent("large").unwrap(), tensors()["large"]);
    fail();
    assert!(fails(executor.write_persistent("flags", &[1; 5])));
    executor.write_persistent("flags", &[1; 5]).unwrap();
    executor.write_input("x", input(1.0).bytes()).unwrap();
    fail();
    assert!(fails(executor.run().map(drop)), "what a step expects on the device is not brought there");
    assert_eq!(executor.read_persistent("w").unwrap(), tensors()["w"]);
    assert_eq!(executor.read_persistent("flags").unwrap().bytes()[..], [1; 5]);
}

#[test]
fn an_error_between_the_phases_skips_the_update() {
    let mut executor = Executor::new(CopyDevice::new(), plan(), &contents()).unwrap();
    executor.write_input("x", input(1.0).bytes()).unwrap();
    let result = executor.run_in_phases(&mut |executor| executor.read_output("z").map(|_| Decision::Continue));
    assert_eq!(result, Err(RuntimeError::UnknownTensor { kind: "output", name: "z".to_string() }));
    assert_eq!(executor.read_persistent("w").unwrap(), tensors()["w"]);
    assert!(executor.run().is_ok(), "the device did not fail");
}

#[test]
fn wrong_sizes_and_names_are_refused() {
    let mut executor = Executor::new(CopyDevice::new(), plan(), &contents()).unwrap();
    let size = RuntimeError::Size { name: "x".to_string(), given_bytes: 3, expected_bytes: 16 };
    assert_eq!(executor.write_input("x", &[0; 3]), Err(size));
    assert!(matches!(executor.write_input("w", &[0; 16]), Err(RuntimeError::UnknownTensor { kind: "input", .. })));
    assert!(matches!(executor.read_persistent("unused"), Err(RuntimeError::UnknownTensor { .. })));
}

#[test]
fn plans_that_name_what_they_do_not_list_are_refused() {
    let device = CopyDevice::new();
    let break_it: [fn(&mut Plan); 5] = [
        |plan| plan.commands.push(Command::Barrier { stream: StreamId(7) }),
        |plan| plan.event_count = 0,
        |plan| plan.persistent[0].pieces[1].1.memory = MemoryId(9),
        |plan| plan.persistent[0].pieces.truncate(1),
        |plan| plan.inputs[0].pieces[0].1.range = ByteRange::new(1016, 1032),
    ];
    for (index, break_it) in break_it.iter().enumerate() {
        let mut plan = plan();
        break_it(&mut plan);
        let result = Executor::new(device.clone(), plan, &contents());
        assert!(matches!(result, Err(RuntimeError::Plan { .. })), "case {index}");
        drop(result);
        assert!(device.holds_nothing(), "case {index}");
    }
}

/// `w` is on disk, in two memories that alternate: a step copies `x` to the one that it does not read.
#[test]
fn memories_take_turns_after_steps_that_succeed() {
    let turns = [MemoryId(2), MemoryId(3)];
    let on_disk = |memory| Region::new(memory, 0, 16);
    let mut spilling = plan();
    let file = PlanMemory { kind: MemoryKind::SpillFile, space: Space::Disk, size_bytes: 4096 };
    spilling.memories.extend([file.clone(), file]);
    spilling.commands.truncate(3);
    let (x, stream) = (Region::new(HOST, 0, 16), STREAM);
    spilling.commands.push(Command::Copy { stream, from: x, to: on_disk(turns[1]) });
    spilling.persistent[0] = backing("w", DataType::Float32, &[4], &[(0, on_disk(turns[0]))]);
    spilling.turns = Some((turns[0], turns[1]));
    let device = CopyDevice::new();
    let without_folder = Executor::new(device.clone(), spilling.clone(), &contents());
    assert!(matches!(without_folder, Err(RuntimeError::Plan { .. })));
    let folder = std::path::Path::new("anywhere");
    let mut executor = Executor::spilling(device.clone(), spilling, &contents(), Some(folder)).unwrap();
    let mut expected = tensors()["w"].clone();
    for (step, decision) in [Decision::Continue, Decision::Stop, Decision::Continue].iter().enumerate() {
        let x = input(step as f32 + 10.0);
        executor.write_input("x", x.bytes()).unwrap();
        executor.run_in_phases(&mut |_| Ok(*decision)).unwrap();
        if *decision == Decision::Continue {
            expected = x;
        }
        assert_eq!(executor.read_persistent("w").unwrap(), expected, "step {step}");
    }
    executor.write_input("x", input(99.0).bytes()).unwrap();
    // The output phase runs, and the updates fail.
    device.state.lock().unwrap().submissions_left = Some(1);
    assert!(executor.run().is_err());
    device.state.lock().unwrap().submissions_left = None;
    assert_eq!(executor.read_persistent("w").unwrap(), expected, "what the step would have written is not taken");
    drop(executor);
    assert!(device.holds_nothing());
}
