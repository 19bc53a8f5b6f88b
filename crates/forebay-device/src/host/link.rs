//! A simulated link between host and device space that is slower than memory, for experiments.
//!
//! A separate thread waits for the time on the link. If a worker slept instead, kernels would lack it, which does not happen with a real
//! link and a real device.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Limits the rate at which bytes pass.
pub(super) struct Pace {
    bytes_per_second: u64,
    /// The time at which all bytes so far have passed.
    free: Instant,
}

impl Pace {
    /// Creates a pace at which nothing has passed yet.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second: bytes_per_second.max(1), free: Instant::now() }
    }

    /// Returns the time at which `bytes` that start at `start` have passed.
    pub fn passed(&mut self, bytes: usize, start: Instant) -> Instant {
        self.free = self.free.max(start) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        self.free
    }
}

/// One direction of a link: pieces pass one after another, regardless of the copies that they belong to.
pub(super) struct Link {
    pieces: mpsc::Sender<Piece>,
}

struct Piece {
    bytes: usize,
    start: Instant,
    arrived: Box<dyn FnOnce() + Send>,
}

impl Link {
    /// Creates a link with its thread, which ends when the link is dropped.
    ///
    /// # Errors
    /// Returns an error if the system refuses the thread.
    pub fn new(name: &str, bytes_per_second: u64) -> io::Result<Link> {
        let (sender, receiver) = mpsc::channel::<Piece>();
        thread::Builder::new().name(name.to_string()).spawn(move || {
            let mut pace = Pace::new(bytes_per_second);
            for piece in receiver {
                let passed = pace.passed(piece.bytes, piece.start);
                thread::sleep(passed.saturating_duration_since(Instant::now()));
                (piece.arrived)();
            }
        })?;
        Ok(Link { pieces: sender })
    }

    /// Calls `arrived` on the link's thread once `bytes` that start at `start` have had time to pass.
    pub fn pass(&self, bytes: usize, start: Instant, arrived: Box<dyn FnOnce() + Send>) {
        // The thread lives as long as this sender.
        let _ = self.pieces.send(Piece { bytes, start, arrived });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_share_the_link() {
        let link = Link::new("link", 1 << 20).unwrap();
        let start = Instant::now();
        let (sender, receiver) = mpsc::channel();
        for number in 0..3 {
            let sender = sender.clone();
            link.pass(20 << 10, start, Box::new(move || sender.send(number).unwrap()));
        }
        let order: Vec<i32> = receiver.iter().take(3).collect();
        assert_eq!(order, [0, 1, 2]);
        assert!(start.elapsed() >= Duration::from_millis(58), "60 KiB at 1 MiB/s passed in {:?}", start.elapsed());
    }
}
