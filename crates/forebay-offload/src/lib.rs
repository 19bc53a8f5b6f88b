//! Decides which bytes are where and when, for a step of kernels on a machine whose device is too small: what stays, what moves to the host
//! or the SSD and when, and what is dropped.
//!
//! ```text
//! Workload -> Timeline (slots) -> Needs (gaps, versions) -> Layout (absences, copies) -> Schedule -> verify
//! ```
//!
//! The step repeats forever, so whatever moves across its boundary moves in every step. Nothing here depends on where workloads come from:
//! a trace, a profile of our own plans, a random test.
//!
//! | module | holds |
//! |---|---|
//! | [`workload`] | kernels, tensors, the machine |
//! | [`trace`] | workloads from JSON lines |
//! | [`timeline`] | the step in slots |
//! | [`reuse_gaps`] | when tensors are idle |
//! | [`layout`] | which bytes leave in which gaps, and when they cross the links |
//! | [`recompute`] | what is recomputed instead of moved |
//! | [`planner`] | which of these are worth their time, judged by the waits that remain |
//! | [`launches`] | the same for plans in which each launch is one slot |
//! | [`share_search`] | how families of attempts with one parameter are searched |
//! | [`parallel`] | attempts made in parallel |
//! | [`tuning`] | every number that was chosen by measurement |
//! | [`emit`] | conversion of a layout to a schedule |
//! | [`schedule`] | the format of a schedule |
//! | [`lru`] | demand paging, for comparison |
//! | [`bound`] | a time that no schedule can beat |
//! | [`mod@verify`] | checks schedules, without knowing how they are made |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bound;
pub mod emit;
pub mod launches;
pub mod layout;
pub mod lru;
pub mod parallel;
pub mod planner;
pub mod recompute;
pub mod reuse_gaps;
pub mod schedule;
pub mod share_search;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod timeline;
pub mod trace;
pub mod tuning;
pub mod verify;
pub mod workload;
