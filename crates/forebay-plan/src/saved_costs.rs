//! Costs in a file (JSON): plans depend on what an earlier run measured.
//!
//! A launch is identified by its name, its kernel and its bytes, so that durations remain valid in a different order, but are not mistaken
//! for those of another batch size.

use std::collections::{BTreeMap, VecDeque};

use forebay_model::program::{Program, ProgramLaunch};
use serde::{Deserialize, Serialize};

use crate::cost::{Costs, bytes};
use crate::error::PlanError;
use crate::ways::{Disk, Link, check_ways, not_negative, positive, short};

/// The format that is written and read.
const FORMAT: &str = "forebay-costs-1";

/// Costs together with the launches that they belong to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedCosts {
    format: String,
    #[serde(rename = "lanes")]
    workers: f64,
    #[serde(rename = "copy_lane_ns_per_byte")]
    copy_worker_ns_per_byte: f64,
    step_ns: u64,
    link: Link,
    disk: Disk,
    launches: Vec<SavedLaunch>,
}

/// A launch and its duration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLaunch {
    name: String,
    kernel: String,
    bytes: u64,
    duration_ns: u64,
    #[serde(rename = "lanes")]
    workers: f64,
}

/// The properties that distinguish launches.
type Key<'a> = (&'a str, &'a str, u64);

fn key(launch: &ProgramLaunch) -> Key<'_> {
    (&launch.name, launch.kernel.name(), bytes(launch))
}

/// Launches of a program whose durations were not saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The number of such launches.
    pub count: usize,
    /// The number of launches in the program.
    pub launches: usize,
    /// The name of the first one.
    pub first: String,
}

impl SavedCosts {
    /// Creates the saved costs of a program.
    pub fn new(program: &Program, costs: &Costs) -> SavedCosts {
        let durations = costs.launch_ns.iter().zip(&costs.launch_workers);
        let saved = |(launch, (&duration_ns, &workers)): (&ProgramLaunch, (&u64, &f64))| {
            let (name, kernel, bytes) = key(launch);
            SavedLaunch { name: name.to_string(), kernel: kernel.to_string(), bytes, duration_ns, workers }
        };
        SavedCosts {
            format: FORMAT.to_string(),
            workers: costs.workers,
            copy_worker_ns_per_byte: costs.copy_worker_ns_per_byte,
            step_ns: costs.step_ns,
            link: costs.link,
            disk: costs.disk,
            launches: program.launches.iter().zip(durations).map(saved).collect(),
        }
    }

