//! Workloads for tests.

use crate::workload::{Kernel, Machine, Tensor, Workload};
use forebay_testing::Random;

/// A machine whose memory holds exactly the largest kernel, plus a share of what is live beyond that (in percent).
fn machine(workload: &Workload, share: u64, random: &mut Random) -> Machine {
    let least = workload.kernels.iter().map(|kernel| workload.working_set_bytes(kernel)).max().unwrap_or(0);
    let most = crate::workload::live_peak_bytes(workload);
    let spare = most.saturating_sub(least);
    let link_bytes_per_s = [1 << 28, 1 << 30, 16 << 30, 900 << 30][random.below(4) as usize];
    Machine {
        device_memory_bytes: least + spare * share / 100,
        host_memory_bytes: [spare / 3, spare / 8, 0, 1 << 40, 1 << 40, 1 << 40][random.below(6) as usize],
        link_bytes_per_s,
        ssd_read_bytes_per_s: link_bytes_per_s / (1 + random.below(6)),
        ssd_write_bytes_per_s: link_bytes_per_s / (1 + random.below(6)),
    }
}

const NO_MACHINE: Machine = Machine {
    device_memory_bytes: 0,
    host_memory_bytes: 0,
    link_bytes_per_s: 1,
    ssd_read_bytes_per_s: 1,
    ssd_write_bytes_per_s: 1,
};

/// A network: layers forward, then backward in the opposite order, with weights that are updated in place.
pub fn network(seed: u64, share: u64) -> Workload {
    let mut random = Random::new(seed);
    let layers = 2 + random.below(4) as usize;
    let mut workload = Workload { tensors: Vec::new(), kernels: Vec::new(), machine: NO_MACHINE };
    let add = |workload: &mut Workload, random: &mut Random, persistent: bool| {
        let size_bytes = if random.once_in(9) { random.below(9000) } else { 4096 * (1 + random.below(40_000)) };
        workload.tensors.push(Tensor { size_bytes, persistent });
        workload.tensors.len() - 1
    };
    let weights: Vec<usize> = (0..layers).map(|_| add(&mut workload, &mut random, true)).collect();
    let activations: Vec<usize> = (0..=layers).map(|_| add(&mut workload, &mut random, false)).collect();
    for layer in 0..layers {
        let mut writes = vec![activations[layer + 1]];
        if random.once_in(3) {
            writes.push(add(&mut workload, &mut random, false));
        }
        push(&mut workload, &mut random, "forward", vec![weights[layer], activations[layer]], writes);
    }
    let mut gradient = add(&mut workload, &mut random, false);
    push(&mut workload, &mut random, "loss", vec![activations[layers]], vec![gradient]);
    for layer in (0..layers).rev() {
        let (below, own) = (add(&mut workload, &mut random, false), add(&mut workload, &mut random, false));
        push(
            &mut workload,
            &mut random,
            "backward",
            vec![weights[layer], activations[layer], gradient],
            vec![below, own],
        );
        push(&mut workload, &mut random, "update", vec![own, weights[layer]], vec![weights[layer]]);
        gradient = below;
    }
    workload.machine = machine(&workload, share, &mut random);
    workload
}

/// Kernels that touch anything in any way.
pub fn tangle(seed: u64, share: u64) -> Workload {
    let mut random = Random::new(seed);
    let (tensors, kernels) = (2 + random.below(7) as usize, 2 + random.below(10));
    let mut workload = Workload { tensors: Vec::new(), kernels: Vec::new(), machine: NO_MACHINE };
    for _ in 0..tensors {
        let size_bytes = if random.once_in(9) { random.below(9000) } else { 4096 * (1 + random.below(40_000)) };
        workload.tensors.push(Tensor { size_bytes, persistent: random.once_in(2) });
    }
    for _ in 0..kernels {
        let choose = |random: &mut Random| (0..tensors).filter(|_| random.once_in(4)).collect::<Vec<usize>>();
        let (reads, writes) = (choose(&mut random), choose(&mut random));
        push(&mut workload, &mut random, "kernel", reads, writes);
    }
    workload.machine = machine(&workload, share, &mut random);
    workload
}

/// A workload of tensors of 1 MiB that do not persist, kernels of a microsecond without workspace, and a device that holds some of them.
fn plain(
    tensors: usize,
    kernels: Vec<(Vec<usize>, Vec<usize>)>,
    device_tensors: u64,
    link_bytes_per_s: u64,
) -> Workload {
    let kernel =
        |(reads, writes)| Kernel { name: "kernel".to_owned(), duration_ns: 1000, reads, writes, workspace_bytes: 0 };
    Workload {
        tensors: vec![Tensor { size_bytes: 1 << 20, persistent: false }; tensors],
        kernels: kernels.into_iter().map(kernel).collect(),
        machine: Machine {
            device_memory_bytes: device_tensors << 20,
            host_memory_bytes: 1 << 40,
            link_bytes_per_s,
            ssd_read_bytes_per_s: link_bytes_per_s,
            ssd_write_bytes_per_s: link_bytes_per_s,
        },
    }
}

/// A chain of layers forward, each of which reads the tensor of the one before, then backward.
pub fn there_and_back(layers: usize, device_tensors: u64, link_bytes_per_s: u64) -> Workload {
    // The activations come first, then the gradients.
    let mut kernels: Vec<(Vec<usize>, Vec<usize>)> = (0..layers).map(|layer| (vec![layer], vec![layer + 1])).collect();
    kernels.push((vec![layers], vec![layers + 1]));
    kernels.extend((0..layers).map(|back| (vec![layers - 1 - back, layers + 1 + back], vec![layers + 2 + back])));
    plain(2 * layers + 2, kernels, device_tensors, link_bytes_per_s)
}

/// Layers of tensors that are each made from all tensors of the layer before; the last ones are read again much later.
pub fn fan(layers: usize, width: usize) -> Workload {
    let layer = |number: usize| (number * width..(number + 1) * width).collect::<Vec<usize>>();
    let mut kernels: Vec<(Vec<usize>, Vec<usize>)> =
        layer(0).into_iter().map(|tensor| (vec![], vec![tensor])).collect();
    for number in 1..=layers {
        kernels.extend(layer(number).into_iter().map(|tensor| (layer(number - 1), vec![tensor])));
    }
    let first = (layers + 1) * width;
    kernels.push((layer(layers), vec![first]));
    kernels.extend((first..first + 30).map(|tensor| (vec![tensor], vec![tensor + 1])));
    kernels.push(([layer(layers), vec![first + 30]].concat(), vec![first + 31]));
    let mut workload = plain(first + 32, kernels, 2 * width as u64 + 3, 1 << 40);
    let large = workload.kernels.len() - 31;
    workload.kernels[large..large + 30].iter_mut().for_each(|kernel| kernel.workspace_bytes = (2 * width as u64) << 20);
    workload
}

fn push(workload: &mut Workload, random: &mut Random, name: &str, mut reads: Vec<usize>, mut writes: Vec<usize>) {
    reads.sort_unstable();
    writes.sort_unstable();
    let duration_ns = if random.once_in(8) { random.below(3) } else { 1000 + random.below(20_000_000) };
    let workspace_bytes = if random.once_in(3) { 4096 * random.below(20_000) } else { 0 };
    let name = format!("{name}{}", workload.kernels.len());
    workload.kernels.push(Kernel { name, duration_ns, reads, writes, workspace_bytes });
}
