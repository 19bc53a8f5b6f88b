//! The planner, the bound, demand paging and the verifier judge each other on random workloads.

use crate::swap::bound::lower_bound_ns;
use crate::swap::lru::demand_lru;
use crate::swap::planner::plan;
use crate::swap::testing::{network, tangle};
use crate::swap::verify::verify;
use crate::swap::workload::Workload;

fn workloads(count: u64) -> impl Iterator<Item = (String, Workload)> {
    let shares = [0, 10, 40, 70, 100];
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
    for (name, workload) in workloads(10) {
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