    /// Reads saved costs.
    ///
    /// # Errors
    /// Names what is missing, unknown or meaningless, and where.
    pub fn parse(text: &str) -> Result<SavedCosts, PlanError> {
        let refuse = |reason: String| PlanError::Document { what: "the saved costs", reason };
        let saved: SavedCosts = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        saved.check().map_err(refuse)?;
        Ok(saved)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("unknown format '{}'; expected '{FORMAT}'", self.format));
        }
        positive("lanes", self.workers)?;
        not_negative("copy_lane_ns_per_byte", self.copy_worker_ns_per_byte)?;
        check_ways(&self.link, &self.disk)?;
        short("step_ns", self.step_ns)?;
        self.launches.iter().try_for_each(|launch| {
            short(&format!("duration_ns of '{}'", launch.name), launch.duration_ns)?;
            positive(&format!("lanes of '{}'", launch.name), launch.workers)
        })
    }

    /// Returns the costs of a program: saved costs for launches that are known, `estimated` costs for the others, which are reported.
    ///
    /// # Errors
    /// Fails if the costs are those of another program: none of its launches is known.
    pub fn apply(&self, program: &Program, mut estimated: Costs) -> Result<(Costs, Option<Unknown>), PlanError> {
        let mut saved: BTreeMap<Key, VecDeque<&SavedLaunch>> = BTreeMap::new();
        for launch in &self.launches {
            saved.entry((&launch.name, &launch.kernel, launch.bytes)).or_default().push_back(launch);
        }
        let mut unknown: Option<Unknown> = None;
        for (index, launch) in program.launches.iter().enumerate() {
            // Launches that are otherwise indistinguishable are identified by their order.
            if let Some(known) = saved.get_mut(&key(launch)).and_then(VecDeque::pop_front) {
                (estimated.launch_ns[index], estimated.launch_workers[index]) = (known.duration_ns, known.workers);
                continue;
            }
            let launches = program.launches.len();
            unknown.get_or_insert_with(|| Unknown { count: 0, launches, first: launch.name.clone() }).count += 1;
        }
        if let Some(Unknown { first, .. }) = unknown.as_ref().filter(|unknown| unknown.count == unknown.launches) {
            let reason = format!(
                "they belong to another model or batch size: '{first}' is not among their {} launches, nor is any other \
                 launch of this model",
                self.launches.len()
            );
            return Err(PlanError::Document { what: "the saved costs", reason });
        }
        let SavedCosts { workers, copy_worker_ns_per_byte, step_ns, link, disk, .. } = *self;
        Ok((Costs { workers, copy_worker_ns_per_byte, step_ns, link, disk, ..estimated }, unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::estimate;
    use crate::testing::{Random, limits, random_training_program};

    fn costs_of(program: &Program) -> Costs {
        estimate(program, &limits())
    }

    #[test]
    fn what_was_saved_comes_back() {
        for seed in 1..10 {
            let mut random = Random::new(seed);
            let program = random_training_program(&mut random, 5);
            let estimated = costs_of(&program);
            let mut measured = estimated.clone();
            measured.launch_ns.iter_mut().for_each(|duration| *duration = random.below(1_000_000));
            (measured.step_ns, measured.link.duplex, measured.workers) = (77, false, 3.0);
            let text = serde_json::to_string(&SavedCosts::new(&program, &measured)).unwrap();
            let (costs, unknown) = SavedCosts::parse(&text).unwrap().apply(&program, estimated).unwrap();
            assert_eq!((costs, unknown), (measured, None), "seed {seed}");
        }
    }

    #[test]
    fn launches_that_are_not_known_are_estimated_and_told_of() {
        let program = random_training_program(&mut Random::new(4), 5);
        let estimated = costs_of(&program);
        let mut other = program.clone();
        let last = other.launches.len() - 1;
        other.launches[last].name = "another".to_string();
        let measured = Costs { launch_ns: vec![9; program.launches.len()], ..estimated.clone() };
        let saved = SavedCosts::new(&program, &measured);
        let (costs, unknown) = saved.apply(&other, estimated.clone()).unwrap();
        assert_eq!((costs.launch_ns[0], costs.launch_ns[last]), (9, estimated.launch_ns[last]));
        assert_eq!(unknown, Some(Unknown { count: 1, launches: last + 1, first: "another".to_string() }));
        other.launches.iter_mut().for_each(|launch| launch.name = "another".to_string());
        let message = saved.apply(&other, estimated).unwrap_err().to_string();
        assert!(message.contains("'another' is not among"), "{message}");
    }

    #[test]
    fn what_has_no_meaning_is_named() {
        let program = random_training_program(&mut Random::new(4), 2);
        let good = serde_json::to_string(&SavedCosts::new(&program, &costs_of(&program))).unwrap();
        for (from, to, words) in [
            (FORMAT, "costs", "expected 'forebay-costs-1'"),
            ("\"step_ns\":0", "\"step_ns\":-1", "-1"),
            ("\"step_ns\":0", "\"step_ns\":18446744073709551615", "step_ns is 18446744073709551615; expected at most"),
            ("\"duration_ns\":", "\"duration_ns\":99999999999", "duration_ns of '"),
            ("\"step_ns\"", "\"steps_ns\"", "steps_ns"),
            ("\"bytes_per_second\":", "\"bytes_per_second\":-", "link.to_device.bytes_per_second is -"),
            ("\"copy_lane_ns_per_byte\":0.0", "\"copy_lane_ns_per_byte\":-0.5", "at least 0"),
            ("{", "", "line 1"),
        ] {
            assert!(good.contains(from), "{from}");
            let message = SavedCosts::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(message.contains(words), "{from} -> {to}: {message}");
        }
    }
}
