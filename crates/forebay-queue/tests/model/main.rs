//! The state machines of streams and events under a model checker: every schedule of small cases with a bounded number of
//! delays, and many random ones of larger cases. `cargo test -p forebay-queue --features shuttle --test model --
//! --nocapture` prints the number of schedules.
//!
//! The checker reports a wait that would never end as a deadlock, and it also reports a panic in any thread. What may start and fire at
//! which time is compared with a naive model of the contract (`bench.rs`).

mod bench;
mod workers;

use std::sync::Arc;

use forebay_base::{Command, EventId, StreamId};
use forebay_queue::bounded::BoundedScheduler;
use forebay_testing::Random;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use bench::{Bench, EVENT, barrier, record, wait, work};

/// Explores every schedule with at most `delays_max` delays.
fn explore(name: &str, delays_max: usize, case: impl Fn() + Send + Sync + 'static) {
    let schedules = Runner::new(BoundedScheduler::new(delays_max), Config::new()).run(case);
    match delays_max {
        ANY => println!("| {name} | all | {schedules} |"),
        _ => println!("| {name} | all with up to {delays_max} delays | {schedules} |"),
    }
}

/// No bound on delays.
const ANY: usize = usize::MAX;

/// Explores random schedules, half of them with a few changes of priority at random places (which finds mistakes that need
/// few switches with a known probability), half of them with a switch anywhere.
fn sample(name: &str, seed: u64, schedules: usize, case: impl Fn() + Send + Sync + Clone + 'static) -> usize {
    let config = Config::new;
    let few = PctScheduler::new_from_seed(seed, 3, schedules / 2);
    let any = RandomScheduler::new_from_seed(seed, schedules - schedules / 2);
    let count = Runner::new(few, config()).run(case.clone()) + Runner::new(any, config()).run(case);
    if !name.is_empty() {
        println!("| {name} | random | {count} |");
    }
    count
}

#[test]
fn an_event_fires_when_the_work_before_it_is_done() {
    explore("work, record; the host waits (2 threads)", 4, || {
        let commands = [work(0, 0), record(0, EVENT, 1)];
        let bench = Bench::new(1, 1, &commands, None);
        bench.submit(&commands);
        bench.wait_event(EVENT, 1).expect("no failure");
    });
}

#[test]
fn records_fire_in_order_and_hold_up_nothing() {
    explore("work, record, work, record on 2 workers; the host looks and waits (3 threads)", 3, || {
        let commands = [work(0, 0), record(0, EVENT, 1), work(0, 1), record(0, EventId(1), 1)];
        let bench = Bench::new(1, 2, &commands, None);
        bench.submit(&commands);
        bench.observe();
        bench.observe();
        bench.wait_event(EventId(1), 1).expect("no failure");
        bench.observe();
    });
}

#[test]
fn barriers_hold_and_a_synchronized_stream_is_dry() {
    explore("2 x work, barrier, work, record on 2 workers; synchronize (3 threads)", 3, || {
        let commands = [work(0, 0), work(0, 1), barrier(0), work(0, 2), record(0, EVENT, 1)];
        let bench = Bench::new(1, 2, &commands, None);
        bench.submit(&commands);
        bench.synchronize(0).expect("no failure");
    });
}

#[test]
fn dropping_streams_waits_for_everything() {
    explore("3 x work, records between on 2 workers; dropped at once (3 threads)", 3, || {
        let commands = [work(0, 0), record(0, EVENT, 1), work(0, 1), record(0, EVENT, 2), work(0, 2)];
        Bench::new(1, 2, &commands, None).submit(&commands);
    });
}

#[test]
fn waits_between_streams_hold() {
    explore("2 streams, 2 workers: work, record | wait, work; synchronize both (3 threads)", 3, || {
        let commands = [work(0, 0), record(0, EVENT, 1), wait(1, EVENT, 1), work(1, 1)];
        let bench = Bench::new(2, 2, &commands, None);
        bench.submit(&commands);
        bench.synchronize(1).expect("no failure");
        bench.synchronize(0).expect("no failure");
    });
}

