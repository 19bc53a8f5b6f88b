//! The connection under a model checker: two or three processes as threads of one process, each with its MPI thread, in every schedule with
//! a bounded number of delays and in many random schedules. `cargo test -p forebay-mpi --features shuttle --lib -- --nocapture` prints how
//! many.
//!
//! The checker reports a wait that would never end as a deadlock; it also reports a panic, wrong bytes, and an outcome that is delivered
//! twice or never.

use std::sync::Arc;

use forebay_device::communicator::{self, Communicator, END_TAG, MessageBytes, Messages};
use forebay_queue::bounded::BoundedScheduler;
use forebay_queue::shim::sync::mpsc::{Receiver, channel};
use forebay_queue::shim::sync::{Condvar, Mutex};
use forebay_queue::shim::{lock, wait};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use crate::MpiError;
use crate::calls::Calls;
use crate::connection::MpiCommunicator;

/// When a message counts as sent.
#[derive(Clone, Copy, Debug)]
enum Sending {
    /// At once: MPI makes a copy.
    Copied,
    /// Once it is received: only then does MPI read the sender's memory.
    Matched,
}

/// A message that was sent.
struct Sent {
    /// Sender, receiver, tag, and the position among messages with the same three, which is the order of arrival.
    envelope: [usize; 4],
    address: *const u8,
    copy: Option<Vec<u8>>,
    is_received: bool,
}

// SAFETY: the sender keeps the bytes until the request is done.
unsafe impl Send for Sent {}

#[derive(Default)]
struct State {
    sent: Vec<Sent>,
    /// The envelopes of receives that were begun.
    received: Vec<[usize; 4]>,
    ended: usize,
    is_aborted: bool,
    /// Whether process 0 has been refused a call.
    has_refused: bool,
}

/// All processes.
struct World {
    size: usize,
    sending: Sending,
    /// The function of which the first call by process 0 is refused.
    refuses: Option<&'static str>,
    state: Mutex<State>,
    changed: Condvar,
}

/// One of the processes.
struct Side {
    world: Arc<World>,
    rank: usize,
}

enum Request {
    Send([usize; 4]),
    Receive { envelope: [usize; 4], address: *mut u8, size_bytes: usize },
}

impl Side {
    fn failed(function: &'static str) -> MpiError {
        MpiError::Refused { function, code: 1 }
    }

    /// Fails the first call of the function that the world refuses to process 0, except for the messages that end the connection.
    fn check(&self, state: &mut State, function: &'static str, tag: u32) -> Result<(), MpiError> {
        let is_meant = self.rank == 0 && self.world.refuses == Some(function) && tag != END_TAG;
        if is_meant && !std::mem::replace(&mut state.has_refused, true) {
            return Err(Side::failed(function));
        }
        Ok(())
    }
}

/// Returns the envelope after those with the same first three numbers.
fn next<'a>([from, to, tag]: [usize; 3], before: impl Iterator<Item = &'a [usize; 4]>) -> [usize; 4] {
    [from, to, tag, before.filter(|envelope| envelope[..3] == [from, to, tag]).count()]
}

impl Calls for Side {
    type Request = Request;

    fn rank(&self) -> Result<usize, MpiError> {
        Ok(self.rank)
    }

    fn size(&self) -> Result<usize, MpiError> {
        Ok(self.world.size)
    }

    unsafe fn send(&self, address: *const u8, bytes: i32, peer: usize, tag: u32) -> Result<Request, MpiError> {
        let mut state = lock(&self.world.state);
        self.check(&mut state, "MPI_Isend", tag)?;
        let envelope = next([self.rank, peer, tag as usize], state.sent.iter().map(|sent| &sent.envelope));
        let copy = match self.world.sending {
            // SAFETY: the caller's promise.
            Sending::Copied => Some(unsafe { std::slice::from_raw_parts(address, bytes as usize) }.to_vec()),
            Sending::Matched => None,
        };
        state.sent.push(Sent { envelope, address, copy, is_received: false });
        Ok(Request::Send(envelope))
    }

    unsafe fn receive(&self, address: *mut u8, bytes: i32, peer: usize, tag: u32) -> Result<Request, MpiError> {
        let mut state = lock(&self.world.state);
        self.check(&mut state, "MPI_Irecv", tag)?;
        let envelope = next([peer, self.rank, tag as usize], state.received.iter());
        state.received.push(envelope);
        Ok(Request::Receive { envelope, address, size_bytes: bytes as usize })
    }

