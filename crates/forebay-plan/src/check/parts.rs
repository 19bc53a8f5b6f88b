//! Parts: checks whether a program with launches in parts computes what the original program does.
//!
//! The check relies on the meaning of the kernels' axes ([`super::lines`]), not on the pass that cut. The parts of a launch are the same
//! function, each on a range of one axis; the ranges follow each other without gaps or overlaps; each part reads what its results need, no
//! less and no more; parts of sums are nodes of the tree by which the whole is summed ([`super::sums`]); and everything else is cut where
//! that changes no bit. The kernels' tests ensure that equal functions compute the same results on equal operands.

use std::collections::BTreeMap;

use forebay_base::kernel::facts::{Placement, Rest, Separate, SumsInParts};
use forebay_base::kernel::{Activation, ProductPart, Summing};
use forebay_base::{ByteRange, DataType, Kernel, TensorDesc};
use forebay_model::program::{BufferId, Operand, Program, ProgramLaunch};

use super::extent::{self, Extent};
use super::lines::{Lines, Work, function, same_operand};
use super::relaid::Relaid;
use super::sums;
use crate::divided::Partition;

/// A part, with its index in the program of parts.
type Placed<'a> = (usize, &'a ProgramLaunch);

/// A launch that was cut into its sums.
struct Summed {
    of: Summing,
    reads: Vec<Operand>,
    sums: Operand,
    /// The last part that adds to the sums.
    last: usize,
}

/// Checks whether the parts compute what their launches compute.
///
/// # Errors
/// Describes what is wrong, with the name of the launch.
pub(super) fn judge(program: &Program, partition: &Partition) -> Result<(), String> {
    partition.steps(program).into_iter().try_for_each(|(program, parts)| step(program, parts))
}

/// Checks whether the parts compute what the launches of the last cut program compute.
fn step(program: &Program, partition: &Partition) -> Result<(), String> {
    let parts = &partition.program;
    frame(program, partition)?;
    let mut of_launch: Vec<Vec<Placed>> = vec![Vec::new(); program.launches.len()];
    for (index, (&source, part)) in partition.sources.iter().zip(&parts.launches).enumerate() {
        of_launch[source].push((index, part));
    }
    let relaid = Relaid::of(program, parts)?;
    let mut summed: Vec<(usize, Summed)> = Vec::new();
    for (source, (launch, own)) in program.launches.iter().zip(&of_launch).enumerate() {
        let wrong = |reason: String| format!("the parts of '{}' are not equivalent to it: {reason}", launch.name);
        let is_same = |part: &ProgramLaunch| {
            (&part.kernel, &part.reads, &part.writes) == (&launch.kernel, &launch.reads, &launch.writes)
        };
        if let [(_, part)] = own[..]
            && relaid.is_empty()
            && is_same(part)
        {
            continue;
        }
        let whole = Work {
            kernel: launch.kernel.clone(),
            reads: launch.reads.iter().map(|operand| relaid.operand(operand)).collect(),
            writes: launch.writes.iter().map(|operand| relaid.operand(operand)).collect(),
        };
        let is_separate = |(_, part): &Placed| function(&part.kernel) != function(&launch.kernel);
        if !launch.kernel.separate().is_empty() && own.iter().any(is_separate) {
            separate(&whole, own, program.buffers.len()).map_err(wrong)?;
            continue;
        }
        let found = of_sums(&whole, own, program.buffers.len(), &summed).map_err(wrong)?;
        summed.extend(found.map(|found| (source, found)));
    }
    sums_are_apart(partition, program.buffers.len())?;
    order(partition)
}

/// Checks whether everything except the launches is the same, and each launch has parts on its side of the update phase.
fn frame(program: &Program, Partition { program: parts, sources, .. }: &Partition) -> Result<(), String> {
    let is_same = parts.buffers.get(..program.buffers.len()) == Some(&program.buffers[..])
        && parts.buffers[program.buffers.len()..].iter().all(|buffer| buffer.role.is_temporary())
        && (&parts.inputs, &parts.outputs, &parts.persistent)
            == (&program.inputs, &program.outputs, &program.persistent);
    if !is_same || sources.len() != parts.launches.len() {
        return Err("the tensors of the program of parts differ".to_owned());
    }
    for (index, &source) in sources.iter().enumerate() {
        if source >= program.launches.len() || (source < program.update_start) != (index < parts.update_start) {
            return Err(format!("'{}' is in the wrong phase", parts.launches[index].name));
        }
    }
    Ok(())
}

