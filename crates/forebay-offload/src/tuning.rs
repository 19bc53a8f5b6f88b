//! Every number of the planner that was chosen by measurement, with what was measured.
//!
//! "G10" stands for the cases of `benches/g10.py`, "plans" for `forebay plan` on described machines (`benches/RESULTS.md`).

use crate::share_search::ShareSearch;

/// A step has at most about this many slots in addition to one for each kernel, and at least the lower number.
pub const MOST_SLOTS: u64 = 4096;
/// See [`MOST_SLOTS`].
pub const FEWEST_SLOTS: u64 = 512;
/// The traffic of a slot should be one part in this many of the device memory.
pub const DEVICE_PARTS: u64 = 512;
/// Launches are compared with slots that are this many times as long.
pub const COARSE: u64 = 4;

/// Shares of the candidates for recomputation that are tried; the best candidates come first. Each share takes a sweep and says little
/// about the next one, so all steps are made.
pub const FIRST_SHARES: ShareSearch = ShareSearch { from: 0.0, to: 1.0, steps: 8, patience: u32::MAX, halvings: 4 };
/// The shares of the candidates that are then left out, evenly spread in launch order.
pub const SPREAD_SHARES: ShareSearch = ShareSearch { from: 0.5, to: 0.125, steps: 3, patience: u32::MAX, halvings: 2 };
/// Shares of the waits of the best sweep that are given from the start of another one.
pub const GIVEN_SHARES: ShareSearch = ShareSearch { from: 1.0, to: 0.5, steps: 2, patience: u32::MAX, halvings: 4 };
/// The most kernels in a row that are run again for one tensor.
pub const CHAINS: [usize; 2] = [4, 8];

/// A change of the launches is meant to save a fraction (one part in this many) of what is waited for: the first number at the
/// start, the other at the end.
pub const FIRST_PART: f64 = 2.0;
/// See [`FIRST_PART`].
pub const LAST_PART: f64 = 128.0;
/// The number of attempts to change launches if each is a sweep over a few hundred kernels; with more kernels, there are fewer attempts.
pub const MOST_CHANGES: usize = 96;
/// The number of strategies for which launches are changed: the best ones.
pub const MOST_IMPROVED: usize = 2;
/// If the SSD takes part, there are fewer attempts, by this factor.
pub const SPILLING: usize = 2;
/// The factor by which a change that did not help counts less at the next attempt.
pub const DOUBT: f64 = 0.7;

/// Inputs that were recomputed this many kernels ago are still there.
pub const FRESH: usize = 24;
/// Moving must take this many times as long as recomputing.
pub const WORTH: f64 = 1.25;
/// If the step without recomputations takes more than this many times the time of its kernels, gaps between uses include its waits, so that
/// bytes can cross in them. In other steps, gaps that are too short without waits are mostly bridged by keeping the bytes.
pub const SLOW: u64 = 2;

/// At first, bytes for the SSD stay on the device for at most one part in this many of the step.
pub const LEAST_DWELL_LIMIT: u64 = 128;
/// A gap is used at once if its value is at least this share of the next one's, which may have lost value in the meantime.
pub const NEARLY: f64 = 0.95;
/// The most passes of a sweep over the step; the second one finds what slots passed by before bytes returned to them.
pub const LAPS: usize = 6;
/// A link without free time for longer than this fraction (one part in this many) of the step is busy.
pub const BUSY_PARTS: u64 = 256;

/// Shares of the candidates for recomputation, in sixteenths, that become separate programs; the best candidates come first. Each program
/// is a plan that has to be placed, so there are few.
pub const PLANNED_SIXTEENTHS: [usize; 5] = [1, 3, 6, 10, 16];
/// The most kernels in a row that are run again for one tensor in these programs.
pub const PLANNED_CHAIN: usize = 8;
/// If each launch is one slot, launches wait from the start for this many times the time that a first sweep found.
///
/// Plans of the U-Net of 2 mm at 25 and 35 %, whose tensors are large for the device, relative to plans with waits that grew and shrank gap
/// by gap: h200 1.04 and 0.89, laptop-8gb 1.02 and 0.96. With 1: 1.12, 1.30, 1.06, 1.17, since less could be placed; with 4: 1.02, 0.89,
/// 1.04, 0.97.
pub const WAITS_GIVEN_TO_LAUNCHES: u64 = 2;