    fn is_done(&self, request: &mut Request) -> Result<bool, MpiError> {
        let mut state = lock(&self.world.state);
        if state.is_aborted {
            return Err(Side::failed("MPI_Test"));
        }
        let (Request::Send(envelope) | Request::Receive { envelope, .. }) = &*request;
        self.check(&mut state, "MPI_Test", envelope[2] as u32)?;
        match request {
            Request::Send(envelope) => {
                let sent = state.sent.iter().find(|sent| sent.envelope == *envelope).expect("it was sent");
                Ok(sent.copy.is_some() || sent.is_received)
            }
            Request::Receive { envelope, address, size_bytes } => {
                let Some(sent) = state.sent.iter_mut().find(|sent| sent.envelope == *envelope) else {
                    return Ok(false);
                };
                let from = sent.copy.as_ref().map_or(sent.address, |copy| copy.as_ptr());
                // SAFETY: the sender keeps its bytes until this request is done, and so does the receiver; the tests send as much as is
                // received.
                unsafe { std::ptr::copy_nonoverlapping(from, *address, *size_bytes) };
                sent.is_received = true;
                Ok(true)
            }
        }
    }

    fn abort(&self) {
        lock(&self.world.state).is_aborted = true;
        self.world.changed.notify_all();
    }

    fn end(&mut self) {
        let mut state = lock(&self.world.state);
        state.ended += 1;
        self.world.changed.notify_all();
        while state.ended < self.world.size && !state.is_aborted {
            state = wait(&self.world.changed, state);
        }
    }
}

/// Runs the same function on each of several processes.
fn run(
    size: usize,
    sending: Sending,
    refuses: Option<&'static str>,
    process: impl Fn(Arc<MpiCommunicator>) + Send + Sync + 'static,
) {
    let world = World { size, sending, refuses, state: Mutex::default(), changed: Condvar::new() };
    let (world, process) = (Arc::new(world), Arc::new(process));
    let connected = |rank: usize| {
        let (world, process) = (world.clone(), process.clone());
        move || {
            let begin = move || Ok(Side { world, rank });
            process(Arc::new(MpiCommunicator::new(begin, None, None).expect("it begins")));
        }
    };
    let others: Vec<_> = (1..size).map(|rank| thread::spawn(connected(rank))).collect();
    connected(0)();
    others.into_iter().for_each(|other| other.join().expect("no panic"));
}

/// An exchange of a number with every other process: its outcome, and what was received.
struct Swap {
    outcome: Receiver<Result<(), String>>,
    received: Vec<(usize, Box<[u8; 2]>)>,
    _sent: Box<[u8; 2]>,
}

impl Swap {
    fn start(communicator: &MpiCommunicator, tag: u32) -> Swap {
        let mut sent = Box::new([communicator.rank() as u8, tag as u8]);
        let others = (0..communicator.size()).filter(|&peer| peer != communicator.rank());
        let mut received: Vec<(usize, Box<[u8; 2]>)> = others.map(|peer| (peer, Box::new([255; 2]))).collect();
        let address = sent.as_mut_ptr();
        let sends = received.iter().map(|&(peer, _)| MessageBytes { peer, address, size_bytes: 2 }).collect();
        let into = |(peer, bytes): &mut (usize, Box<[u8; 2]>)| MessageBytes {
            peer: *peer,
            address: bytes.as_mut_ptr(),
            size_bytes: 2,
        };
        let receives = received.iter_mut().map(into).collect();
        let (tell, outcome) = channel();
        let done = Box::new(move |result| tell.send(result).expect("the other end waits"));
        // SAFETY: `Swap` keeps the bytes, and is waited for.
        unsafe { communicator.start(Messages { tag, sends, receives }, done) };
        Swap { outcome, received, _sent: sent }
    }

    /// Waits for the outcome, which is delivered once.
    fn outcome(&self) -> Result<(), String> {
        let outcome = self.outcome.recv().expect("it ends");
        assert!(self.outcome.recv().is_err(), "what ends an exchange is gone");
        outcome
    }

    fn assert_came(&self, tag: u32) {
        assert_eq!(self.outcome(), Ok(()));
        self.received.iter().for_each(|(peer, bytes)| assert_eq!(**bytes, [*peer as u8, tag as u8]));
    }
}

