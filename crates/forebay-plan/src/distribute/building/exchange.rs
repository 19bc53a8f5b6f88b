//! Exchanges: what each process receives from the others.

use forebay_base::kernel::{EXCHANGES_MAX, Exchange};
use forebay_base::{ByteRange, DataType, Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, Operand, Role};

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
        let sizes: Vec<u64> = shares.iter().map(|share| (share.end - share.start) * shared.image_bytes).collect();
        self.exchange_all(&name, buffer, whole, &sizes)?;
        self.gathered.insert(buffer, whole);
        Some(whole)
    }

    /// Adds an exchange in which every process receives what all processes have.
    pub(super) fn exchange_all(&mut self, name: &str, own: BufferId, all: BufferId, sizes: &[u64]) -> Option<()> {
        let gathered = Exchange::gather(0, self.rank, sizes);
        let operands = (bytes_of(own, sizes[self.rank])?, bytes_of(all, sizes.iter().sum())?);
        let all_bytes = sizes.iter().sum::<u64>() * (self.processes as u64 - 1);
        self.exchange(name, operands, gathered.sends, gathered.receives, all_bytes)?;
        self.states[all.0 as usize] = State::Whole;
        Some(())
    }

    /// Adds an exchange in which all processes send `all_bytes` to others, after all previous exchanges. `None` if there are too many.
    pub(super) fn exchange(
        &mut self,
        name: &str,
        (x, y): (Operand, Operand),
        sends: Vec<Vec<ByteRange>>,
        receives: Vec<Vec<ByteRange>>,
        all_bytes: u64,
    ) -> Option<()> {
        let number = u32::try_from(self.work.exchanges).ok().filter(|&number| number < EXCHANGES_MAX)?;
        let order = match self.order.clone() {
            Some(order) => order,
            None => {
                let buffer = self.buffer("order of exchanges".to_string(), 4)?;
                let desc = TensorDesc::packed(DataType::Float32, &[1]).ok()?;
                let order = Operand { buffer, offset_bytes: 0, desc };
                let fill = Kernel::Fill { value: 0.0 };
                self.push("order of exchanges".to_string(), fill, Vec::new(), vec![order.clone()]);
                self.order.insert(order).clone()
            }
        };
        let others = sends.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
        self.work.sent_bytes += others.flat_map(|(_, ranges)| ranges).map(|range| range.len()).sum::<u64>();
        self.work.all_sent_bytes += all_bytes;
        self.work.exchanges += 1;
        let kernel = Kernel::Exchange(Exchange { number, sends, receives });
        self.push(format!("exchange of {name}"), kernel, vec![x, order.clone()], vec![y, order]);
        Some(())
    }
}
