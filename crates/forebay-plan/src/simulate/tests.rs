//! Hand-computed times of small plans, alone and together.

use super::*;
use crate::plan::{MemoryKind, PlanMemory, PlanStream};
use crate::testing::Random;
use crate::ways::{Disk, LinkDirection};
use forebay_base::kernel::Exchange;
use forebay_base::{Kernel, Launch, MemoryId, Region, StreamId};

/// One byte per nanosecond.
const WAY: LinkDirection = LinkDirection { bytes_per_second: 1e9, latency_ns: 0 };

/// Returns a plan with launches (their labels count up; `x` is an exchange), barriers, records and waits in one stream, and copies of
/// 100 bytes to the device (`i`), from the device (`o`) and from a disk (`d`) in three other streams.
fn plan(text: &str) -> Plan {
    let stream = StreamId(0);
    let part = |memory| Region::new(MemoryId(memory), 0, 100);
    let mut label = 0;
    let commands = text
        .chars()
        .map(|letter| match letter {
            '|' => Command::Barrier { stream },
            'r' => Command::Record { stream, event: EventId(0), generation: 1 },
            'w' => Command::Wait { stream, event: EventId(0), generation: 1 },
            'i' => Command::Copy { stream: StreamId(1), from: part(0), to: part(1) },
            'd' => Command::Copy { stream: StreamId(3), from: part(2), to: part(1) },
            'o' => Command::Copy { stream: StreamId(2), from: part(1), to: part(0) },
            _ => {
                label += 1;
                let (reads, writes) = (Vec::new(), Vec::new());
                let kernel = match letter {
                    'x' => Kernel::Exchange(Exchange::gather(label, 0, &[8, 8])),
                    _ => Kernel::Copy,
                };
                let launch = Launch { kernel, reads, writes, workspace: None, label: label - 1 };
                Command::Launch { stream, launch: Box::new(launch) }
            }
        })
        .collect();
    let memory = |kind, space| PlanMemory { kind, space, size_bytes: 100 };
    Plan {
        commands,
        streams: ["compute", "copy in", "copy out", "disk in"].map(|name| PlanStream { name: name.to_string() }).into(),
        memories: vec![
            memory(MemoryKind::HostBlock, Space::Host),
            memory(MemoryKind::Placed, Space::Device(0)),
            memory(MemoryKind::SpillFile, Space::Disk),
        ],
        ..Plan::default()
    }
}

/// Returns the costs of launches, given how long each takes alone and how many of 4 workers it can use.
fn costs(launches: &[(u64, f64)]) -> Costs {
    Costs {
        launch_ns: launches.iter().map(|launch| launch.0).collect(),
        launch_workers: launches.iter().map(|launch| launch.1).collect(),
        workers: 4.0,
        host_workers: 0.0,
        copy_worker_ns_per_byte: 0.0,
        step_ns: 0,
        link: Link { to_device: WAY, from_device: WAY, duplex: true, carries_disk: false },
        disk: Disk { read: WAY, write: WAY },
    }
}

fn step_ns(text: &str, launches: &[(u64, f64)]) -> u64 {
    simulate(&plan(text), &costs(launches)).step_ns
}

#[test]
fn small_launches_run_beside_each_other_and_large_ones_share() {
    assert_eq!(step_ns("aa", &[(100, 1.0), (100, 1.0)]), 100);
    assert_eq!(step_ns("a|a", &[(100, 1.0), (100, 1.0)]), 200);
    assert_eq!(step_ns("aa", &[(100, 4.0), (100, 4.0)]), 200, "each fills the machine");
    assert_eq!(step_ns("aa", &[(100, 3.0), (100, 3.0)]), 167, "600 workers' nanoseconds, 4 workers; at last only 3");
    assert_eq!(step_ns("aaaaa", &[(100, 1.0); 5]), 200);
}

#[test]
fn exchanges_share_the_network_and_leave_the_workers_to_kernels() {
    assert_eq!(step_ns("xa", &[(100, 4.0), (100, 4.0)]), 100);
    assert_eq!(step_ns("ax", &[(100, 4.0), (100, 4.0)]), 100, "also behind a kernel that has all workers");
    assert_eq!(step_ns("xx", &[(100, 4.0), (100, 4.0)]), 200);
    assert_eq!(step_ns("xaa", &[(100, 4.0), (100, 4.0), (100, 4.0)]), 200, "the second kernel waits for workers");
    assert_eq!(step_ns("x|a", &[(100, 4.0), (100, 4.0)]), 200);
}

/// The plan of a process, how long its launches take and how many workers they can use, and how slow it is.
type Given<'a> = (&'a str, &'a [(u64, f64)], f64);