/// Explores the schedules of a case with both ways of sending.
fn check(
    name: &str,
    size: usize,
    delays_max: usize,
    process: impl Fn(Arc<MpiCommunicator>) + Send + Sync + Clone + 'static,
) {
    check_with(name, size, delays_max, None, process);
}

/// Like [`check`]; process 0 can be refused its first call of a function.
fn check_with(
    name: &str,
    size: usize,
    delays_max: usize,
    refuses: Option<&'static str>,
    process: impl Fn(Arc<MpiCommunicator>) + Send + Sync + Clone + 'static,
) {
    for sending in [Sending::Copied, Sending::Matched] {
        let process = process.clone();
        let case = move || run(size, sending, refuses, process.clone());
        let bounded = Runner::new(BoundedScheduler::new(delays_max), Config::new()).run(case.clone());
        let any = Runner::new(RandomScheduler::new_from_seed(1, 1000), Config::new()).run(case.clone());
        let few = Runner::new(PctScheduler::new_from_seed(2, 3, 1000), Config::new()).run(case);
        println!("| {name}; sent: {sending:?} | all with up to {delays_max} delays: {bounded} | {} |", any + few);
    }
}

#[test]
fn exchanges_end_in_whatever_order_processes_start_them() {
    check("two exchanges, in another order in each of two processes", 2, 2, |communicator| {
        let tags = if communicator.rank() == 0 { [3, 4] } else { [4, 3] };
        let swaps = tags.map(|tag| (tag, Swap::start(&communicator, tag)));
        swaps.iter().for_each(|(tag, swap)| swap.assert_came(*tag));
        communicator.finish().expect("all end");
    });
}

#[test]
fn ending_waits_for_exchanges() {
    check("an exchange, and the end at once, of three processes", 3, 2, |communicator| {
        let swap = Swap::start(&communicator, 7);
        communicator.finish().expect("all end");
        swap.assert_came(7);
    });
}

#[test]
fn gathering_goes_on_beside_exchanges() {
    check("three processes gather while an exchange is under way", 3, 2, |communicator| {
        let swap = Swap::start(&communicator, 1);
        let own = vec![communicator.rank() as u8; communicator.rank()];
        let gathered = communicator::gather(&*communicator, &own).expect("no failure");
        assert_eq!(gathered, [vec![], vec![1], vec![2, 2]]);
        swap.assert_came(1);
    });
}

#[test]
fn what_starts_while_the_connection_ends_is_told_once() {
    check(
        "an exchange without messages starts on one thread while another ends the connection",
        2,
        2,
        |communicator| {
            let starting = {
                let communicator = communicator.clone();
                thread::spawn(move || {
                    let (tell, outcome) = channel();
                    let done = Box::new(move |result| tell.send(result).expect("the other end waits"));
                    let messages = Messages { tag: 1, sends: Vec::new(), receives: Vec::new() };
                    // SAFETY: there are no bytes.
                    unsafe { communicator.start(messages, done) };
                    let outcome: Result<(), String> = outcome.recv().expect("it ends");
                    assert!(outcome.is_ok() || outcome.unwrap_err().contains("ended"));
                })
            };
            communicator.finish().expect("all end");
            starting.join().expect("no panic");
        },
    );
}

#[test]
fn one_that_gives_up_ends_all() {
    check("a process gives up while the other waits for it", 2, 2, |communicator| {
        // Neither process takes part in the other's exchange.
        let swap = Swap::start(&communicator, communicator.rank() as u32);
        if communicator.rank() == 1 {
            communicator.abort();
        }
        assert!(swap.outcome().unwrap_err().contains("MPI_Test"));
    });
}

#[test]
fn what_arrives_late_is_not_taken_for_something_else() {
    for refused in ["MPI_Test", "MPI_Irecv", "MPI_Isend"] {
        let name = format!("{refused} fails in one of two processes, which tries another exchange");
        check_with(&name, 2, 2, Some(refused), move |communicator| {
            let swap = Swap::start(&communicator, 1);
            let outcome = swap.outcome();
            if communicator.rank() == 0 {
                assert!(outcome.unwrap_err().contains(refused));
                let next = Swap::start(&communicator, 1);
                assert!(next.outcome().unwrap_err().contains("earlier exchange"));
                communicator.abort();
            }
            // Its messages can still be under way.
            std::mem::forget(swap);
        });
    }
}
