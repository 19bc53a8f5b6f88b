//! A link between host and device space that is slower than memory, for experiments.
//!
//! Time on the link passes on a thread of its own: a worker that slept would be missing to the kernels, which no real link
//! does to a real device.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Lets bytes pass no faster than a rate.
pub(super) struct Pace {
    bytes_per_second: u64,
    /// When the bytes so far have passed.
    free: Instant,
}

impl Pace {
    /// Nothing has passed yet.
    pub fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second: bytes_per_second.max(1), free: Instant::now() }
    }

    /// When `bytes` that set out at `start` have had time to pass.
    pub fn passed(&mut self, bytes: usize, start: Instant) -> Instant {
        self.free = self.free.max(start) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        self.free
    }
}

/// One direction of a link: pieces pass one after another, whichever copies they belong to.
pub(super) struct Link {
    pieces: mpsc::Sender<Piece>,
}

struct Piece {
    bytes: usize,
    start: Instant,
    arrived: Box<dyn FnOnce() + Send>,
}

impl Link {
    /// A link with its thread, which ends when the link is dropped.
    ///
    /// # Errors
    /// Where the system refuses the thread.
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

    /// Calls `arrived` on the link's thread once `bytes` that set out at `start` have had time to pass.
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
