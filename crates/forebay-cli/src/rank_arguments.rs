//! The flags of `plan` for several processes.

use std::path::PathBuf;

use clap::Args;
use forebay::{Network, Ranks};

use crate::processes::ShardKind;

/// The flags of `plan` for several processes.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Processes")]
pub struct RankArguments {
    /// Plan for the first of this many processes that share each batch: its memory, what it exchanges, and how much faster a step is than
    /// with one process
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=4096))]
    pub ranks: Option<u64>,
    /// What to shard across the processes: each keeps a slice of it instead of a full copy
    #[arg(long, value_enum, value_name = "WHAT", requires_all = ["ranks", "train"])]
    pub shard: Option<ShardKind>,
    /// The network between the processes: ethernet-1g, -10g, -25g, -100g, infiniband-200g, -400g, or a speed and a latency as in 3GB/s,20us
    /// [default: that of --machine, or ethernet-10g]
    #[arg(long, value_name = "NAME|SPEED,LATENCY", requires = "ranks")]
    pub network: Option<Network>,
    /// Also plan for the other processes, and simulate the plans of all processes together: how long each computes, exchanges data and
    /// waits for others, and how much memory it takes
    #[arg(long, requires = "ranks")]
    pub simulate: bool,
    /// Simulate a process whose kernels take FACTOR times as long as planned, as in 3=2 for process 3 at half speed; can be repeated
    #[arg(long, value_name = "RANK=FACTOR", value_parser = slow, requires = "simulate")]
    pub slow: Vec<(usize, f64)>,
    /// Write when every command of the simulated step runs, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE.json", requires = "simulate")]
    pub trace: Option<PathBuf>,
}

impl RankArguments {
    /// Returns the processes to simulate, or `None` if none are.
    pub fn simulated(&self) -> Option<Ranks> {
        let count = self.ranks.filter(|_| self.simulate)?;
        let even = Ranks::new(usize::try_from(count).unwrap_or(usize::MAX));
        Some(self.slow.iter().fold(even, |ranks, &(rank, slowness)| ranks.slow(rank, slowness)))
    }
}

/// Parses a process and how many times as long as planned its kernels take.
fn slow(text: &str) -> Result<(usize, f64), String> {
    let parsed = || {
        let (rank, factor) = text.split_once('=')?;
        Some((rank.trim().parse().ok()?, factor.trim().parse().ok()?))
    };
    parsed().ok_or_else(|| "expected a process and a factor, as in 3=2".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_processes_are_read() {
        assert_eq!(slow("3=2"), Ok((3, 2.0)));
        assert_eq!(slow(" 12 = 0.5"), Ok((12, 0.5)));
        for text in ["", "3", "=2", "3=", "x=2", "-1=2", "3=fast"] {
            assert!(slow(text).unwrap_err().contains("as in 3=2"), "{text}");
        }
        let arguments = RankArguments { ranks: Some(4), slow: vec![(1, 2.0)], ..RankArguments::default() };
        assert_eq!(arguments.simulated(), None);
        let arguments = RankArguments { simulate: true, ..arguments };
        assert_eq!(arguments.simulated(), Some(Ranks::new(4).slow(1, 2.0)));
    }
}
