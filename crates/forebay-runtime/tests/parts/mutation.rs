//! The checker objects to every part that is slightly wrong: one row too many or too few, a part that is missing or duplicated, one that
//! begins elsewhere, a moved window or sum.

use std::collections::BTreeSet;

use forebay_base::kernel::facts::Placement;
use forebay_base::kernel::{Activation, ProductPart};
use forebay_base::{Kernel, TensorDesc};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch};
use forebay_plan::check::check_parts;
use forebay_plan::divided::Partition;
use forebay_plan::partition::{least_limit_bytes, partition, touched_bytes};

/// Returns the operand with other indices on an axis: some fewer at the beginning and some more at the end. Returns `None` if there are no
/// such indices.
fn moved(operand: &Operand, axis: usize, fewer: i64, more: i64) -> Option<Operand> {
    let desc = &operand.desc;
    let (mut sizes, strides) = (desc.sizes().to_vec(), desc.effective_strides());
    let size = sizes[axis] as i64 - fewer + more;
    let distance = strides[axis] as i64 * desc.data_type().size_bytes() as i64;
    let offset = operand.offset_bytes as i64 + fewer * distance;
    // An axis that repeats one element is the same from every index.
    if distance == 0 || size < 1 || offset < 0 {
        return None;
    }
    sizes[axis] = size as u64;
    let desc = TensorDesc::strided(desc.data_type(), &sizes, &strides).ok()?;
    Some(Operand { desc, offset_bytes: offset as u64, ..operand.clone() })
}

/// Returns launches that are slightly wrong, each with its fault; `sums` are the buffers in which the launch keeps sums.
fn wrong_launches(part: &ProgramLaunch, sums: &[BufferId]) -> Vec<(String, ProgramLaunch)> {
    let mut wrong = Vec::new();
    for index in 0..part.reads.len() + part.writes.len() {
        let of = |launch: &ProgramLaunch| launch.reads.iter().chain(&launch.writes).nth(index).cloned();
        let operand = of(part).unwrap();
        for axis in 0..operand.desc.sizes().len() {
            // One more at the beginning, one fewer at the beginning, one more at the end, one fewer at the end, all moved by one.
            for (fewer, more) in [(-1, 0), (1, 0), (0, 1), (0, -1), (1, 1)] {
                let Some(changed) = moved(&operand, axis, fewer, more) else { continue };
                let mut launch = part.clone();
                *launch.reads.iter_mut().chain(&mut launch.writes).nth(index).unwrap() = changed;
                wrong.push((format!("operand {index}, axis {axis}, {fewer} fewer before, {more} more behind"), launch));
            }
        }
    }
    let mut change = |what: &str, change: &dyn Fn(&mut ProgramLaunch)| {
        let mut launch = part.clone();
        change(&mut launch);
        if launch != *part {
            wrong.push((what.to_owned(), launch));
        }
    };
    change("padding is moved", &|launch| {
        if let Placement::Window(window) = launch.kernel.placement() {
            window.pads_begin[0] += 1;
        }
    });
    change("indices begin elsewhere", &|launch| match launch.kernel.placement() {
        Placement::Starts(starts) => starts[0] += 1,
        Placement::FirstElement(first) => *first += 4,
        Placement::Diagonal(last) => *last += 1,
        _ => {}
    });
    change("other columns", &|launch| {
        if let Placement::Product(ProductPart::Columns { first }, _) = launch.kernel.placement() {
            *first += 256;
        }
    });
    change("another activation", &|launch| {
        let is_product = matches!(launch.kernel.placement(), Placement::Product(..));
        let applies = launch.kernel.activation_mut().filter(|_| is_product || is_addition(part));
        if let Some(activation) = applies {
            *activation = if *activation == Activation::None { Activation::Relu } else { Activation::None };
        }
    });
    change("columns of a sum", &|launch| {
        if let Placement::Product(own @ ProductPart::Whole, _) = launch.kernel.placement() {
            *own = ProductPart::Columns { first: 256 };
            launch.reads.insert(2, launch.writes[0].clone());
        }
    });
    if is_addition(part) {
        change("the later sums come first", &|launch| launch.reads.swap(0, 1));
        change("the earlier sums are added to the later ones", &|launch| {
            launch.reads.swap(0, 1);
            launch.writes[0] = launch.reads[0].clone();
        });
        change("the sum is where the later sums were", &|launch| launch.writes[0] = launch.reads[1].clone());
        change("sums are added to themselves", &|launch| launch.reads[1] = launch.reads[0].clone());
    }
    if is_addition(part) || makes_sums(part) {
        for buffer in sums {
            for index in 0..part.reads.len() + part.writes.len() {
                let is_sum = index >= part.reads.len() || is_addition(part);
                change(&format!("operand {index} is other sums"), &|launch| {
                    let operand = launch.reads.iter_mut().chain(&mut launch.writes).nth(index).unwrap();
                    operand.buffer = if is_sum { *buffer } else { operand.buffer };
                });
            }
        }
    }
    wrong
}

