//! Threads that share work: every task of a loop runs once, and before the loop ends; every job runs; no worker sleeps while work waits.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use forebay_queue::Workers;
use forebay_queue::shim::sync::Arc;
use forebay_queue::shim::thread::{self, JoinHandle};
use forebay_queue::workers::Tasks;

use super::{explore, sample};

/// The tasks of a loop, and whether the loop is over.
#[derive(Clone)]
struct Counted {
    counts: Arc<Vec<AtomicU32>>,
    over: Arc<AtomicBool>,
}

impl Counted {
    fn new(count: u32) -> Counted {
        Counted {
            counts: Arc::new((0..count).map(|_| AtomicU32::new(0)).collect()),
            over: Arc::new(AtomicBool::new(false)),
        }
    }
}

impl Tasks for Counted {
    fn run(&self, task: u32) {
        thread::yield_now();
        assert!(!self.over.load(Ordering::SeqCst), "task {task} runs after its loop");
        self.counts[task as usize].fetch_add(1, Ordering::SeqCst);
    }
}

/// Workers of which the first is not started: the calling thread takes its number.
fn workers(count: usize) -> (Arc<Workers<Counted>>, Vec<JoinHandle<()>>) {
    let workers = Arc::new(Workers::new(count));
    let start = |worker| {
        let workers = workers.clone();
        thread::spawn(move || workers.work(worker))
    };
    let threads = (1..count).map(start).collect();
    (workers, threads)
}

fn run_loop(workers: &Workers<Counted>, worker: usize, count: u32) {
    let tasks = Counted::new(count);
    workers.run_loop(worker, count, tasks.clone());
    tasks.over.store(true, Ordering::SeqCst);
    let counts: Vec<u32> = tasks.counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    assert!(counts.iter().all(|&count| count == 1), "{counts:?}");
}

fn end(workers: &Workers<Counted>, threads: Vec<JoinHandle<()>>) {
    workers.close();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// A loop on 2 workers.
fn loop_case(count: u32) {
    let (workers, threads) = workers(2);
    run_loop(&workers, 0, count);
    end(&workers, threads);
}

/// One loop after another on 3 workers.
fn loops_case() {
    let (workers, threads) = workers(3);
    run_loop(&workers, 0, 4);
    run_loop(&workers, 0, 2);
    end(&workers, threads);
}

/// Two jobs on 2 workers, of which the calling thread does none; the first spawns the last.
fn jobs_case() {
    let (workers, threads) = workers(2);
    let done = Arc::new(AtomicU32::new(0));
    let job = {
        let (workers, done) = (workers.clone(), done.clone());
        move || {
            let last = done.clone();
            workers.spawn(Box::new(move || _ = last.fetch_add(1, Ordering::SeqCst)));
            done.fetch_add(1, Ordering::SeqCst);
        }
    };
    workers.spawn(Box::new(job));
    workers.spawn({
        let done = done.clone();
        Box::new(move || _ = done.fetch_add(1, Ordering::SeqCst))
    });
    while done.load(Ordering::SeqCst) < 3 {
        thread::yield_now();
    }
    end(&workers, threads);
}

/// A worker's job with a loop next to a loop of the calling thread, on 2 workers.
fn two_loops_case() {
    let (workers, threads) = workers(2);
    let own = workers.clone();
    workers.spawn(Box::new(move || run_loop(&own, 1, 2)));
    run_loop(&workers, 0, 2);
    end(&workers, threads);
}

#[test]
fn loops_end_when_their_tasks_are_done() {
    explore("a loop of 3 tasks on 2 workers (2 threads)", 3, || loop_case(3));
    explore("a loop of 1 task on 2 workers (2 threads)", 4, || loop_case(1));
    explore("loops of 4 and 2 tasks on 3 workers (3 threads)", 2, loops_case);
    sample("loops of 4 and 2 tasks on 3 workers (3 threads)", 1, 4000, loops_case);
}

#[test]
fn jobs_and_loops_wait_for_no_one_who_sleeps() {
    explore("3 jobs on a worker (2 threads)", 3, jobs_case);
    explore("a job with a loop, and a loop outside of it, on 2 workers (2 threads)", 3, two_loops_case);
    sample("a job with a loop, and a loop outside of it, on 2 workers (2 threads)", 2, 4000, two_loops_case);
}
