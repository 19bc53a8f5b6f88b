//! Exchanges: what each process receives from the others.

use std::ops::Range;

use forebay_base::kernel::{EXCHANGES_MAX, Exchange};
use forebay_base::{ByteRange, DataType, Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, Operand, ProgramLaunch, Role};

use super::Building;
use crate::distribute::sharing::State;

/// Returns the first bytes of a buffer.
pub(super) fn bytes_of(buffer: BufferId, bytes: u64) -> Option<Operand> {
    let desc = TensorDesc::packed(DataType::UInt8, &[bytes]).ok()?;
    Some(Operand { buffer, offset_bytes: 0, desc })
}

impl Building<'_> {
    /// Returns the buffer with all of a buffer's contents, which are exchanged if they are distributed.
    pub(super) fn whole_buffer(&mut self, buffer: BufferId) -> Option<BufferId> {
        let shared = match self.state(buffer) {
            State::Shared(shared) => shared,
            State::Slice(sliced) => return self.gathered_slices(buffer, sliced),
            State::Unwritten | State::Whole | State::Batch(_) | State::NewestSlice(_) => return Some(buffer),
        };
        if let Some(&whole) = self.gathered.get(&buffer) {
            return Some(whole);
        }
        let Buffer { name, size_bytes, role } = self.buffers[buffer.0 as usize].clone();
        let whole = self.buffer(format!("all of {name}"), size_bytes)?;
        if role == Role::Gradient {
            self.buffers[whole.0 as usize].role = role;
        }
        let shares = self.shares(shared.images)?;
        let bytes =
            |share: &Range<u64>| ByteRange::new(share.start * shared.image_bytes, share.end * shared.image_bytes);
        let places: Vec<ByteRange> = shares.iter().map(bytes).collect();
        self.exchange_places(&name, buffer, whole, &places)?;
        self.gathered.insert(buffer, whole);
        Some(whole)
    }

    /// Adds an exchange in which every process receives what all processes have.
    pub(super) fn exchange_all(&mut self, name: &str, own: BufferId, all: BufferId, sizes: &[u64]) -> Option<()> {
        let mut end = 0;
        let place = |&size: &u64| {
            end += size;
            ByteRange::new(end - size, end)
        };
        let places: Vec<ByteRange> = sizes.iter().map(place).collect();
        self.exchange_places(name, own, all, &places)
    }

    /// Adds an exchange in which every process receives what all processes have. `places` say where it goes: what each process has of the
    /// first part, then of the second one, and so on.
    fn exchange_places(&mut self, name: &str, own: BufferId, all: BufferId, places: &[ByteRange]) -> Option<()> {
        let mut end = 0;
        let source = |place: ByteRange| {
            end += place.len();
            ByteRange::new(end - place.len(), end)
        };
        let sources: Vec<ByteRange> = self.own_of(places).map(source).collect();
        let bytes = places.iter().map(|place| place.len()).sum::<u64>();
        let of_process = |rank: usize| places[rank..].iter().step_by(self.processes).copied().collect();
        let receives = (0..self.processes).map(of_process).collect();
        let operands = (bytes_of(own, end)?, bytes_of(all, bytes)?);
        let sends = vec![sources; self.processes];
        self.exchange(name, operands, sends, receives, bytes * (self.processes as u64 - 1))?;
        self.states[all.0 as usize] = State::Whole;
        Some(())
    }

    /// Adds an exchange in which all processes send `all_bytes` to others. `None` if there are too many.
    pub(super) fn exchange(
        &mut self,
        name: &str,
        (x, y): (Operand, Operand),
        sends: Vec<Vec<ByteRange>>,
        receives: Vec<Vec<ByteRange>>,
        all_bytes: u64,
    ) -> Option<()> {
        let number = u32::try_from(self.work.exchanges).ok().filter(|&number| number < EXCHANGES_MAX)?;
        let others = sends.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        self.work.sent_bytes += others.flat_map(|(_, ranges)| ranges).map(|range| range.len()).sum::<u64>();
        self.work.all_sent_bytes += all_bytes;
        self.work.exchanges += 1;
        let kernel = Kernel::Exchange(Exchange { number, sends, receives });
        self.push(format!("exchange of {name}"), kernel, vec![x], vec![y]);
        Some(())
    }

    /// Numbers the exchanges in the order of the program, and gives them an operand that all of them read and write, so that they keep it.
    pub(super) fn chain_exchanges(&mut self) -> Option<()> {
        let is_exchange = |launch: &ProgramLaunch| matches!(launch.kernel, Kernel::Exchange(_));
        let Some(first) = self.launches.iter().position(is_exchange) else { return Some(()) };
        let buffer = self.buffer("order of exchanges".to_string(), 4)?;
        let desc = TensorDesc::packed(DataType::Float32, &[1]).ok()?;
        let order = Operand { buffer, offset_bytes: 0, desc };
        let mut next = 0;
        for launch in &mut self.launches {
            if let Kernel::Exchange(exchange) = &mut launch.kernel {
                exchange.number = next;
                next += 1;
                launch.reads.push(order.clone());
                launch.writes.push(order.clone());
            }
        }
        let fill = Kernel::Fill { value: 0.0 };
        let fill = ProgramLaunch::new("order of exchanges".to_string(), fill, Vec::new(), vec![order]);
        self.launches.insert(first, fill);
        self.update_start += usize::from(first < self.update_start);
        Some(())
    }
}