/// Returns whether a part adds sums of others.
fn is_addition(part: &ProgramLaunch) -> bool {
    matches!(part.kernel, Kernel::AddSums { .. }) || part.name.contains(" sum up to part ")
}

/// Returns the sum that an addition computes, in one piece or in several, or `None` for other parts.
fn sum_of(part: &ProgramLaunch) -> Option<&str> {
    let (_, sum) = part.name.split_once(" sum up to part ")?;
    sum.split(" part ").next()
}

/// Returns whether a part computes the sums of a node.
fn makes_sums(part: &ProgramLaunch) -> bool {
    matches!(part.kernel, Kernel::Sums { .. } | Kernel::ConvolutionWeightGradient { .. } | Kernel::MatMul { .. })
}

/// What has been tried.
#[derive(Debug, Default)]
pub struct Tried {
    /// Launches that are cut.
    pub cut: usize,
    /// Their parts.
    pub parts: usize,
    /// Changes, to each of which the checker objects.
    pub changes: usize,
}

/// Returns a program with only one of its launches and the losses whose sums that launch can read, with their parts.
fn alone(program: &Program, partition: &Partition, source: usize) -> (Program, Partition) {
    let loss = program.launches[source].kernel.facts().gradient_of_loss;
    let sums = |launch: &ProgramLaunch| {
        let descs = |operands: &[Operand]| operands.iter().map(|operand| operand.desc.clone()).collect::<Vec<_>>();
        let (reads, writes) = (descs(&launch.reads), descs(&launch.writes));
        let sums = launch.kernel.sums_in_parts(&reads.iter().collect::<Vec<_>>(), &writes.iter().collect::<Vec<_>>());
        sums.map(|sums| sums.of)
    };
    let is_kept = |index: &usize| *index == source || (loss.is_some() && sums(&program.launches[*index]) == loss);
    let kept: Vec<usize> = (0..program.launches.len()).filter(is_kept).collect();
    let mut one =
        Program { launches: kept.iter().map(|&index| program.launches[index].clone()).collect(), ..program.clone() };
    one.update_start = kept.iter().filter(|&&index| index < program.update_start).count();
    let place = |index: usize| kept.iter().position(|&own| own == partition.sources[index]);
    let parts: Vec<usize> = (0..partition.sources.len()).filter(|&index| place(index).is_some()).collect();
    let own = Partition {
        sources: parts.iter().filter_map(|&index| place(index)).collect(),
        program: Program {
            launches: parts.iter().map(|&index| partition.program.launches[index].clone()).collect(),
            update_start: parts.iter().filter(|&&index| index < partition.program.update_start).count(),
            ..partition.program.clone()
        },
        earlier: None,
    };
    (one, own)
}