/// Judges the parts of a launch or, if it sums, of the launches that replace it: its sums, what is computed from them, and the rest.
fn of_sums(
    whole: &Work,
    parts: &[Placed],
    own_buffers: usize,
    summed: &[(usize, Summed)],
) -> Result<Option<Summed>, String> {
    let is_finished = |part: &ProgramLaunch| matches!(part.kernel, Kernel::FromSums { .. });
    let finishes = parts.iter().find(|(_, part)| is_finished(part)).filter(|_| !is_sum(&whole.kernel));
    let Some((_, finishes)) = finishes else {
        return of_work(&with_loss(whole, parts, summed)?, parts, own_buffers).map(|()| None);
    };
    let descs = |operands: &[Operand]| operands.iter().map(|operand| operand.desc.clone()).collect::<Vec<_>>();
    let (reads, writes) = (descs(&whole.reads), descs(&whole.writes));
    let found = whole.kernel.sums_in_parts(&reads.iter().collect::<Vec<_>>(), &writes.iter().collect::<Vec<_>>());
    let SumsInParts { of, reads, finish_reads, first_finished, rest } = found.ok_or("it computes no sums")?;
    let sums = finishes.reads.first().ok_or("sums are not read")?.clone();
    let channels = whole.writes.last().map_or(1, |write| write.desc.element_count());
    let table = TensorDesc::packed(DataType::Float64, &[of.rows(), channels]).map_err(|error| error.to_string())?;
    if sums.desc != table || sums.offset_bytes != 0 || (sums.buffer.0 as usize) < own_buffers {
        return Err(format!("{} is not a table of its sums", sums.desc));
    }
    let sorted = |wanted: fn(&Kernel) -> bool| -> Vec<Placed> {
        parts.iter().copied().filter(|(_, part)| wanted(&part.kernel)).collect()
    };
    let adding = sorted(|kernel| matches!(kernel, Kernel::Sums { .. } | Kernel::AddSums { .. }));
    let finishing = sorted(|kernel| matches!(kernel, Kernel::FromSums { .. }));
    let others = sorted(|kernel| !is_sum(kernel));
    let of_reads = |reads: &[usize]| reads.iter().map(|&read| whole.reads[read].clone()).collect::<Vec<_>>();
    let added = Work { kernel: Kernel::Sums { of }, reads: of_reads(reads), writes: vec![sums.clone()] };
    of_work(&added, &adding, own_buffers)?;
    let finished = whole.writes[first_finished..].to_vec();
    let made = Work {
        kernel: Kernel::FromSums { of },
        reads: [std::slice::from_ref(&sums), &of_reads(finish_reads)].concat(),
        writes: finished.clone(),
    };
    of_work(&made, &finishing, own_buffers)?;
    let (last, made_at) = (adding.iter().map(|part| part.0).max(), finishing.iter().map(|part| part.0).min());
    if made_at < last {
        return Err("results are computed from sums that are not complete".to_owned());
    }
    match rest {
        None if others.is_empty() => {}
        None => return Err("there are launches other than its sums".to_owned()),
        Some(Rest { kernel, reads, reads_finished, reads_sums }) => {
            let mut reads = whole.reads[..reads].to_vec();
            reads.extend(finished.into_iter().filter(|_| reads_finished));
            reads.extend(reads_sums.then(|| sums.clone()));
            let rest = Work { kernel, reads, writes: whole.writes[..first_finished].to_vec() };
            of_work(&rest, &others, own_buffers)?;
            let after = if reads_finished { made_at } else { last };
            if (reads_finished || reads_sums) && others.iter().any(|part| Some(part.0) < after) {
                return Err("a part reads sums that are not complete".to_owned());
            }
        }
    }
    Ok(Some(Summed { of, reads: whole.reads.clone(), sums, last: last.unwrap_or(0) }))
}