#[test]
fn an_event_lets_all_go_on_that_wait_for_it() {
    explore("work, barrier, record; 2 streams wait, 2 workers; synchronize both (3 threads)", 3, || {
        let first = [work(0, 0), barrier(0), record(0, EVENT, 1)];
        let commands = [&first[..], &[wait(1, EVENT, 1), work(1, 1)], &[wait(2, EVENT, 1), work(2, 2)]].concat();
        let bench = Bench::new(3, 2, &commands, None);
        bench.submit(&commands);
        bench.synchronize(2).expect("no failure");
        bench.synchronize(1).expect("no failure");
    });
}

#[test]
fn streams_take_turns() {
    explore("2 streams of 2 workers take 3 turns by one event; the host waits (3 threads)", 3, || {
        let turn = |stream, index| [work(stream, index), record(stream, EVENT, index + 1)];
        let [first, second, third] = [turn(0, 0), turn(1, 1), turn(0, 2)];
        let commands = [&first[..], &[wait(1, EVENT, 1)], &second, &[wait(0, EVENT, 2)], &third].concat();
        let bench = Bench::new(2, 2, &commands, None);
        bench.submit(&commands);
        bench.wait_event(EVENT, 3).expect("no failure");
    });
}

#[test]
fn everybody_who_waits_is_woken() {
    explore("work, record; two threads of the host wait (3 threads)", 3, || {
        let commands = [work(0, 0), record(0, EVENT, 1)];
        let bench = Arc::new(Bench::new(1, 1, &commands, None));
        let other = bench.clone();
        let waiter = thread::spawn(move || {
            let mut latest = 0;
            for _ in 0..2 {
                let fired = other.progress.fired(EVENT);
                assert!(fired >= latest, "what has fired never goes back");
                latest = fired;
            }
            other.wait_event(EVENT, 1).expect("no failure");
        });
        bench.submit(&commands);
        bench.wait_event(EVENT, 1).expect("no failure");
        waiter.join().expect("no panic");
    });
}

#[test]
fn work_may_be_done_by_the_thread_that_begins_it() {
    explore(
        "2 streams, 1 worker: work, record, work at once | wait, work at once, barrier, work (2 threads)",
        3,
        || {
            let first = [work(0, 0), record(0, EVENT, 1), work(0, 1)];
            let commands = [&first[..], &[wait(1, EVENT, 1), work(1, 2), barrier(1), work(1, 3)]].concat();
            let bench = Bench::at_once(2, 1, &commands, None, 0b110);
            bench.submit(&commands);
            bench.observe();
            bench.synchronize(1).expect("no failure");
            bench.synchronize(0).expect("no failure");
        },
    );
    explore("2 streams, no worker: all at once, from two threads (2 threads)", 4, || {
        let commands = [work(0, 0), barrier(0), work(0, 1), work(1, 2), barrier(1), work(1, 3)];
        let bench = Arc::new(Bench::at_once(2, 0, &commands, None, 0b1111));
        let (other, second) = (bench.clone(), commands[3..].to_vec());
        let submitting = thread::spawn(move || other.submit(&second));
        bench.submit(&commands[..3]);
        bench.synchronize(0).expect("no failure");
        submitting.join().expect("no panic");
        bench.synchronize(1).expect("no failure");
    });
}

#[test]
fn a_failure_ends_every_wait() {
    explore("2 streams, 2 workers: failing work, record | wait, work, record; the host waits (3 threads)", 3, || {
        let other = EventId(1);
        let commands =
            [work(0, 0), record(0, EVENT, 1), wait(1, EVENT, 1), work(1, 1), record(1, other, 1), barrier(1)];
        let bench = Bench::new(2, 2, &commands, Some(0));
        bench.submit(&commands);
        bench.observe();
        assert!(bench.wait_event(other, 1).is_err(), "the failure came first");
        assert!(bench.synchronize(1).is_err());
    });
    explore("a failure from elsewhere while the host waits for what never comes (2 threads)", ANY, || {
        let bench = Arc::new(Bench::new(0, 0, &[], None));
        let other = bench.clone();
        bench.progress.add_event(EVENT);
        let failing = thread::spawn(move || other.progress.fail("elsewhere"));
        assert_eq!(bench.progress.wait(EVENT, 1), Err("elsewhere"));
        failing.join().expect("no panic");
    });
    explore("a failure from elsewhere while a stream waits for what does not come (2 threads)", 4, || {
        let commands = [work(0, 0), record(0, EVENT, 1), wait(1, EVENT, 1), work(1, 1)];
        let bench = Arc::new(Bench::new(2, 0, &commands, Some(0)));
        let other = bench.clone();
        let failing = thread::spawn(move || other.progress.fail("elsewhere"));
        bench.submit(&commands);
        assert_eq!(bench.synchronize(1), Err("elsewhere"));
        failing.join().expect("no panic");
        bench.give_up();
    });
}