/// Changes each part of a program that is cut so that no launch touches more than a limit, one part at a time.
fn change_each(name: &str, program: &Program, limit_bytes: u64, tried: &mut Tried) {
    let Some(cut) = partition(program, limit_bytes) else { return };
    check_parts(program, &cut).unwrap_or_else(|error| panic!("{name} within {limit_bytes}: {error}"));
    for (program, cut) in cut.steps(program) {
        for source in 0..program.launches.len() {
            if cut.sources.iter().filter(|&&own| own == source).count() > 1 {
                let (one, parts) = alone(program, cut, source);
                check_parts(&one, &parts).unwrap_or_else(|error| panic!("{name} within {limit_bytes}: {error}"));
                let place = one.launches.iter().position(|launch| *launch == program.launches[source]);
                change_launch(&format!("{name} within {limit_bytes}"), &one, &parts, place.unwrap(), tried);
            }
        }
    }
}

/// Changes each part of a launch, one at a time.
fn change_launch(name: &str, program: &Program, cut: &Partition, source: usize, tried: &mut Tried) {
    let objects = |what: &str, index: usize, changed: &Partition| {
        let part = &cut.program.launches[index];
        assert!(
            check_parts(program, changed).is_err(),
            "{name}: not missed that {what}, of '{}'\n{part:#?}",
            part.name
        );
    };
    let parts: Vec<usize> = (0..cut.sources.len()).filter(|&index| cut.sources[index] == source).collect();
    // Sums are kept in separate buffers, and in the result if that is a sum.
    let own =
        parts.iter().map(|&index| &cut.program.launches[index]).filter(|part| is_addition(part) || makes_sums(part));
    let sums: BTreeSet<BufferId> = own.map(|part| part.writes[0].buffer).collect();
    let sums: Vec<BufferId> = sums.into_iter().collect();
    tried.cut += 1;
    let mut changed = cut.clone();
    for (number, &index) in parts.iter().enumerate() {
        // Only the first and the last parts are changed; those between are alike.
        if number >= 2 && number + 2 < parts.len() {
            continue;
        }
        tried.parts += 1;
        let part = &cut.program.launches[index];
        for (what, launch) in wrong_launches(part, &sums) {
            changed.program.launches[index] = launch;
            objects(&what, index, &changed);
            tried.changes += 1;
        }
        changed.program.launches[index] = part.clone();
        let mut missing = cut.clone();
        missing.program.launches.remove(index);
        missing.sources.remove(index);
        missing.program.update_start -= usize::from(index < cut.program.update_start);
        objects("it is missing", index, &missing);
        let mut twice = cut.clone();
        twice.program.launches.insert(index, part.clone());
        twice.sources.insert(index, source);
        twice.program.update_start += usize::from(index < cut.program.update_start);
        objects("it is there twice", index, &twice);
        tried.changes += 2;
        // Sums are added once both are available; the pieces of an addition can come in any order.
        let is_piece = |index: usize| sum_of(&cut.program.launches[index]) == sum_of(part);
        if let Some(&before) = number.checked_sub(1).map(|before| &parts[before]).filter(|_| is_addition(part))
            && !is_piece(before)
        {
            let mut exchanged = cut.clone();
            exchanged.program.launches.swap(before, index);
            objects("it comes before what it adds", index, &exchanged);
            tried.changes += 1;
        }
    }
}

/// Checks the smallest limit, then cuts a program in several ways and changes each part.
pub fn mutate(name: &str, program: &Program, tried: &mut Tried) {
    let finest = partition(program, 0);
    let parts = &finest.as_ref().map_or(program, |finest| &finest.program).launches;
    assert_eq!(least_limit_bytes(program), parts.iter().map(touched_bytes).max().unwrap_or(0), "{name}");
    let most = program.launches.iter().map(touched_bytes).max().unwrap_or(0);
    for limit_bytes in [least_limit_bytes(program), most / 3] {
        change_each(name, program, limit_bytes, tried);
    }
}