/// Returns the launch with the sums of its loss, if it is the gradient of a loss and its parts read more than it does. If the launch itself
/// reads the number of positions, so do its parts.
fn with_loss(whole: &Work, parts: &[Placed], summed: &[(usize, Summed)]) -> Result<Work, String> {
    let is_told = whole.kernel.facts().gradient_of_loss.is_some() && whole.reads.len() == 4;
    if is_told {
        return Ok(whole.clone());
    }
    let more = parts.iter().all(|(_, part)| part.reads.len() == whole.reads.len() + 1);
    let Some(loss) = whole.kernel.facts().gradient_of_loss.filter(|_| more && parts.len() > 1) else {
        return match parts.len() > 1 && whole.kernel.facts().gradient_of_loss.is_some() {
            true => Err("they do not read the total number of positions".to_owned()),
            false => Ok(whole.clone()),
        };
    };
    let of_loss = |summed: &&(usize, Summed)| {
        let (_, Summed { of, reads, .. }) = summed;
        let own = whole.reads.get(1..1 + reads.len());
        *of == loss && own.is_some_and(|own| own.iter().zip(reads).all(|(a, b)| same_operand(a, b)))
    };
    let read = |sums: &Operand| parts.iter().all(|(_, part)| part.reads.last() == Some(sums));
    let (_, found) =
        summed.iter().filter(of_loss).find(|(_, found)| read(&found.sums)).ok_or("they read other sums")?;
    if parts.iter().any(|part| part.0 < found.last) {
        return Err("a part reads sums that are not complete".to_owned());
    }
    let reads = [&whole.reads[..], std::slice::from_ref(&found.sums)].concat();
    Ok(Work { reads, ..whole.clone() })
}

/// Judges the parts of a launch that is replaced by separate launches for each kind of result.
fn separate(whole: &Work, parts: &[Placed], own_buffers: usize) -> Result<(), String> {
    let mut judged = 0;
    for Separate { kernel, writes } in whole.kernel.separate() {
        let is_own = |(_, part): &Placed| function(&part.kernel) == function(&kernel);
        let own: Vec<Placed> = parts.iter().copied().filter(is_own).collect();
        judged += own.len();
        let work = Work { kernel, reads: whole.reads.clone(), writes: whole.writes[writes].to_vec() };
        of_work(&work, &own, own_buffers)?;
    }
    match judged == parts.len() {
        true => Ok(()),
        false => Err("a part computes another function than those of its results".to_owned()),
    }
}

/// Returns whether a kernel computes, adds or finishes sums of positions.
fn is_sum(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Sums { .. } | Kernel::AddSums { .. } | Kernel::FromSums { .. })
}

/// Checks whether parts together are one launch.
fn of_work(whole: &Work, parts: &[Placed], own_buffers: usize) -> Result<(), String> {
    let lines = Lines::of(whole)?;
    if let Some(lines) = lines.as_ref().filter(|_| sums::are_added(whole, parts)) {
        return sums::judge(whole, lines, parts, own_buffers);
    }
    let continues = whole.kernel.facts().continues;
    let mut found = Vec::with_capacity(parts.len());
    for &(_, part) in parts {
        let wrong = |reason: String| format!("'{}': {reason}", part.name);
        let mut own = Work { kernel: part.kernel.clone(), reads: part.reads.clone(), writes: part.writes.clone() };
        // A part continues from its result, which the whole does not read.
        let goes_on = own.kernel.facts().continues.filter(|_| continues.is_none());
        let own_lines = Lines::of(&own).map_err(wrong)?;
        if let Some(index) = goes_on {
            if index >= own.reads.len() || own.reads[index] != own.writes[0] {
                return Err(wrong("it continues from something other than its result".to_owned()));
            }
            own.reads.remove(index);
        }
        let own_lines = own_lines.map(|lines| goes_on.map_or(lines.clone(), |index| lines.without(index)));
        let extent = extent::of_part(whole, lines.as_ref(), &own, own_lines).map_err(wrong)?;
        found.push((extent, goes_on.is_some(), own.kernel));
    }
    match (&lines, &found[..]) {
        (_, []) => Err("it has no parts".to_owned()),
        (_, [(Extent::All, false, kernel)]) => completes(whole, kernel),
        (Some(lines), all) => tiles(whole, lines, all),
        (None, _) => Err("it has several parts but no axes".to_owned()),
    }
}

/// Returns which part of a product a kernel is, and what it applies when its sums are complete.
fn product_of(kernel: &Kernel) -> Option<(ProductPart, Activation)> {
    match kernel.clone().placement() {
        Placement::Product(part, activation) => Some((*part, *activation)),
        _ => None,
    }
}

/// Checks whether a part whose sums are complete applies what the whole does.
fn completes(whole: &Work, kernel: &Kernel) -> Result<(), String> {
    let activation = |kernel| product_of(kernel).map(|(_, activation)| activation);
    match activation(kernel) == activation(&whole.kernel) {
        true => Ok(()),
        false => Err("sums are complete, but another activation is applied".to_owned()),
    }
}

