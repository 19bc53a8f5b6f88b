//! Checks the planner, the bound, demand paging and the verifier against each other on random workloads.

use crate::bound::lower_bound_ns;
use crate::launches::{plan_launches, recomputations};
use crate::lru::demand_lru;
use crate::planner::{in_order, plan, pressed};
use crate::schedule::{MemorySpace, Schedule};
use crate::testing::{fan, network, tangle, there_and_back};
use crate::verify::verify;
use crate::workload::{MOST_BYTES, SwapError, Workload};

fn workloads(count: u64) -> impl Iterator<Item = (String, Workload)> {
    let shares = [40, 0, 10, 70, 100];
    (0..count).flat_map(move |seed| {
        let share = shares[(seed % 5) as usize];
        [
            (format!("network {seed} {share}"), network(seed, share)),
            (format!("tangle {seed} {share}"), tangle(seed, share)),
        ]
    })
}

#[test]
fn plans_keep_the_rules_and_the_bound() {
    for (name, workload) in workloads(200) {
        let schedule = plan(&workload, &mut |_| ()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let account = verify(&workload, &schedule).unwrap_or_else(|fault| panic!("{name}: {fault}\n{workload:?}"));
        let bound_ns = lower_bound_ns(&workload).unwrap();
        assert!(account.step_ns >= bound_ns, "{name}: {} < {bound_ns}", account.step_ns);
    }
}

#[test]
fn demand_paging_keeps_the_rules_and_the_bound() {
    for (name, workload) in workloads(40) {
        let schedule = demand_lru(&workload).unwrap_or_else(|error| panic!("{name}: {error}"));
        let account = verify(&workload, &schedule).unwrap_or_else(|fault| panic!("{name}: {fault}\n{workload:?}"));
        let bound_ns = lower_bound_ns(&workload).unwrap();
        assert!(account.step_ns >= bound_ns, "{name}: {} < {bound_ns}", account.step_ns);
    }
}

#[test]
fn tensors_without_bytes_never_move() {
    for (name, mut workload) in workloads(40) {
        workload.tensors.iter_mut().step_by(3).for_each(|tensor| tensor.size_bytes = 0);
        let schedule = plan(&workload, &mut |_| ()).unwrap_or_else(|error| panic!("{name}: {error}"));
        verify(&workload, &schedule).unwrap_or_else(|fault| panic!("{name}: {fault}\n{workload:?}"));
        for launches in [demand_lru(&workload).ok(), plan_launches(&workload)].into_iter().flatten() {
            verify(&workload, &launches).unwrap_or_else(|fault| panic!("{name}: {fault}\n{workload:?}"));
        }
        recomputations(&workload);
    }
}

#[test]
fn launches_that_repeat_are_found_once_and_keep_the_order_of_kernels() {
    let mut recomputing = 0;
    for (name, workload) in workloads(200) {
        let found = recomputations(&workload);
        recomputing += usize::from(!found.is_empty());
        for (number, launches) in found.iter().enumerate() {
            let kernels: Vec<usize> = launches.iter().filter(|launch| !launch.1).map(|launch| launch.0).collect();
            assert_eq!(kernels, (0..workload.kernels.len()).collect::<Vec<usize>>(), "{name}");
            assert!(launches.len() > kernels.len(), "{name}: nothing runs again");
            assert!(!found[..number].contains(launches), "{name}: found twice");
            for (place, (kernel, _)) in launches.iter().enumerate().filter(|(_, launch)| launch.1) {
                assert!(launches[..place].contains(&(*kernel, false)), "{name}: {kernel} runs again before it runs");
                assert!(!workload.kernels[*kernel].updates_in_place(), "{name}: {kernel} updates twice");
            }
        }
    }
    assert!(recomputing > 10, "{recomputing} of them repeat something");
}

/// A schedule with one change, and what the verifier should find wrong.
fn refused(workload: &Workload, schedule: &Schedule, what: &str) {
    assert!(verify(workload, schedule).is_err(), "{what} was not noticed");
}

#[test]
fn changed_schedules_are_refused() {
    let mut transfers = 0;
    for (name, workload) in workloads(1) {
        let schedule = plan(&workload, &mut |_| ()).unwrap();
        let account = verify(&workload, &schedule).unwrap();
        for index in (0..schedule.transfers.len()).step_by(29) {
            transfers += 1;
            let mut changed = schedule.clone();
            changed.transfers.remove(index);
            refused(&workload, &changed, &format!("{name}: transfer {index} left out"));
            let mut changed = schedule.clone();
            let transfer = &mut changed.transfers[index];
            (transfer.start_ns, transfer.end_ns) =
                (transfer.start_ns + schedule.step_ns, transfer.end_ns + schedule.step_ns);
            refused(&workload, &changed, &format!("{name}: transfer {index} a step later"));
            let mut changed = schedule.clone();
            changed.transfers[index].piece.size_bytes += 1;
            refused(&workload, &changed, &format!("{name}: transfer {index} a byte longer"));
        }
        for index in (0..schedule.drops.len()).step_by(29) {
            let mut changed = schedule.clone();
            // What is dead on the device may as well be written over.
            if changed.drops.remove(index).place == MemorySpace::Device {
                continue;
            }
            refused(&workload, &changed, &format!("{name}: drop {index} left out"));
        }
        for index in 0..schedule.launches.len() {
            let mut changed = schedule.clone();
            changed.launches.remove(index);
            if !schedule.launches[index].recomputation {
                refused(&workload, &changed, &format!("{name}: launch {index} left out"));
            }
            let mut changed = schedule.clone();
            changed.launches[index].recomputation ^= true;
            refused(&workload, &changed, &format!("{name}: launch {index} under another name"));
        }
        let mut smaller = workload.clone();
        smaller.machine.device_memory_bytes = account.device_peak_bytes - 1;
        refused(&smaller, &schedule, &format!("{name}: a byte less on the device"));
        let mut slower = workload.clone();
        slower.machine.link_bytes_per_s /= 1000;
        if !schedule.transfers.is_empty() {
            refused(&slower, &schedule, &format!("{name}: a slower link"));
        }
    }
    assert!(transfers > 5, "only {transfers} transfers were changed");
}

#[test]
fn plans_are_deterministic() {
    for (name, workload) in workloads(1) {
        assert_eq!(plan(&workload, &mut |_| ()), plan(&workload, &mut |_| ()), "{name}");
    }
}

/// Nothing can cross during the kernels alone, but all that is dropped can be computed again in no time.
#[test]
fn short_kernels_behind_a_slow_link_run_again_instead_of_waiting() {
    let workload = there_and_back(10, 8, 1 << 30);
    let account = verify(&workload, &plan(&workload, &mut |_| ()).unwrap()).unwrap();
    assert!(account.recomputed_kernels > 0 && account.step_ns < 100 * workload.ideal_ns(), "{account:?}");
    assert!(!recomputations(&workload).is_empty());
}

/// This takes very long if the cost of a tensor is computed again for each path that leads to it.
#[test]
fn costs_of_tensors_made_from_many_are_found_once() {
    for width in [3, 16] {
        let workload = fan(10, width);
        let pressed = pressed(&workload, &in_order(&workload));
        assert!(pressed.contains(&true), "nothing is dropped, so no cost is asked for");
        recomputations(&workload);
    }
}

#[test]
fn memories_without_limit_are_as_good_as_large_ones() {
    for (name, mut workload) in workloads(10) {
        workload.machine.host_memory_bytes = MOST_BYTES;
        let large = plan(&workload, &mut |_| ());
        workload.machine.host_memory_bytes = u64::MAX;
        assert_eq!(plan(&workload, &mut |_| ()), large, "{name}");
        for device_memory_bytes in [1 << 63, u64::MAX] {
            workload.machine.device_memory_bytes = device_memory_bytes;
            assert!(plan(&workload, &mut |_| ()).is_ok_and(|schedule| schedule.transfers.is_empty()), "{name}");
        }
    }
}

#[test]
fn the_memory_that_a_refusal_names_suffices() {
    let mut workload = there_and_back(10, 22, 1 << 30);
    workload.machine.device_memory_bytes = 1;
    // The first kernel touches fewer tensors than others.
    let Err(SwapError::DeviceMemory { kernel, needed_bytes, .. }) = workload.validate() else { panic!("it fits") };
    assert!(kernel > 0, "kernel {kernel}");
    workload.machine.device_memory_bytes = needed_bytes - 1;
    assert!(workload.validate().is_err());
    workload.machine.device_memory_bytes = needed_bytes;
    assert_eq!(workload.validate(), Ok(()));
}

#[test]
fn rates_and_lists_that_mean_nothing_are_refused() {
    let refused = |workload: &Workload, words: &str| {
        for error in [plan(workload, &mut |_| ()).err(), demand_lru(workload).err()] {
            let Some(SwapError::Meaning { reason }) = error else { panic!("{words}: {error:?}") };
            assert!(reason.contains(words), "{reason}");
        }
    };
    let workload = network(1, 10);
    // Gigabytes per second were meant.
    let mut slow = workload.clone();
    slow.machine.link_bytes_per_s = 16;
    slow.tensors.iter_mut().for_each(|tensor| tensor.size_bytes <<= 10);
    slow.machine.device_memory_bytes <<= 11;
    refused(&slow, "link_bytes_per_s is 16; the");
    let mut slow = workload.clone();
    (slow.machine.ssd_write_bytes_per_s, slow.machine.host_memory_bytes) = (1, 0);
    refused(&slow, "ssd_write_bytes_per_s is 1; the");
    slow.machine.host_memory_bytes = 1 << 40;
    assert_eq!(slow.validate(), Ok(()), "the SSD is not used");
    let mut nominal = there_and_back(10, 22, 1);
    nominal.machine.host_memory_bytes = 0;
    for schedule in [plan(&nominal, &mut |_| ()), demand_lru(&nominal)] {
        assert!(schedule.is_ok_and(|schedule| schedule.transfers.is_empty()), "nothing has to cross");
    }
    for (what, list) in [("reads", vec![3, 1]), ("reads", vec![2, 2]), ("writes", vec![3, 1])] {
        let mut mixed = workload.clone();
        let kernel = &mut mixed.kernels[0];
        match what {
            "reads" => kernel.reads = list,
            _ => kernel.writes = list,
        }
        refused(&mixed, &format!("{what} must be in ascending order"));
    }
}

#[test]
fn a_kernel_that_does_not_fit_is_named() {
    let mut workload = network(1, 0);
    workload.machine.device_memory_bytes -= 1;
    let error = plan(&workload, &mut |_| ()).unwrap_err().to_string();
    let needed_bytes = workload.machine.device_memory_bytes + 1;
    assert!(error.contains("kernel") && error.contains(&needed_bytes.to_string()), "{error}");
}

/// How much longer than the bound plans take, on average, which would show a change in the planner's order of decisions.
#[test]
fn plans_are_near_the_bound_and_never_behind_demand_paging() {
    let mut over_bound = Vec::new();
    for seed in 0..24 {
        let workload = network(seed, 10 + 4 * seed);
        let planned = plan(&workload, &mut |_| ()).unwrap();
        if let Ok(paged) = demand_lru(&workload) {
            assert!(planned.step_ns <= paged.step_ns, "{seed}: {} > {}", planned.step_ns, paged.step_ns);
        }
        over_bound.push(planned.step_ns as f64 / lower_bound_ns(&workload).unwrap().max(1) as f64);
    }
    let average = over_bound.iter().map(|over| over.ln()).sum::<f64>() / over_bound.len() as f64;
    assert!(average.exp() < 2.0, "{} times the bound on average: {over_bound:?}", average.exp());
}
