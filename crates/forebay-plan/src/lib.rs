//! The planner: passes that turn a program into a plan of commands, ahead of time. They are pure: they use no device and no clock.
//!
//! ```text
//! Program -> fuse -> distribute -> accumulate -> partition -> order -> alias -> liveness -> residency ->
//!   backing stores -> widen -> schedule -> arena -> emit -> split barriers -> Plan -> check, simulate
//! ```
//!
//! | module | pass |
//! |---|---|
//! | [`fuse`] | combines neighboring kernels |
//! | [`mod@accumulate`] | makes a step process its batch in parts, one after the other |
//! | [`mod@distribute`] | divides a program among several processes, each with its share of a batch |
//! | [`dependences`] | which launches must come after which others |
//! | [`order`] | groups launches that do not need each other, so that they run side by side |
//! | [`orders`] | the orders that were chosen, for programs that differ only in sizes |
//! | [`early_updates`] | runs updates as early as possible |
//! | [`alias`] | outputs take over inputs that are no longer needed |
//! | [`liveness`] | when each buffer is used |
//! | [`cost`] | how long launches and copies take |
//! | [`machine`] | what a machine can do, described in a file or taken from a device's limits |
//! | [`network`] | the network between processes |
//! | [`saved_costs`] | costs saved in a file |
//! | [`ways`] | links and disks |
//! | [`residency`] | which bytes are on the device, and when: keep or swap |
//! | [`joint_offload`] | residency and recomputation, decided together when links are short of time |
//! | [`rematerialize`] | what is recomputed when bytes have nowhere to go |
//! | [`mod@always_resident`] | chunks that never move, because copies of them would be mostly latency |
//! | [`mod@widen`] | gives transfers time: residency intervals begin earlier and end later |
//! | [`backing_stores`] | which bytes are on the host and which on disk while they are not on the device |
//! | [`schedule`] | merges launches and copies into one list, with streams |
//! | [`host_updates`] | runs the update phase on the host, next to the optimizer's state |
//! | [`host_launches`] | runs on the host, between copies, what the device cannot run |
//! | [`arena`] | offsets on the device |
//! | [`shared`] | memory that several plans share |
//! | [`bound`] | a time that no plan of the same launches can beat |
//! | [`split`] | turns barriers into a record and a wait |
//! | [`mod@partition`] | cuts launches that touch a lot of memory into several that touch less |
//! | [`divided`] | a program with launches in parts, as data |
//! | [`mod@plan`] | the resulting plan |
//! | [`paging`] | the same step over managed memory, in units |
//! | [`planner`] | runs the passes and picks the best candidate |
//! | [`mod@check`] | checks the whole plan independently |
//! | [`simulate`] | predicts times, of one process or of all processes of a run |
//! | `tuning` | all constants that were chosen by measurement |

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
pub mod orders;
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
mod stop;
#[cfg(test)]
mod testing;
mod tuning;
pub mod ways;
pub mod widen;

pub use arena::SharedLayout;
pub use dependences::fewest_barriers;
pub use error::{DeviceBudgetSetting, PlanError};
pub use host_updates::update_on_host;
pub use machine::MachineDescription;
pub use network::Network;
pub use order::LaunchOrder;
pub use paging::{Paging, page};
pub use parts::costs_of_parts;
pub use plan::{BackingLocation, Plan};
pub use planner::{PlanOptions, choose_groups, plan, plan_in_groups, smallest_budget};
pub use saved_costs::SavedCosts;
pub use stop::StopRequest;
