//! All constants of the planner that were chosen by measurement, with the measurements.
//!
//! Figures are predicted step times of `forebay plan` on described machines (`benches/RESULTS.md`).

use forebay_offload::share_search::ShareSearch;

/// Shares of the capacity that are tried as room for kept bytes; the rest is room for transfers. Two steps without improvement end the
/// search: plans with less room are rarely faster. With four steps down to 0.52 instead, 62 plans for h200 and laptop-8gb are 0.004 slower
/// on average.
pub const KEEP_SHARES: ShareSearch = ShareSearch { from: 1.0, to: 0.55, steps: 3, patience: 2, halvings: 3 };
/// The same if launches are cut: many pieces that have to be adjacent leave more gaps, and planning takes long.
pub const KEEP_SHARES_OF_PARTS: ShareSearch = ShareSearch { from: 0.85, to: 0.15, steps: 3, patience: 1, halvings: 1 };
/// Shares of the room not taken by kept bytes that transfers may take. The less they take, the easier placement is.
pub const TRANSFER_SHARES: [f64; 3] = [1.0, 0.5, 0.0];
/// How many of them are tried if launches are cut.
pub const TRANSFER_SHARES_OF_PARTS: usize = 2;
/// Shares of the capacity that are filled if everything is decided jointly; the rest is for the gaps that placement cannot fill. Two steps
/// without improvement end the search: a smaller share makes the plan slower, and is only tried to make placement possible.
pub const FILL_SHARES: ShareSearch = ShareSearch { from: 0.98, to: 0.54, steps: 11, patience: 2, halvings: 1 };

/// If launches are cut, neighboring parts may be tied together up to this fraction (one part in this many) of what may be kept.
pub const JOINED: u64 = 8;
/// How often the room is reduced before an attempt is given up.
pub const ROUNDS: u64 = 8;
/// The first round removes this fraction (one part in this many) of what a launch lacks, the second four times as much, the third nine
/// times, and so on.
pub const LACK_FRACTIONS: u64 = 16;
/// A lack counts as at least this fraction (one part in this many) of the capacity: less would not make anything leave.
pub const LACK_PARTS: u64 = 64;
/// How often placements that nearly fit are searched for longer, in one attempt.
pub const LONG_LOOKS: u32 = 2;
/// From this many items on, placement makes a single pass after the first ones, and never fewer than [`PASSES_MIN`].
pub const MANY_ITEMS: usize = 12_000;
/// See [`MANY_ITEMS`].
pub const PASSES_MIN: usize = 2;
/// The factor by which the number of passes grows if one pool has no other way.
pub const PASSES_AT_LENGTH: u32 = 8;
/// A quick search takes this fraction (one part in this many) of the passes. With 2, planning the U-Net of 2 mm at 25 and 35 % took 1.6
/// times as long, and plans were at most 0.025 faster (without waits given to launches).
pub const QUICK: u32 = 8;
/// If less than this fraction (one part in this many) of the capacity is lacking after a quick search, a longer one is worthwhile. With 2,
/// planning the same took 1.8 times as long, and plans were 0.01 faster to 0.05 slower.
pub const CLOSE: u64 = 32;

/// Units of work ([`crate::planner`]) after which the search for a plan ends if it has found one, or units for each launch
/// ([`SEARCH_WORK_OF_LAUNCH`]) if that is more.
pub const SEARCH_WORK_MAX: u64 = 7_000_000;
/// See [`SEARCH_WORK_MAX`].
pub const SEARCH_WORK_OF_LAUNCH: u64 = 850;
/// A brief search for a program of more launches than this ends with its first plan. For fewer, the whole search takes a second or two.
pub const SEARCH_BRIEF_LAUNCHES: usize = 500;
/// The share of the work for moving launches' tensors gap by gap; the rest is for deciding everything jointly.
pub const SEARCH_WORK_BY_GAP: f64 = 0.5;

/// How often the host's room is reduced if more is on the host than fits, because what steps change may not go to disk. With 1, tiny-gpt at
/// 50 % with 8 MiB on the host of cpu-2core-nvme is 1.17 times as slow; 12 gains another 2 % in three times the time.
pub const HOST_ROUNDS: usize = 4;

/// Launches are cut so that none touches more than these fractions (one part in this many) of the capacity; each is tried.
pub const CUT_DIVISORS: [u64; 2] = [2, 5];
/// Steps that take more than this many times a step without a budget are worth a longer search.
pub const SLOW: f64 = 1.003;
/// Steps that take more than this many times a step without a budget are worth a search among parts of launches.
pub const SLOW_ENOUGH_TO_CUT: f64 = 1.03;
/// After this many consecutive attempts of one strategy that are no faster, the search for this strategy ends.
pub const FUTILE_MAX: usize = 3;
/// An attempt that could gain at most this fraction (one part in this many) is not made.
pub const WORTHWHILE: u64 = 1000;

/// A chunk is small if copying its bytes takes at most this fraction (one part in this many) of a copy's latency.
pub const LATENCY_PARTS: f64 = 4.0;
/// All small chunks together take at most this fraction (one part in this many) of the device.
pub const SMALL_PARTS: u64 = 64;

