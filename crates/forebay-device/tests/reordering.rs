//! What chaos must expose and what it must leave correct: missing waits between streams, records that are not barriers, and commands
//! that are submitted one by one.

use std::sync::Arc;

use forebay_base::{Command, EventId, MemoryId, Region, StreamId};
use forebay_device::Device;
use forebay_device::chaos::ChaosDevice;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_device::null::{NullDevice, NullProfile};

const SEEDS: u64 = 20;

struct Bench {
    device: ChaosDevice,
    streams: [StreamId; 2],
    event: EventId,
    block: MemoryId,
}

fn bench(seed: u64) -> Bench {
    let options = HostOptions { threads: Some(2), ..HostOptions::default() };
    let host = HostDevice::new(&options).expect("a host device");
    let device = ChaosDevice::new(Arc::new(host), seed).expect("a device");
    let streams = [(); 2].map(|()| device.create_stream("chaos", 0).expect("a stream"));
    let event = device.create_event().expect("an event");
    let block = device.create_host_block(16 * 64).expect("a block");
    Bench { device, streams, event, block }
}

impl Bench {
    fn place(&self, index: u64) -> Region {
        Region::new(self.block, index * 64, 64)
    }

    fn fill(&self, stream: usize, index: u64, byte: u8) -> Command {
        Command::Fill { stream: self.streams[stream], region: self.place(index), pattern: [byte; 4] }
    }

    fn copy(&self, stream: usize, from: u64, to: u64) -> Command {
        Command::Copy { stream: self.streams[stream], from: self.place(from), to: self.place(to) }
    }

    fn barrier(&self, stream: usize) -> Command {
        Command::Barrier { stream: self.streams[stream] }
    }

    fn record(&self, stream: usize, generation: u64) -> Command {
        Command::Record { stream: self.streams[stream], event: self.event, generation }
    }

    fn wait(&self, stream: usize, generation: u64) -> Command {
        Command::Wait { stream: self.streams[stream], event: self.event, generation }
    }

    fn finish(&self) {
        self.streams.iter().for_each(|&stream| self.device.synchronize(stream).expect("everything runs"));
    }

    fn byte(&self, index: u64) -> u8 {
        let mut bytes = [0; 64];
        self.device.read_host(self.place(index), &mut bytes);
        bytes[0]
    }
}

/// The number of seeds that leave something other than 8 at place 1 after the commands that `list` creates.
fn wrong(list: impl Fn(&Bench) -> Vec<Command>) -> u64 {
    let outcome = |seed| {
        let bench = bench(seed);
        bench.device.submit(&list(&bench)).expect("commands");
        bench.finish();
        bench.byte(1) != 8
    };
    (0..SEEDS).filter(|&seed| outcome(seed)).count() as u64
}

#[test]
fn a_missing_wait_between_streams_is_exposed() {
    let list = |bench: &Bench, waits: bool| {
        let mut commands = vec![bench.fill(0, 0, 8), bench.record(0, 1)];
        commands.extend(waits.then(|| bench.wait(1, 1)));
        commands.push(bench.copy(1, 0, 1));
        commands
    };
    assert_eq!(wrong(|bench| list(bench, true)), 0);
    assert!(wrong(|bench| list(bench, false)) >= SEEDS / 4);
}

#[test]
fn a_missing_barrier_is_exposed_for_every_hazard() {
    // Read after write, write after write, write after read: each needs its barrier.
    let hazards: [fn(&Bench) -> [Command; 2]; 3] = [
        |bench| [bench.fill(0, 0, 8), bench.copy(0, 0, 1)],
        |bench| [bench.fill(0, 1, 3), bench.fill(0, 1, 8)],
        |bench| [bench.copy(0, 2, 1), bench.fill(0, 2, 3)],
    ];
    for (index, hazard) in hazards.iter().enumerate() {
        let list = |bench: &Bench, barrier: bool| {
            let [first, second] = hazard(bench);
            let mut commands = vec![bench.fill(0, 2, 8), bench.barrier(0), first];
            commands.extend(barrier.then(|| bench.barrier(0)));
            commands.push(second);
            commands
        };
        assert_eq!(wrong(|bench| list(bench, true)), 0, "hazard {index}");
        assert!(wrong(|bench| list(bench, false)) >= SEEDS / 4, "hazard {index}");
    }
}

#[test]
fn a_record_alone_orders_nothing_and_with_its_wait_is_a_barrier() {
    let list = |bench: &Bench, waits: bool| {
        let mut commands = vec![bench.fill(0, 0, 8), bench.record(0, 1), bench.fill(0, 5, 1)];
        commands.extend(waits.then(|| bench.wait(0, 1)));
        commands.push(bench.copy(0, 0, 1));
        commands
    };
    assert_eq!(wrong(|bench| list(bench, true)), 0);
    assert!(wrong(|bench| list(bench, false)) >= SEEDS / 4);
}

#[test]
fn commands_that_come_one_by_one_are_reordered_too() {
    let outcome = |seed| {
        let bench = bench(seed);
        for command in [bench.fill(0, 0, 8), bench.copy(0, 0, 1)] {
            bench.device.submit(&[command]).expect("a command");
        }
        bench.finish();
        bench.byte(1) != 8
    };
    assert!((0..SEEDS).filter(|&seed| outcome(seed)).count() as u64 >= SEEDS / 4);
}

#[test]
fn the_same_seed_makes_the_same_choices() {
    let order = |seed| {
        let null = Arc::new(NullDevice::new(NullProfile::Tiled));
        let device = ChaosDevice::new(null.clone(), seed).expect("a device");
        let streams = [(); 2].map(|()| device.create_stream("chaos", 0).expect("a stream"));
        let block = device.create_host_block(64).expect("a block");
        let region = Region::new(block, 0, 64);
        let fill = |byte: u8| Command::Fill { stream: streams[usize::from(byte % 2)], region, pattern: [byte; 4] };
        let mut commands: Vec<Command> = (0..12).map(fill).collect();
        commands.insert(6, Command::Barrier { stream: streams[0] });
        device.submit(&commands).expect("commands");
        streams.iter().for_each(|&stream| device.synchronize(stream).expect("everything runs"));
        null.commands()
    };
    let orders: Vec<Vec<Command>> = (0..SEEDS).map(order).collect();
    assert_eq!((0..SEEDS).map(order).collect::<Vec<_>>(), orders);
    assert!(orders.iter().all(|commands| commands.len() == 12), "each command runs once");
    assert!(orders.iter().any(|commands| *commands != orders[0]), "seeds differ");
    for commands in orders {
        let place =
            |byte: u8| commands.iter().position(|c| matches!(c, Command::Fill { pattern, .. } if pattern[0] == byte));
        let ordered = [0, 2, 4].iter().all(|&early| [6, 8, 10].iter().all(|&late| place(early) < place(late)));
        assert!(ordered, "nothing of the stream passes its barrier: {commands:?}");
    }
}

#[test]
fn events_fire_although_nobody_waits_and_unended_waits_are_refused() {
    let bench = bench(3);
    bench.device.submit(&[bench.fill(0, 0, 1), bench.record(0, 1)]).expect("commands");
    while bench.device.query_event(bench.event) == 0 {
        std::thread::yield_now();
    }
    assert!(bench.device.submit(&[bench.wait(1, 2)]).is_err(), "its record does not stand before it");
    bench.streams.iter().for_each(|&stream| bench.device.destroy_stream(stream));
}