/// Returns the predictions of processes.
fn together(processes: &[Given]) -> Result<Vec<Prediction>, PlanError> {
    let made: Vec<_> = processes.iter().map(|(text, launches, _)| (plan(text), costs(launches))).collect();
    let pairs = made.iter().zip(processes);
    let all = pairs.map(|((plan, costs), &(.., slowness))| Process { plan, costs, slowness });
    simulate_together(&all.collect::<Vec<_>>())
}

#[test]
fn an_exchange_waits_for_the_process_that_begins_it_last() {
    let fast = ("a|x|a", &[(100, 4.0), (50, 1.0), (10, 4.0)][..], 1.0);
    let slow = ("a|x|a", &[(300, 4.0), (50, 1.0), (10, 4.0)][..], 1.0);
    let all = together(&[fast, slow, fast]).unwrap();
    let numbers = |prediction: &Prediction| {
        (prediction.step_ns, prediction.busy_ns, prediction.waiting_ns, prediction.exchange_ns)
    };
    assert_eq!(numbers(&all[0]), (360, 110, 200, 50));
    assert_eq!(numbers(&all[1]), (360, 310, 0, 50));
    assert_eq!(all[2], all[0]);
    assert_eq!((all[0].times[2], all[1].times[2]), ((100, 350), (300, 350)), "its own exchange began earlier");
    // A kernel that runs meanwhile hides the wait.
    let hidden = together(&[("axa", &[(100, 4.0), (50, 1.0), (90, 4.0)], 1.0), slow]).unwrap();
    assert_eq!(numbers(&hidden[0]), (350, 190, 110, 50));
}

#[test]
fn a_slow_process_has_slow_kernels() {
    let costs = &[(100, 4.0), (50, 1.0), (10, 4.0)][..];
    let steps = |slowness| together(&[("ai|x|a", costs, 1.0), ("ai|x|a", costs, slowness)]).unwrap();
    assert_eq!(steps(1.0)[1].step_ns, 160);
    let all = steps(2.0);
    assert_eq!((all[0].step_ns, all[0].waiting_ns), (260, 100));
    assert_eq!((all[1].step_ns, all[1].busy_ns, all[1].waiting_ns), (270, 220, 0));
    assert_eq!(all[1].times[1], (0, 100), "a copy takes as long as on the others");
}

#[test]
fn exchanges_share_the_network_once_all_have_begun_them() {
    let costs = &[(100, 1.0), (100, 1.0)][..];
    let all = together(&[("xx", costs, 1.0), ("x|x", costs, 1.0)]).unwrap();
    assert_eq!(all[0].times, [(0, 100), (0, 200)], "the second one takes no bandwidth before both have begun it");
    assert_eq!((all[1].times[0], all[1].times[2]), ((0, 100), (100, 200)));
    let all = together(&[("xx", costs, 1.0), ("xx", costs, 1.0)]).unwrap();
    assert_eq!(all[0].times, [(0, 200), (0, 200)]);
    let uneven = together(&[("x", &[(100, 1.0)], 1.0), ("x", &[(130, 1.0)], 1.0)]).unwrap();
    assert_eq!((uneven[0].step_ns, uneven[1].step_ns), (130, 130), "the busiest process determines how long it takes");
}

#[test]
fn plans_that_do_not_pair_up_are_named() {
    let costs = &[(100, 1.0), (100, 1.0)][..];
    for (first, second, words) in [
        ("xx", "xa", "process 0 waits forever for exchange 2"),
        ("a", "awa", "process 1 waits forever before"),
        ("a", "", ""),
    ] {
        let all = together(&[(first, costs, 1.0), (second, costs, 1.0)]);
        assert_eq!(all.is_ok(), words.is_empty(), "{first} {second}");
        assert!(all.map_or_else(|error| error.to_string(), |_| String::new()).contains(words), "{first} {second}");
    }
}

#[test]
fn processes_that_are_alike_take_as_long_as_one_and_those_without_exchanges_are_independent() {
    for seed in 1..200 {
        let mut random = Random::new(seed);
        let mut process = |letters: &[u8]| {
            let mut letter = || char::from(letters[random.below(letters.len() as u64) as usize]);
            let text: String = (0..12).map(|_| letter()).collect::<String>() + "raw|x";
            let text = if letters.contains(&b'x') { text } else { text.replace('x', "a") };
            let costs: Vec<(u64, f64)> =
                (0..text.len()).map(|_| (random.below(1000), 1.0 + random.below(4) as f64)).collect();
            (text, costs)
        };
        let (text, launches) = process(b"aaxx|iod");
        let alone = simulate(&plan(&text), &costs(&launches));
        let own = (text.as_str(), &launches[..], 1.0);
        assert_eq!(together(&[own; 3]).unwrap(), [alone.clone(), alone.clone(), alone.clone()], "{text}");
        assert!(alone.busy_ns + alone.exchange_ns + alone.waiting_ns <= alone.step_ns + 1, "{text}: {alone:?}");
        let each = [process(b"aa|iod"), process(b"aa|iod")];
        let all = together(&each.each_ref().map(|(text, launches)| (text.as_str(), &launches[..], 1.0))).unwrap();
        assert_eq!(
            all[..],
            each.each_ref().map(|(text, launches)| simulate(&plan(text), &costs(launches))),
            "{each:?}"
        );
    }
}

