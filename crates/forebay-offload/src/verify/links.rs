//! Checks what links carry.

use crate::schedule::{Direction, MemorySpace, Schedule, Transfer};
use crate::verify::ROUNDING_NS;
use crate::workload::Machine;

/// Selects the transfers that a limit applies to.
type Selects = fn(&Transfer) -> bool;

/// Checks every limit. The error contains the time at which too much has been carried.
pub fn check(machine: &Machine, schedule: &Schedule) -> Result<(), (u64, String)> {
    let limits: [(&str, u64, Selects); 4] = [
        ("the link from the device", machine.link_bytes_per_s, |t| t.direction == Direction::Out),
        ("the link to the device", machine.link_bytes_per_s, |t| t.direction == Direction::In),
        ("the write direction of the SSD", machine.ssd_write_bytes_per_s, |t| {
            t.direction == Direction::Out && t.place == MemorySpace::Ssd
        }),
        ("the read direction of the SSD", machine.ssd_read_bytes_per_s, |t| {
            t.direction == Direction::In && t.place == MemorySpace::Ssd
        }),
    ];
    for (name, bytes_per_s, selects) in limits {
        let load = Load::new(schedule.transfers.iter().filter(|transfer| selects(transfer)));
        let bytes_per_ns = bytes_per_s as f64 / 1e9;
        let (at_ns, surplus_bytes) = load.worst_surplus(bytes_per_ns);
        // One byte more, for the rounding of the sums themselves.
        if surplus_bytes > bytes_per_ns * ROUNDING_NS as f64 + 1.0 {
            let reason = format!("{name} carries {surplus_bytes:.0} bytes more than {bytes_per_s} bytes/s allows");
            return Err((at_ns, reason));
        }
    }
    Ok(())
}

/// How the rate of some transfers changes over time.
pub struct Load {
    /// The time, and the change of the rate in bytes per nanosecond.
    changes: Vec<(u64, f64)>,
}

impl Load {
    /// Creates the load of transfers that each proceed at one rate from their start to their end.
    pub fn new<'a>(transfers: impl Iterator<Item = &'a Transfer>) -> Load {
        let mut changes = Vec::new();
        for transfer in transfers {
            let rate = transfer.piece.size_bytes as f64 / (transfer.end_ns - transfer.start_ns) as f64;
            changes.push((transfer.start_ns, rate));
            changes.push((transfer.end_ns, -rate));
        }
        changes.sort_by(|left, right| left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)));
        Load { changes }
    }

    /// The time at which the worst window ends, and by how many bytes it carries more than a rate allows.
    pub fn worst_surplus(&self, bytes_per_ns: f64) -> (u64, f64) {
        let (mut rate, mut last_ns, mut surplus) = (0.0f64, 0, 0.0f64);
        let (mut worst, mut worst_ns) = (0.0, 0);
        for (at_ns, change) in &self.changes {
            // The largest surplus of a window that ends here; an empty window has none.
            surplus = (surplus + (rate - bytes_per_ns) * (at_ns - last_ns) as f64).max(0.0);
            if surplus > worst {
                (worst, worst_ns) = (surplus, *at_ns);
            }
            rate += change;
            last_ns = *at_ns;
        }
        (worst_ns, worst)
    }
}
