//! Which bytes are where when, for a step of kernels on a machine whose device is too small: what stays, what moves to the host
//! or to the SSD and when, what is dropped.
//!
//! ```text
//! Workload -> Timeline (slots) -> Needs (gaps, versions) -> Layout (absences, copies) -> Schedule -> verify
//! ```
//!
//! The step repeats for ever, so that what moves across its boundary moves in every step. Nothing here knows where workloads
//! come from: a trace, a profile of our own plans, a random test.
//!
//! | module | holds |
//! |---|---|
//! | [`workload`] | kernels, tensors, the machine |
//! | [`trace`] | workloads from JSON lines |
//! | [`timeline`] | the step in slots |
//! | [`reuse_gaps`] | when tensors lie idle |
//! | [`layout`] | which bytes leave in which gaps, and when they cross the links |
//! | [`recompute`] | what is recomputed instead of moved |
//! | [`planner`] | what of it is worth its time, judged by the waits that are left |
//! | [`launches`] | the same for plans, where each launch is one slot |
//! | [`share_search`] | how families of attempts with one parameter are searched |
//! | [`parallel`] | attempts at the same time |
//! | [`tuning`] | every number that was chosen by measuring |
//! | [`emit`] | a layout as a schedule |
//! | [`schedule`] | what a schedule is |
//! | [`lru`] | demand paging, for comparison |
//! | [`bound`] | a time that no schedule can beat |
//! | [`mod@verify`] | schedules judged, without knowing how they are made |

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
