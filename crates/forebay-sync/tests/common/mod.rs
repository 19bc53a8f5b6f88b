//! Random programs, and a slow model of the contract by which they are judged.

#![allow(dead_code, reason = "each test uses its part")]

use forebay_base::command::{Binding, Launch};
use forebay_base::kernel::{Kernel, UnaryOp};
use forebay_base::{ByteRange, Command, DataType, EventId, HeapId, MemoryId, Region, StreamId, TensorDesc};

pub use forebay_testing::Random;

/// Memory 0 is a reservation of 12 bytes, mapped in tiles of 2; the last two tiles are aliases of the first two. Memory 1 has its own 6
/// bytes.
pub fn prologue() -> Vec<Command> {
    let map = |tile: u64, heap_offset_bytes: u64| Command::Map {
        region: Region::new(MemoryId(0), tile * 2, 2),
        heap: HeapId(heap_offset_bytes as u32 / 6),
        heap_offset_bytes: heap_offset_bytes % 6,
    };
    vec![map(0, 0), map(1, 8), map(2, 4), map(3, 6), map(4, 0), map(5, 8)]
}

/// The physical bytes of a region under [`prologue`], as numbers.
pub fn bytes(region: Region) -> Vec<u64> {
    let tiles = [0, 8, 4, 6, 0, 8];
    let physical = |byte: u64| match region.memory {
        MemoryId(0) => tiles[byte as usize / 2] + byte % 2,
        _ => 100 + byte,
    };
    (region.range.start..region.range.end).map(physical).collect()
}

pub fn overlap(one: Region, other: Region) -> bool {
    let others = bytes(other);
    bytes(one).iter().any(|byte| others.contains(byte))
}

fn region(random: &mut Random) -> Region {
    let memory = random.below(2) as u32;
    let end = if memory == 0 { 12 } else { 6 };
    let start = random.below(end);
    Region { memory: MemoryId(memory), range: ByteRange::new(start, (start + 1 + random.below(3)).min(end)) }
}

fn apart(random: &mut Random, from: &[Region]) -> Region {
    loop {
        let candidate = region(random);
        if !from.iter().any(|&other| overlap(candidate, other)) {
            return candidate;
        }
    }
}

pub fn launch(stream: StreamId, kernel: Kernel, reads: &[Region], writes: &[Region]) -> Command {
    let bind = |&region: &Region| {
        let desc = TensorDesc::packed(DataType::UInt8, &[region.range.len().max(1)]).unwrap();
        Binding { region, desc }
    };
    let (reads, writes) = (reads.iter().map(bind).collect(), writes.iter().map(bind).collect());
    Command::Launch { stream, launch: Box::new(Launch { kernel, reads, writes, workspace: None, label: 0 }) }
}

/// Returns a command that does not overlap itself, except for updates in place.
pub fn work(random: &mut Random, streams: u64) -> Command {
    let stream = StreamId(random.below(streams) as u32 * 3);
    let first = region(random);
    match random.below(6) {
        0 => Command::Fill { stream, region: first, pattern: [0; 4] },
        1 => launch(stream, Kernel::Unary(UnaryOp::Relu), &[first], &[first]),
        2 | 3 => {
            let reads = [first, region(random)];
            let one = apart(random, &reads);
            launch(stream, Kernel::Copy, &reads, &[one])
        }
        4 => {
            let one = apart(random, &[first]);
            let other = apart(random, &[first, one]);
            launch(stream, Kernel::Copy, &[first], &[one, other])
        }
        _ => launch(stream, Kernel::Copy, &[first], &[]),
    }
}

/// Returns whether two commands must be ordered.
pub fn hazard(first: &Command, second: &Command) -> bool {
    let meet = |some: Vec<Region>, others: Vec<Region>| {
        some.iter().any(|&one| others.iter().any(|&other| overlap(one, other)))
    };
    meet(first.writes(), second.reads())
        || meet(first.reads(), second.writes())
        || meet(first.writes(), second.writes())
}

/// The literal contract: what is complete before each command starts, by a closure over all earlier commands.
pub struct Model {
    commands: Vec<Command>,
    /// For each command, whether each earlier one is complete before it starts (before it fires, for a record).
    before: Vec<Vec<bool>>,
}

impl Model {
    /// Builds the model of `steps` copies of the list without a join between them.
    pub fn new(list: &[Command], steps: usize) -> Model {
        let commands: Vec<Command> = (0..steps).flat_map(|_| list.iter().cloned()).collect();
        let mut before: Vec<Vec<bool>> = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            let stream = command.stream().unwrap();
            let own = |other: &usize| commands[*other].stream() == Some(stream);
            let barrier = (0..index).filter(own).rfind(|&other| matches!(commands[other], Command::Barrier { .. }));
            let mut direct: Vec<usize> = (0..barrier.unwrap_or(0)).filter(own).collect();
            direct.extend((0..index).filter(own).filter(|&other| matches!(commands[other], Command::Wait { .. })));
            match command {
                Command::Record { .. } => direct.extend((0..index).filter(own)),
                Command::Wait { event, generation, .. } => {
                    let recorded = |other: &usize| {
                        matches!(&commands[*other], Command::Record { event: e, generation: g, .. }
                            if (e, g) == (event, generation))
                    };
                    direct.extend((index / list.len() * list.len()..index).rfind(recorded));
                }
                _ => {}
            }
            let mut row = vec![false; index];
            for other in direct {
                row[other] = true;
                before[other].iter().enumerate().for_each(|(past, &complete)| row[past] |= complete);
            }
            before.push(row);
        }
        Model { commands, before }
    }

    /// Returns whether some hazard is not ordered.
    pub fn races(&self) -> bool {
        let racing = |second: usize| {
            (0..second)
                .any(|first| !self.before[second][first] && hazard(&self.commands[first], &self.commands[second]))
        };
        (0..self.commands.len()).any(racing)
    }
}

/// Returns a list with barriers, records and waits anywhere; each stream has its own event.
pub fn scattered(random: &mut Random, streams: u64, length: usize) -> Vec<Command> {
    let mut generations = vec![0u64; streams as usize];
    let mut list = Vec::new();
    while list.len() < length {
        let number = random.below(streams);
        let stream = StreamId(number as u32 * 3);
        let event = EventId(random.below(streams) as u32);
        match random.below(10) {
            0 => list.push(Command::Barrier { stream }),
            1 | 2 => {
                generations[number as usize] += 1;
                let generation = generations[number as usize];
                list.push(Command::Record { stream, event: EventId(number as u32), generation });
            }
            3 | 4 if generations[event.0 as usize] > 0 => {
                let generation = 1 + random.below(generations[event.0 as usize]);
                list.push(Command::Wait { stream, event, generation });
            }
            _ => list.push(work(random, streams)),
        }
    }
    list
}
