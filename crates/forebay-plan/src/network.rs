//! Bandwidth and latency of the networks between the machines that processes run on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::ways::{LinkDirection, check_way};

/// How fast a process can send data to all others together and, at the same time, receive data from them.
///
/// ```
/// use forebay_plan::network::Network;
///
/// let named: Network = "ethernet-100g".parse().unwrap();
/// assert_eq!(named.direction.bytes_per_second, 12.5e9);
/// let other: Network = "3GB/s,20us".parse().unwrap();
/// assert_eq!((other.direction.bytes_per_second, other.direction.latency_ns), (3e9, 20_000));
/// assert!("wet string".parse::<Network>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// The speed in each direction.
    pub direction: LinkDirection,
}

/// Networks by name, with nominal rates and memory-to-memory latencies as reported by MPI benchmarks (OSU micro-benchmarks on TCP and on
/// InfiniBand verbs).
const NAMED: [(&str, f64, u64); 6] = [
    ("ethernet-1g", 0.125e9, 50_000),
    ("ethernet-10g", 1.25e9, 30_000),
    ("ethernet-25g", 3.125e9, 20_000),
    ("ethernet-100g", 12.5e9, 10_000),
    ("infiniband-200g", 25e9, 2_000),
    ("infiniband-400g", 50e9, 2_000),
];

/// The network that is assumed if none is specified.
impl Default for Network {
    fn default() -> Network {
        let (_, bytes_per_second, latency_ns) = NAMED[1];
        Network { direction: LinkDirection { bytes_per_second, latency_ns } }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let network =
            |bytes_per_second, latency_ns| Network { direction: LinkDirection { bytes_per_second, latency_ns } };
        if let Some(&(_, bytes_per_second, latency_ns)) = NAMED.iter().find(|(name, ..)| *name == text) {
            return Ok(network(bytes_per_second, latency_ns));
        }
        let parsed = || {
            let (speed, latency) = text.split_once(',')?;
            let speed = number(speed, &[("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6)])?;
            let latency_ns = number(latency, &[("ns", 1.0), ("us", 1e3), ("ms", 1e6)])?;
            let network = network(speed, latency_ns as u64);
            check_way("network", &network.direction).is_ok().then_some(network)
        };
        parsed().ok_or_else(|| {
            let names: Vec<&str> = NAMED.iter().map(|(name, ..)| *name).collect();
            format!("expected a speed and a latency, as in 3GB/s,20us, or the name of a network: {}", names.join(", "))
        })
    }
}

/// Parses a number of at least 0 followed by one of these units.
fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (digits, factor) = units.iter().find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?, factor)))?;
    let number: f64 = digits.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then(|| number * factor)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkDirection { bytes_per_second, latency_ns } = self.direction;
        match NAMED.iter().find(|(_, speed, latency)| (*speed, *latency) == (bytes_per_second, latency_ns)) {
            Some((name, ..)) => f.write_str(name),
            None => write!(f, "{}GB/s,{}us", bytes_per_second / 1e9, latency_ns as f64 / 1e3),
        }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_as_they_are_written() {
        for text in NAMED.map(|(name, ..)| name).iter().chain(&["3GB/s,20us", "0.5GB/s,1.5us"]) {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), *text);
        }
        assert_eq!("250MB/s, 1ms".parse::<Network>().unwrap().to_string(), "0.25GB/s,1000us");
        for text in
            ["", "fast", "3GB/s", "-1GB/s,2us", "0GB/s,2us", "3GB/s,", "infGB/s,1us", "1e-300GB/s,1us", "3GB/s,1e30ms"]
        {
            assert!(text.parse::<Network>().unwrap_err().contains("ethernet-10g"), "{text}");
        }
        assert_eq!(Network::default().to_string(), "ethernet-10g");
    }
}
