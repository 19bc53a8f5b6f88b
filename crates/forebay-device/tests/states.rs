//! The null device's Direct3D-12-like profile: aliases or transitions, and barriers that name resources.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::{Binding, Command, DataType, Kernel, Launch, MemoryId, Region, StreamId, TensorDesc};
use forebay_device::null::{Lowered, LoweredCounts, NullDevice, NullProfile};
use forebay_device::{Device, DeviceError};
use forebay_sync::states::{Access, Resource, ResourceStates};
use forebay_testing::Random;

fn device(aliases: bool) -> NullDevice {
    let device = NullDevice::new(NullProfile::Direct3D12Like);
    if aliases { device } else { device.without_aliases() }
}

fn part(memory: MemoryId, index: u64) -> Region {
    Region::new(memory, index * 64, 64)
}

fn launch(stream: StreamId, reads: &[Region], writes: &[Region]) -> Command {
    let bind = |&region: &Region| {
        let desc = TensorDesc::packed(DataType::UInt8, &[region.range.len()]).expect("a descriptor");
        Binding { region, desc }
    };
    let (reads, writes) = (reads.iter().map(bind).collect(), writes.iter().map(bind).collect());
    Command::Launch {
        stream,
        launch: Box::new(Launch { kernel: Kernel::Copy, reads, writes, workspace: None, label: 0 }),
    }
}

fn counts(uav_barriers: usize, aliasing_barriers: usize, transitions: usize) -> LoweredCounts {
    LoweredCounts { uav_barriers, aliasing_barriers, transitions }
}

/// The upload, two launches and the download of a small step, with the barriers that its hazards need.
fn step(device: &NullDevice) -> Vec<Command> {
    let memory = device.create_placed(1024).expect("a heap");
    let block = device.create_host_block(1024).expect("a block");
    let stream = device.create_stream("all", 0).expect("a stream");
    let barrier = Command::Barrier { stream };
    vec![
        Command::Copy { stream, from: part(block, 0), to: part(memory, 0) },
        barrier.clone(),
        launch(stream, &[part(memory, 0)], &[part(memory, 1)]),
        launch(stream, &[part(memory, 0)], &[part(memory, 2)]),
        barrier.clone(),
        launch(stream, &[part(memory, 1), part(memory, 2)], &[part(memory, 3)]),
        barrier,
        Command::Copy { stream, from: part(memory, 3), to: part(block, 1) },
    ]
}

#[test]
fn aliases_take_the_place_of_transitions() {
    let aliased = device(true);
    aliased.submit(&step(&aliased)).expect("a submission");
    assert_eq!(aliased.lowered_counts(), counts(2, 2, 0));
    let plain = device(false);
    plain.submit(&step(&plain)).expect("a submission");
    assert_eq!(plain.lowered_counts(), counts(2, 0, 2));
}

#[test]
fn each_command_says_which_alias_it_uses() {
    let device = device(true);
    device.submit(&step(&device)).expect("a submission");
    let used: Vec<(usize, Vec<Option<Access>>)> = device
        .lowered()
        .into_iter()
        .filter_map(|entry| match entry {
            Lowered::Work { command, accesses, .. } => {
                Some((command, accesses.iter().map(|(resource, _)| resource.alias).collect()))
            }
            _ => None,
        })
        .collect();
    let unordered = vec![Some(Access::UnorderedAccess)];
    let (dest, source) = (vec![Some(Access::CopyDest)], vec![Some(Access::CopySource)]);
    assert_eq!(used, [(0, dest), (2, unordered.clone()), (3, unordered.clone()), (5, unordered), (7, source)]);
}

#[test]
fn every_submission_begins_in_common() {
    let device = device(false);
    for command in step(&device) {
        device.submit(&[command]).expect("a submission");
    }
    assert_eq!(device.lowered_counts(), counts(0, 0, 0), "decayed and complete after each command");
    assert_eq!(device.lowered().len(), 5);
}

#[test]
fn a_barrier_names_only_what_launches_used_since_the_last() {
    for aliases in [true, false] {
        let device = device(aliases);
        let [one, two] = [0; 2].map(|_| device.create_placed(1024).expect("a heap"));
        let [stream, other] = [0; 2].map(|_| device.create_stream("one", 0).expect("a stream"));
        let barrier = Command::Barrier { stream };
        device
            .submit(&[
                launch(stream, &[part(one, 0)], &[part(one, 1)]),
                launch(other, &[part(two, 0)], &[part(two, 1)]),
                barrier.clone(),
                barrier,
                Command::Fill { stream, region: part(one, 1), pattern: [0; 4] },
            ])
            .expect("a submission");
        let barriers: Vec<Lowered> =
            device.lowered().into_iter().filter(|entry| !matches!(entry, Lowered::Work { .. })).collect();
        let resource = Resource { memory: one, alias: aliases.then_some(Access::UnorderedAccess) };
        assert_eq!(barriers, [Lowered::UavBarrier { stream, resource }], "the fill counts as a launch");
    }
}

#[test]
fn a_copy_within_one_memory_needs_aliases() {
    for aliases in [true, false] {
        let device = device(aliases);
        let (memory, block) =
            (device.create_placed(1024).expect("a heap"), device.create_host_block(1024).expect("it"));
        let stream = device.create_stream("all", 0).expect("a stream");
        let inside = |memory| Command::Copy { stream, from: part(memory, 0), to: part(memory, 1) };
        device.submit(&[inside(block)]).expect("host memory has no states");
        let outcome = device.submit(&[inside(block), inside(memory)]);
        if aliases {
            assert_eq!(outcome, Ok(()));
        } else {
            assert!(matches!(outcome, Err(DeviceError::Unsupported { reason, .. }) if reason.contains("aliases")));
            assert_eq!(device.commands().len(), 1, "a refused list leaves nothing behind");
        }
    }
}

