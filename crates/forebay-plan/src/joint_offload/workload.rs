//! Converts a program to a workload: its chunks become tensors, its launches kernels.
//!
//! Workloads know a link's bandwidth but not the overhead of a copy. The link is therefore given the average speed of copies of whole
//! chunks, and small chunks ([`mod@crate::always_resident`]) never leave the device.

use forebay_model::program::Program;

use crate::always_resident::always_resident;
use crate::cost::Costs;
use crate::liveness::Liveness;
use crate::residency::kinds;
use crate::ways::LinkDirection;
use forebay_offload::workload::{Kernel, MOST_BYTES, Machine, Tensor, Workload};

/// Returns a program's chunks as tensors and its launches as kernels. Small chunks have no bytes, and the device has fewer bytes
/// accordingly.
pub(super) fn workload(
    program: &Program,
    live: &Liveness,
    costs: &Costs,
    capacity_bytes: u64,
    host_bytes: u64,
) -> Workload {
    let mut kernels: Vec<Kernel> = (program.launches.iter().zip(&costs.launch_ns))
        .map(|(launch, &duration_ns)| Kernel {
            name: launch.name.clone(),
            duration_ns,
            reads: Vec::new(),
            writes: Vec::new(),
            workspace_bytes: 0,
        })
        .collect();
    for (number, chunk) in live.chunks.iter().enumerate() {
        for access in &chunk.accesses {
            let kernel = &mut kernels[access.launch];
            kernel.reads.extend(access.reads.then_some(number));
            kernel.writes.extend(access.writes.then_some(number));
        }
    }
    let versions = versions(live, &mut kernels);
    let always_resident = always_resident(live, costs, capacity_bytes);
    let mut always_resident_bytes = 0;
    let mut tensors: Vec<Tensor> = Vec::new();
    for ((chunk, is_always_resident), kind) in live.chunks.iter().zip(always_resident).zip(kinds(program, live)) {
        always_resident_bytes += if is_always_resident { chunk.device_bytes() } else { 0 };
        let size_bytes = if is_always_resident { 0 } else { chunk.device_bytes() };
        tensors.push(Tensor { size_bytes, persistent: kind.persistent });
    }
    tensors.extend(std::iter::repeat_n(Tensor { size_bytes: 0, persistent: true }, versions));
    let per_second = |bytes: f64| (bytes as u64).clamp(1, MOST_BYTES);
    let Costs { link, disk, .. } = costs;
    let [to_device, from_device] = [link.to_device, link.from_device].map(|way| rate_of_copies(way, &tensors));
    // The same amount moves in each direction, so a link that both directions share has half its rate for each.
    let each_way = to_device.min(from_device) / if link.duplex { 1.0 } else { 2.0 };
    let machine = Machine {
        device_memory_bytes: capacity_bytes - always_resident_bytes,
        host_memory_bytes: host_bytes.min(MOST_BYTES),
        link_bytes_per_s: per_second(each_way),
        ssd_read_bytes_per_s: per_second(disk.read.bytes_per_second),
        ssd_write_bytes_per_s: per_second(disk.write.bytes_per_second),
    };
    Workload { tensors, kernels, machine }
}

/// The device has copies of what launches change in host memory. For each of them, adds a tensor without bytes after all chunks, shared by
/// the kernels that read the copy and those that change the original, so that what reads a copy does not run again after a change. Returns
/// the number of these tensors.
fn versions(live: &Liveness, kernels: &mut [Kernel]) -> usize {
    let changed = live.chunks.iter().filter(|chunk| chunk.host_accesses.iter().any(|access| access.writes));
    let mixed = changed.filter(|chunk| !chunk.accesses.is_empty());
    let mut next = live.chunks.len();
    for chunk in mixed {
        chunk.accesses.iter().for_each(|access| kernels[access.launch].reads.push(next));
        chunk
            .host_accesses
            .iter()
            .filter(|access| access.writes)
            .for_each(|access| kernels[access.launch].writes.push(next));
        next += 1;
    }
    next - live.chunks.len()
}

/// Returns the bytes per second that one direction carries in copies of whole chunks, on average over all their bytes.
fn rate_of_copies(way: LinkDirection, tensors: &[Tensor]) -> f64 {
    let share = |bytes: u64| 1.0 - way.latency_ns as f64 / way.ns(bytes).max(1) as f64;
    let bytes = tensors.iter().map(|tensor| tensor.size_bytes as f64).sum::<f64>();
    let across_steps = tensors.iter().map(|tensor| tensor.size_bytes as f64 * share(tensor.size_bytes)).sum::<f64>();
    way.bytes_per_second * if bytes > 0.0 { across_steps / bytes } else { 1.0 }
}