/// Checks whether parts follow each other along one line from its beginning to its end.
fn tiles(whole: &Work, lines: &Lines, parts: &[(Extent, bool, Kernel)]) -> Result<(), String> {
    let Some((Extent::Range { line, .. }, ..)) = parts.first() else {
        return Err("one part is the whole launch, but there are others".to_owned());
    };
    let line = *line;
    let mut ranges = Vec::with_capacity(parts.len());
    for (number, (extent, goes_on, kernel)) in parts.iter().enumerate() {
        let Extent::Range { line: own, range } = *extent else {
            return Err("one part is the whole launch, but there are others".to_owned());
        };
        if own != line {
            return Err("they are cut along several axes".to_owned());
        }
        if !lines.may_be_cut(line, range.start) {
            return Err(format!("one part begins at {}, where sums cannot be cut", range.start));
        }
        if lines.is_reduced(line) {
            return Err("their sums are not added".to_owned());
        }
        let product = product_of(kernel).map(|(part, _)| part);
        let is_columns = matches!(product, Some(ProductPart::Columns { .. }));
        if *goes_on && !is_columns {
            return Err("one part reads its own result, which only columns of a product may do".to_owned());
        }
        // The first columns do not depend on columns that others have computed.
        if is_columns && *goes_on != (number > 0) {
            return Err("columns are computed in another order".to_owned());
        }
        completes(whole, kernel)?;
        ranges.push(range);
    }
    if !lines.all_write(line, whole.reads.len()) {
        return Err(
            "they are cut along an axis that one of their results lacks, so all write the same bytes".to_owned()
        );
    }
    ranges.sort_unstable();
    let begins = ranges.first().map(|range| range.start);
    let gap = ranges.windows(2).find(|pair| pair[0].end != pair[1].start);
    let (end, size) = (ranges.last().map(|range| range.end), lines.size(line, whole.reads.len()));
    match gap {
        Some(pair) => Err(format!("{:?} and {:?} are not consecutive", pair[0], pair[1])),
        None if begins != Some(0) || end != Some(size) => {
            Err(format!("they cover {begins:?} to {end:?} of {size} indices"))
        }
        None => Ok(()),
    }
}

/// Checks whether sums are in separate buffers, which only the parts of their launch write.
fn sums_are_apart(partition: &Partition, own_buffers: usize) -> Result<(), String> {
    let mut owners: BTreeMap<BufferId, usize> = BTreeMap::new();
    for (&source, part) in partition.sources.iter().zip(&partition.program.launches) {
        for write in part.writes.iter().filter(|write| write.buffer.0 as usize >= own_buffers) {
            if *owners.entry(write.buffer).or_insert(source) != source {
                return Err(format!("'{}' writes the sums of another launch", part.name));
            }
        }
    }
    Ok(())
}

/// Checks whether parts of different launches that touch the same bytes, at least one of them writing, are in the order of their launches.
fn order(Partition { program, sources, .. }: &Partition) -> Result<(), String> {
    // From the right: the first launch that is still to come.
    let mut coming = vec![usize::MAX; sources.len() + 1];
    for index in (0..sources.len()).rev() {
        coming[index] = coming[index + 1].min(sources[index]);
    }
    let mut touched: BTreeMap<BufferId, Vec<(ByteRange, bool, usize)>> = BTreeMap::new();
    let mut latest = 0;
    for (index, (part, &source)) in program.launches.iter().zip(sources).enumerate() {
        if index == 0 || coming[index] > latest {
            touched.clear();
        }
        latest = latest.max(source);
        let reads = part.reads.iter().map(|operand| (operand, false));
        for (operand, writes) in reads.chain(part.writes.iter().map(|operand| (operand, true))) {
            let range = operand.range();
            let of_buffer = touched.entry(operand.buffer).or_default();
            let is_late = |(other, other_writes, earlier): &&(ByteRange, bool, usize)| {
                *earlier > source && (writes || *other_writes) && other.intersection(range).is_some()
            };
            if let Some((_, _, earlier)) = of_buffer.iter().find(is_late) {
                return Err(format!("'{}' comes after a part of launch {earlier}, which needs it first", part.name));
            }
            of_buffer.push((range, writes, source));
        }
    }
    Ok(())
}
