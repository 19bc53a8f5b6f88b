//! Again: cuts parts that still touch too many bytes along another axis, and splits launches with several kinds of results into separate
//! launches, which can be cut along more axes.

use forebay_base::kernel::facts::{CutChoice, Separate};
use forebay_model::program::{Program, ProgramLaunch};

use super::cut::cuts;
use super::{pieces, touched_bytes};
use crate::divided::Partition;

/// Cuts each launch that can be cut again and touches more than the limit into parts along one more axis. Returns `None` if there is
/// nothing left to do.
pub(super) fn again(program: &Program, limit_bytes: u64) -> Option<Partition> {
    let (mut launches, mut sources, mut update_start) = (Vec::with_capacity(program.launches.len()), Vec::new(), 0);
    for (index, launch) in program.launches.iter().enumerate() {
        if index == program.update_start {
            update_start = launches.len();
        }
        let is_large = touched_bytes(launch) > limit_bytes && launch.kernel.facts().cut_choice == CutChoice::Nested;
        launches.extend(if is_large { divided(launch, limit_bytes) } else { vec![launch.clone()] });
        sources.resize(launches.len(), index);
    }
    if program.update_start >= program.launches.len() {
        update_start = launches.len();
    }
    let is_same = launches.len() == program.launches.len();
    let divided = Program { launches, update_start, ..program.clone() };
    (!is_same).then_some(Partition { program: divided, sources, earlier: None })
}

/// Returns the bytes that the most demanding part of a launch touches if it is cut along as many axes as possible.
pub(super) fn least_bytes(launch: &ProgramLaunch) -> u64 {
    let parts = match launch.kernel.facts().cut_choice {
        CutChoice::Nested => divided(launch, 0),
        CutChoice::First | CutChoice::Least => Vec::new(),
    };
    if parts.len() < 2 {
        return touched_bytes(launch);
    }
    let is_same = parts.iter().all(|part| part.kernel.name() == launch.kernel.name());
    let most = match is_same {
        true => parts.iter().max_by_key(|part| touched_bytes(part)).map(least_bytes),
        false => parts.iter().map(least_bytes).max(),
    };
    most.unwrap_or(0)
}

/// Returns a launch in parts along one axis; if that is impossible, as launches for each kind of result; if that is impossible, too, as it
/// is.
fn divided(launch: &ProgramLaunch, limit_bytes: u64) -> Vec<ProgramLaunch> {
    let in_parts = cuts(launch).into_iter().map(|cut| pieces(launch, &cut, limit_bytes));
    let most = |parts: &Vec<ProgramLaunch>| parts.iter().map(touched_bytes).max();
    if let Some(parts) = in_parts.filter(|parts| parts.len() > 1).min_by_key(most) {
        return parts;
    }
    let separate = launch.kernel.separate();
    if separate.is_empty() {
        return vec![launch.clone()];
    }
    let alone = |Separate { kernel, writes }: Separate| ProgramLaunch {
        name: format!("{} {}", launch.name, kernel.name()),
        writes: launch.writes[writes].to_vec(),
        kernel,
        ..launch.clone()
    };
    separate.into_iter().map(alone).collect()
}