/// Shares of the host budget, in percent, that are tried as room for what is kept there; the rest is for the gaps that placement cannot
/// fill. The first one with a placement is used.
pub const HELD_PERCENT: [u64; 7] = [100, 98, 95, 90, 80, 50, 0];

/// Shares of the bytes beyond the capacity that are left for moving, if recomputation alone removes the rest. Compared to plans without
/// them: U-Net of 2 mm on h200 at 50 and 35 % 0.83 and 0.82, on laptop-8gb at 35 % 0.89; ResNet-20 at 25 % 0.91 and 0.98. None of twelve
/// was slower. For launches in parts, nothing was gained and planning took twice as long.
pub const REMATERIALIZED_SHARES: [f64; 4] = [0.0, 0.25, 0.5, 0.75];
/// The most consecutive launches that are recomputed for one use.
pub const RECOMPUTED_CHAIN_MAX: usize = 128;
/// The search ends after this many launches in all the steps that it tried together: about a second.
pub const RECOMPUTED_LOOKS_MAX: usize = 1 << 23;
/// The same for the search that tries to drop others instead, which is followed by annealing.
pub const RECOMPUTED_LOOKS_OF_OTHERS: usize = 1 << 20;
/// All moves are evaluated again if those since the last time removed this fraction (one part in this many) of the excess.
pub const RECOMPUTED_GAIN_PARTS: i64 = 16;
/// The number of successively lower limits for which contents are dropped if device and host are one memory.
pub const RECOMPUTED_LIMITS: i64 = 8;
/// The number of launches for which what was used or recomputed stays, in steps with launches in parts; each is tried.
pub const RECOMPUTED_WINDOWS: [usize; 1] = [32];
/// The most steps of annealing, and the most for each possible move ([`ANNEALING_STEPS_OF_MOVE`]).
pub const ANNEALING_STEPS: usize = 12_000;
/// See [`ANNEALING_STEPS`].
pub const ANNEALING_STEPS_OF_MOVE: usize = 120;
/// The temperature at the beginning and at the end: how much worse a step may be, as a share of the step's duration without recomputation.
pub const ANNEALING_HEAT: (f64, f64) = (0.05, 0.0005);
/// The cost of exceeding the limit by as many bytes as the limit has, in steps without recomputation. Each weight after the first is used
/// only if those before found nothing that fits.
pub const ANNEALING_WEIGHTS: [f64; 3] = [2.0, 6.0, 12.0];
/// The weight of bytes beyond the limit in each launch; at the peak their weight is 1.
pub const ANNEALING_SUM_SHARE: f64 = 0.15;
/// Buffers below this fraction (one part in this many) of the peak are not considered in one pool: most are statistics and biases.
pub const RECOMPUTED_BYTES_PARTS: i64 = 1024;
/// The most buffers that are considered: those with the most bytes for the most launches.
pub const RECOMPUTED_BUFFERS_MAX: usize = 4096;

/// The number of attempts, with less and less to fill, if what fits by its bytes finds no addresses.
pub const ONE_POOL_ATTEMPTS: u64 = 9;
/// Each attempt reduces the capacity by this fraction (one part in this many), later ones by more.
pub const ONE_POOL_CUT_PARTS: u64 = 64;
/// The number of attempts to find the smallest sufficient budget, if the given one is not sufficient.
pub const ONE_POOL_LEAST_ROUNDS: usize = 3;
/// The number of attempts, with less and less to fill, if weights are read from the model's files and what fits by its bytes finds no
/// addresses.
pub const MODEL_FILES_ATTEMPTS: usize = 4;
/// A plan that reads weights from files is searched for if they take more than this fraction (one part in this many) of the capacity.
pub const MODEL_FILES_WORTH_PARTS: u64 = 16;
/// The number of attempts to find the smallest sufficient budget, if the given one is not sufficient and weights can be read from files.
pub const MODEL_FILES_LEAST_ROUNDS: usize = 8;
/// Each of these attempts has at least this fraction (one part in this many) more than the one before.
pub const MODEL_FILES_LEAST_PARTS: u64 = 16;
/// In each of them, how often a larger budget is tried for the same launches until they have addresses.
pub const MODEL_FILES_STEPS: usize = 16;
/// The fraction (one part in this many) by which it is larger each time.
pub const MODEL_FILES_STEP_PARTS: u64 = 8;

/// Shares of the room that the peak of file order leaves next to parameters and state, in percent, that groups of launches may take; the
/// rest is room for the gaps that placement cannot fill. Widely spaced shares come first: their results tell which others are worth trying.
/// Of twelve steps of the models in `testdata`, resnet20's training has 132 barriers with 100 % alone instead of 111, tiny-gpt's 206
/// instead of 199; with 80 % alone, inception's has 148 instead of 111. With 100, 94, 88 and 80 %, resnet20's has 114. With seven evenly
/// spaced shares, all have as few as with these, or one fewer.
pub const GROUP_PERCENT: [u64; 12] = [100, 94, 97, 99, 98, 96, 95, 88, 91, 93, 80, 84];
/// The most ways to group launches that are placed and counted, times the number of launches; but a few in any case ([`GROUPINGS_MIN`]).
pub const GROUPINGS_LAUNCHES_MAX: usize = 6_000;
/// See [`GROUPINGS_LAUNCHES_MAX`].
pub const GROUPINGS_MIN: usize = 4;