#[test]
fn a_stream_may_go_while_others_wait_for_it() {
    explore("work, record; one thread synchronizes, one destroys the stream (3 threads)", 3, || {
        let commands = [work(0, 0), record(0, EVENT, 1)];
        let bench = Arc::new(Bench::new(1, 1, &commands, None));
        bench.submit(&commands);
        let other = bench.clone();
        let destroying = thread::spawn(move || other.streams().destroy(StreamId(0)));
        bench.streams().synchronize(StreamId(0)).expect("no failure");
        destroying.join().expect("no panic");
        bench.wait_event(EVENT, 1).expect("it fired, whoever came first");
    });
}

#[test]
fn lists_of_several_threads_do_not_mix_up_waits_and_records() {
    explore("a list with record and one with its wait from two threads (3 threads)", 3, || {
        let commands = [work(0, 0), record(0, EVENT, 1), wait(0, EVENT, 1), work(0, 1)];
        let bench = Arc::new(Bench::new(1, 1, &commands, None));
        let (other, first) = (bench.clone(), commands[..2].to_vec());
        let submitting = thread::spawn(move || other.submit(&first));
        // The list is refused until the record is in its stream.
        while bench.streams().submit(&commands[2..], vec![1]).is_err() {
            thread::yield_now();
        }
        submitting.join().expect("no panic");
        bench.synchronize(0).expect("no failure");
    });
}

/// The checker's threads have small stacks, which nested drops would overflow.
#[test]
fn many_records_that_fire_at_once_need_no_stack() {
    const RECORDS: u64 = 2_000;
    sample("work, 2,000 records; the host waits for the last (2 threads)", 1, 20, || {
        let records = (1..=RECORDS).map(|generation| record(0, EVENT, generation));
        let commands: Vec<Command> = std::iter::once(work(0, 0)).chain(records).collect();
        let bench = Bench::new(1, 1, &commands, None);
        bench.submit(&commands);
        bench.wait_event(EVENT, RECORDS).expect("no failure");
    });
}

/// A random list of valid commands, in which every record has its own event.
fn random_commands(random: &mut Random, stream_count: u32) -> Vec<Command> {
    let mut below = |limit: u64| random.below(limit);
    let (mut commands, mut works, mut events) = (Vec::new(), 0, 0);
    for _ in 0..4 + below(9) {
        let stream = below(u64::from(stream_count)) as u32;
        match below(8) {
            0 => commands.push(barrier(stream)),
            1 | 2 => {
                commands.push(record(stream, EventId(events), 1));
                events += 1;
            }
            3 | 4 if events > 0 => commands.push(wait(stream, EventId(below(u64::from(events)) as u32), 1)),
            _ => {
                commands.push(work(stream, works));
                works += 1;
            }
        }
    }
    commands
}

#[test]
fn random_programs_keep_the_contract() {
    const PROGRAMS: u64 = 150;
    let mut schedules = 0;
    for seed in 1..=PROGRAMS {
        let mut random = Random::new(seed);
        let stream_count = 1 + (seed % 3) as u32;
        let commands = random_commands(&mut random, stream_count);
        let works = commands.iter().filter(|command| command.is_work()).count() as u64;
        let failing = (works > 0 && seed % 4 == 0).then(|| random.below(works));
        let at_once = if seed % 3 == 0 { random.below(1 << works) } else { 0 };
        schedules += sample("", seed, 60, move || {
            let bench = Bench::at_once(stream_count, 2, &commands, failing, at_once);
            let middle = commands.len() / 2;
            bench.submit(&commands[..middle]);
            bench.observe();
            bench.submit(&commands[middle..]);
            bench.observe();
            for stream in 0..stream_count {
                assert!(bench.synchronize(stream).is_ok() || failing.is_some());
                bench.observe();
            }
        });
    }
    println!(
        "| {PROGRAMS} random programs, up to 3 streams and 2 workers, every fourth fails (3 threads) | random | {schedules} |"
    );
}