#[test]
fn a_wait_lets_unrelated_work_go_on_where_a_barrier_stops_it() {
    let launches = [(10, 1.0), (200, 1.0), (100, 1.0)];
    assert_eq!(step_ns("ab|c", &launches), 300);
    assert_eq!(step_ns("arbwc", &launches), 200);
    assert_eq!(simulate(&plan("arbwc"), &costs(&launches)).times[4], (10, 110));
}

#[test]
fn directions_of_a_link_work_at_once_or_share_it() {
    let step = |text: &str, link: Link| simulate(&plan(text), &Costs { link, ..costs(&[]) }).step_ns;
    let duplex = costs(&[]).link;
    let shared = Link { duplex: false, ..duplex };
    assert_eq!((step("io", duplex), step("io", shared)), (100, 200));
    assert_eq!((step("ii", duplex), step("ii", shared)), (200, 200));
    assert_eq!((step("iio", duplex), step("iio", shared)), (200, 300), "the second copy to the device is alone again");
    let slow = LinkDirection { bytes_per_second: 0.5e9, latency_ns: 10 };
    assert_eq!(step("io", Link { from_device: slow, ..duplex }), 210);
    assert_eq!(step("io", Link { from_device: slow, ..shared }), 310, "either takes its own time on the link");
}

#[test]
fn a_link_that_carries_the_disk_is_shared_with_it() {
    let step = |text: &str, carries_disk, rate: f64| {
        let usual = costs(&[]);
        let read = LinkDirection { bytes_per_second: rate * 1e9, latency_ns: 0 };
        let (link, disk) = (Link { carries_disk, ..usual.link }, Disk { read, ..usual.disk });
        simulate(&plan(text), &Costs { link, disk, ..usual }).step_ns
    };
    assert_eq!((step("id", false, 1.0), step("id", true, 1.0)), (100, 200));
    assert_eq!((step("id", false, 0.25), step("id", true, 0.25)), (400, 400), "a slow disk loses nothing");
    assert_eq!((step("iid", false, 0.5), step("iid", true, 0.5)), (200, 300));
    assert_eq!((step("d", false, 4.0), step("d", true, 4.0)), (25, 100), "a fast disk is as fast as the link");
    assert_eq!((step("od", false, 1.0), step("od", true, 1.0)), (100, 100), "the other way is free");
}

#[test]
fn a_copy_keeps_workers_from_launches() {
    let step = |copy_worker_ns_per_byte, workers| {
        let launches = [(100, workers)];
        simulate(&plan("ai"), &Costs { copy_worker_ns_per_byte, ..costs(&launches) }).step_ns
    };
    assert_eq!((step(0.0, 4.0), step(1.0, 3.0)), (100, 100), "a worker is left for the copy, or it needs none");
    assert_eq!(step(1.0, 4.0), 125, "three workers of four for the first 100 ns");
    assert_eq!(step(0.5, 4.0), 113, "half a worker: the link is slower than a worker copies");
    assert_eq!(step(9.0, 4.0), 200, "copies go first, and there are four workers");
}

#[test]
fn copies_both_ways_share_the_workers() {
    let step = |text, worker_ns| {
        simulate(&plan(text), &Costs { copy_worker_ns_per_byte: worker_ns, ..costs(&[(100, 4.0)]) }).step_ns
    };
    assert_eq!((step("io", 2.0), step("io", 3.0)), (100, 150), "four workers, and six");
    assert_eq!((step("i", 3.0), step("iio", 3.0)), (100, 250));
    assert_eq!(step("aio", 3.0), 250, "600 worker-nanoseconds for copies, 400 for the launch");
}

#[test]
fn a_step_takes_time_beside_its_commands() {
    assert_eq!(simulate(&plan("a"), &Costs { step_ns: 7, ..costs(&[(100, 1.0)]) }).step_ns, 107);
}

#[test]
fn a_plan_that_waits_for_what_never_comes_still_ends() {
    assert_eq!(step_ns("awa", &[(100, 1.0), (100, 1.0)]), 100);
}
