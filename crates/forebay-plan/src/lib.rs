//! When and where, ahead of time: the passes that turn a program into a plan of commands. Pure: no device, no clock.
//!
//! ```text
//! Program -> fuse -> order -> alias -> liveness -> residency -> stores -> stretch -> schedule -> arena -> emit (barriers) -> split -> Plan -> check, simulate
//! ```
//!
//! | module | pass |
//! |---|---|
//! | [`fuse`] | neighbouring kernels become one |
//! | [`mod@accumulate`] | a step goes through its batch in parts, one after the other |
//! | [`mod@distribute`] | one program for several processes, each with its share of a batch |
//! | [`dependences`] | which launches need which |
//! | [`order`] | launches that do not need each other run side by side |
//! | [`early_updates`] | updates run as soon as they may |
//! | [`alias`] | outputs take over inputs that die |
//! | [`liveness`] | when each buffer is used |
//! | [`cost`] | how long launches and copies take |
//! | [`machine`] | what a machine can do: described in a file, or taken from a device's limits |
//! | [`network`] | what lies between processes |
//! | [`saved_costs`] | costs in a file |
//! | [`ways`] | links and disks |
//! | [`residency`] | which bytes are on the device when: keep or swap |
//! | [`joint_offload`] | the same, and what is computed again, where links are short of time |
//! | [`rematerialize`] | what is recomputed where bytes have nowhere to go |
//! | [`mod@always_resident`] | chunks that stay, because copies of them would be mostly latency |
//! | [`mod@widen`] | time for transfers: stays begin earlier and end later |
//! | [`backing_stores`] | which bytes are on the host and which on disk while they are not on the device |
//! | [`schedule`] | launches and copies in one list, with streams |
//! | [`host_updates`] | the update phase on the host, next to the optimizer's state |
//! | [`host_launches`] | what the device cannot run, on the host between copies |
//! | [`arena`] | offsets on the device |
//! | [`shared`] | memory that several plans use |
//! | [`bound`] | a time that no plan of the same launches can beat |
//! | [`split`] | barriers that become a record and a wait |
//! | [`mod@partition`] | launches that touch much become several that touch less |
//! | [`divided`] | such a program, as data |
//! | [`mod@plan`] | the result |
//! | [`paging`] | the same step over managed memory, in units |
//! | [`planner`] | runs the passes and picks the best candidate |
//! | [`mod@check`] | the whole plan, checked independently |
//! | [`simulate`] | predicted times |
//! | `tuning` | every number that was chosen by measuring |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod accumulate;
pub mod alias;
pub mod always_resident;
pub mod arena;
pub mod backing_stores;
pub mod bound;
pub mod check;
pub mod cost;
pub mod dependences;
pub mod distribute;
pub mod divided;
pub mod early_updates;
pub mod emit;
pub mod error;
pub mod fuse;
pub mod host_launches;
pub mod host_updates;
pub mod joint_offload;
pub mod liveness;
pub mod loans;
pub mod machine;
pub mod network;
pub mod order;
pub mod paging;
pub mod partition;
mod parts;
pub mod plan;
pub mod planner;
mod profile;
pub mod rematerialize;
pub mod residency;
pub mod saved_costs;
pub mod schedule;
pub mod shared;
pub mod simulate;
pub mod split;
#[cfg(test)]
mod testing;
mod tuning;
pub mod ways;
pub mod widen;

pub use arena::SharedLayout;
pub use dependences::fewest_barriers;
pub use error::PlanError;
pub use host_updates::update_on_host;
pub use machine::MachineDescription;
pub use network::Network;
pub use order::LaunchOrder;
pub use paging::{Paging, page};
pub use parts::costs_of_parts;
pub use plan::{BackingLocation, Plan};
pub use planner::{PlanOptions, choose_groups, plan, plan_in_groups, plan_unless_stopped};
pub use saved_costs::SavedCosts;
