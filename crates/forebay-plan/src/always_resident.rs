//! Always resident: chunks that are hardly worth the latency of a copy, such as statistics and biases, stay on the device whatever else has
//! to leave it. All of them together take up little of its memory.

use crate::cost::Costs;
use crate::liveness::Liveness;
use crate::tuning::{LATENCY_PARTS, SMALL_PARTS};

/// Returns, for each chunk, whether it is always resident: the smallest chunks are, as long as every launch has room next to them.
pub fn always_resident(live: &Liveness, costs: &Costs, capacity_bytes: u64) -> Vec<bool> {
    let needed_bytes = live.most_needed_bytes();
    let mut room_bytes = (capacity_bytes / SMALL_PARTS).min(capacity_bytes.saturating_sub(needed_bytes));
    let latency_bytes =
        [costs.link.to_device, costs.link.from_device].map(|way| way.latency_ns as f64 * way.bytes_per_ns());
    let most_bytes = latency_bytes[0].min(latency_bytes[1]) / LATENCY_PARTS;
    let mut chunks: Vec<usize> = (0..live.chunks.len()).collect();
    chunks.sort_by_key(|&chunk| live.chunks[chunk].range.len());
    let mut always_resident = vec![false; chunks.len()];
    for number in chunks {
        let bytes = live.chunks[number].device_bytes();
        if bytes as f64 > most_bytes || bytes > room_bytes {
            break;
        }
        room_bytes -= bytes;
        always_resident[number] = true;
    }
    always_resident
}

#[cfg(test)]
mod tests {
    use forebay_base::Kernel;
    use forebay_model::program::Role;

    use super::*;
    use crate::cost::estimate;
    use crate::liveness::liveness;
    use crate::residency::{Leaving, OccupancyLimit, residency};
    use crate::testing::{ProgramBuilder, limits};

    #[test]
    fn small_chunks_stay_whatever_is_lost_and_others_do_not() {
        let mut builder = ProgramBuilder::default();
        let bias = builder.persistent("bias", 512, Role::Parameter);
        let weight = builder.persistent("weight", 64 << 10, Role::Parameter);
        let values: Vec<_> = (0..4).map(|number| builder.temporary(&format!("value{number}"), 64 << 10)).collect();
        builder.launch(Kernel::Copy, &[bias, weight], &[values[0]]);
        for pair in values.windows(2) {
            builder.launch(Kernel::Copy, &[pair[0]], &[pair[1]]);
        }
        builder.launch(Kernel::Copy, &[values[3], bias, weight], &[values[0]]);
        let program = builder.finish(&[values[0]]);
        let (live, mut costs) = (liveness(&program, false), estimate(&program, &limits()));
        for way in [&mut costs.link.to_device, &mut costs.link.from_device] {
            (way.latency_ns, way.bytes_per_second) = (10_000, 1e9);
        }
        let owned = |buffer| live.chunks.iter().position(|chunk| chunk.owner == crate::liveness::Owner::Buffer(buffer));
        let (bias, weight) = (owned(bias).unwrap(), owned(weight).unwrap());
        let capacity_bytes = 256 << 10;
        let found = always_resident(&live, &costs, capacity_bytes);
        assert!(found[bias], "its latency is that of 10000 bytes");
        assert_eq!(found.iter().filter(|&&always_resident| always_resident).count(), 1);
        let limit = OccupancyLimit {
            keep_bytes: capacity_bytes,
            transfer_bytes: capacity_bytes,
            isolate: false,
            joined_bytes: u64::MAX,
        };
        let lost_bytes = vec![capacity_bytes; program.launches.len()];
        let residency = residency(&program, &live, &costs, limit, &lost_bytes, &Leaving::Anything);
        assert!(residency.backing_on_device[bias] && !residency.backing_on_device[weight]);
        let needed_bytes = live.most_needed_bytes();
        assert_eq!(
            always_resident(&live, &costs, needed_bytes),
            vec![false; live.chunks.len()],
            "where there is no room beside launches"
        );
        for way in [&mut costs.link.to_device, &mut costs.link.from_device] {
            way.latency_ns = 0;
        }
        assert_eq!(
            always_resident(&live, &costs, capacity_bytes),
            vec![false; live.chunks.len()],
            "where a copy has no latency"
        );
    }
}