#[test]
fn other_profiles_have_no_states() {
    let device = NullDevice::new(NullProfile::Tiled).without_aliases();
    device.submit(&step(&device)).expect("a submission");
    assert!(device.lowered().is_empty());
}

/// A list of launches, copies, fills and barriers over a few memories.
fn random_list(seed: u64, streams: &[StreamId], memories: &[MemoryId]) -> Vec<Command> {
    let mut random = Random::new(seed);
    let mut below = |limit: usize| random.index(limit);
    (0..24)
        .map(|_| {
            let stream = streams[below(streams.len())];
            let first = below(memories.len());
            let second = (first + 1 + below(memories.len() - 1)) % memories.len();
            let (from, to) = (part(memories[first], below(4) as u64), part(memories[second], below(4) as u64));
            match below(5) {
                0 => Command::Barrier { stream },
                1 => Command::Fill { stream, region: to, pattern: [0; 4] },
                2 => launch(stream, &[from], &[to]),
                _ => Command::Copy { stream, from, to },
            }
        })
        .collect()
}

/// One use of a resource by a queue's entry.
struct Use {
    place: usize,
    stream: StreamId,
    command: usize,
    resource: Resource,
    access: Access,
    /// The places of the uses that are complete before this one starts.
    before: BTreeSet<usize>,
}

/// Whether an entry orders what comes before it on one resource before what comes after it on another.
fn orders(entry: &Lowered, stream: StreamId, before: Resource, after: Resource) -> bool {
    match entry {
        Lowered::Work { .. } => false,
        Lowered::UavBarrier { stream: own, resource } => (*own, *resource, *resource) == (stream, before, after),
        Lowered::AliasingBarrier { stream: own, before: from, after: to } => {
            (*own, *from, *to) == (stream, before, after)
        }
        Lowered::Transition { stream: own, transition } => {
            (*own, transition.resource, transition.resource) == (stream, before, after)
        }
    }
}

/// Checks every state, and that a barrier between two uses of one memory still orders them. The order is followed entry by entry and
/// through other uses, regardless of how the barrier was lowered.
fn follow(seed: u64, commands: &[Command], lowered: &[Lowered]) {
    let mut states: BTreeMap<StreamId, ResourceStates> = BTreeMap::new();
    let mut uses: Vec<Use> = Vec::new();
    for (place, entry) in lowered.iter().enumerate() {
        match entry {
            Lowered::Transition { stream, transition } => {
                let outcome = states.entry(*stream).or_default().transition(*transition);
                assert_eq!(outcome, Ok(()), "seed {seed}");
            }
            Lowered::Work { stream, command, accesses } => {
                assert_eq!(states.entry(*stream).or_default().access(accesses), Ok(()), "seed {seed}");
                for &(resource, access) in accesses {
                    let mut now =
                        Use { place, stream: *stream, command: *command, resource, access, before: BTreeSet::new() };
                    for past in uses.iter().filter(|past| past.stream == *stream && past.place < place) {
                        let copies = [past.access, access].iter().all(|&access| access != Access::UnorderedAccess);
                        let between = &lowered[past.place..place];
                        let ordered = between.iter().any(|entry| orders(entry, *stream, past.resource, resource));
                        if ordered || copies && past.resource == resource {
                            now.before.insert(past.place);
                            now.before.extend(&past.before);
                        }
                    }
                    uses.push(now);
                }
            }
            Lowered::UavBarrier { .. } | Lowered::AliasingBarrier { .. } => {}
        }
    }
    for (index, now) in uses.iter().enumerate() {
        for past in uses[..index].iter().filter(|past| past.stream == now.stream && past.place < now.place) {
            let barrier = Command::Barrier { stream: now.stream };
            if past.resource.memory == now.resource.memory && commands[past.command..now.command].contains(&barrier) {
                let (first, second) = (past.command, now.command);
                assert!(now.before.contains(&past.place), "seed {seed}: {first} and {second} on {}", now.resource);
            }
        }
    }
}

#[test]
fn what_queues_are_given_has_right_states_and_keeps_the_order_of_barriers() {
    let mut kinds = BTreeSet::new();
    for seed in 0..400 {
        for aliases in [true, false] {
            let device = device(aliases);
            let memories: Vec<MemoryId> = (0..3).map(|_| device.create_placed(256).expect("a heap")).collect();
            let streams: Vec<StreamId> = (0..2).map(|_| device.create_stream("one", 0).expect("a stream")).collect();
            let commands = random_list(seed, &streams, &memories);
            device.submit(&commands).expect("a submission");
            follow(seed, &commands, &device.lowered());
            let counts = device.lowered_counts();
            assert!(if aliases { counts.transitions == 0 } else { counts.aliasing_barriers == 0 }, "seed {seed}");
            kinds.insert((counts.uav_barriers > 0, counts.aliasing_barriers > 0, counts.transitions > 0));
        }
    }
    assert!(kinds.contains(&(true, true, false)) && kinds.contains(&(true, false, true)), "{kinds:?}");
}
