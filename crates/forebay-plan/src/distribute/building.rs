//! The program of a process as it grows, launch by launch.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;

use forebay_base::kernel::facts::{Rest, SumsInParts};
use forebay_base::kernel::{Activation, BinaryOp, Exchange, Summing, EXCHANGES_MAX};
use forebay_base::sum_tree::{nodes_of, PartialSums};
use forebay_base::{DataType, Kernel, TensorDesc};
use forebay_model::program::{Buffer, BufferId, NamedOperand, Operand, Program, ProgramLaunch, Role};

use super::shares::shares;
use super::sharing::{images_of_writes, Shared, Sharing, State};
use super::{Distributed, SharedWork};
use crate::partition::cut::Cutting;
use crate::partition::rows::Rows;

/// Sums in a buffer of several begin at multiples of this many bytes.
const SUMS_ALIGNMENT_BYTES: u64 = 64;

/// The program of a process as it grows.
pub(super) struct Building<'a> {
    program: &'a Program,
    rank: usize,
    processes: usize,
    /// Shares begin at multiples of this many images.
    quantum: u64,
    buffers: Vec<Buffer>,
    launches: Vec<ProgramLaunch>,
    update_start: usize,
    /// By buffer: where its contents are.
    states: Vec<State>,
    /// By buffer that is shared out: one with all of its contents, as long as they do not change.
    gathered: BTreeMap<BufferId, BufferId>,
    /// Losses that are shared out: which sums, what they read, and the sums.
    losses: Vec<(Summing, Vec<Operand>, Operand)>,
    /// What all exchanges read and write.
    order: Option<Operand>,
    work: SharedWork,
}

impl<'a> Building<'a> {
    pub fn new(program: &'a Program, rank: usize, processes: usize, quantum: u64) -> Building<'a> {
        let state = |buffer: &Buffer| if buffer.role.is_temporary() { State::Unwritten } else { State::Whole };
        Building {
            program,
            rank,
            processes,
            quantum,
            buffers: program.buffers.clone(),
            launches: Vec::with_capacity(program.launches.len()),
            update_start: 0,
            states: program.buffers.iter().map(state).collect(),
            gathered: BTreeMap::new(),
            losses: Vec::new(),
            order: None,
            work: SharedWork::default(),
        }
    }

    /// Shares out what is fed, and says which images of it this process is fed. An input of which launches take some images each, as
    /// those of the parts of a batch, is fed whole.
    pub fn share_inputs(&mut self, batch: &BTreeSet<String>) -> BTreeMap<String, Range<u64>> {
        let mut own = BTreeMap::new();
        for NamedOperand { name, operand, .. } in &self.program.inputs {
            let (desc, buffer) = (&operand.desc, operand.buffer.0 as usize);
            let images = desc.sizes().first().copied().unwrap_or(0);
            let Some(shares) = self.shares(images).filter(|_| batch.contains(name)) else { continue };
            let image_bytes = desc.element_count() / images * desc.data_type().size_bytes();
            let is_plain = desc.is_packed()
                && operand.offset_bytes == 0
                && self.program.buffers[buffer].size_bytes == (image_bytes * images).next_multiple_of(4);
            if !is_plain {
                continue;
            }
            let takes_some = |launch: &ProgramLaunch| {
                let reads = launch.reads.iter().any(|read| read.buffer == operand.buffer);
                reads && matches!(&launch.kernel, Kernel::Slice { .. })
            };
            self.states[buffer] = match self.program.launches.iter().any(takes_some) {
                true => State::Batch(None),
                false => {
                    own.insert(name.clone(), shares[self.rank].clone());
                    State::Shared(Shared { images, image_bytes })
                }
            };
        }
        own
    }

    /// Adds all launches. None where contents would have to be whole and shared out at once.
    pub fn build(&mut self) -> Option<()> {
        let program = self.program;
        let (before, updates) = program.launches.split_at(program.update_start.min(program.launches.len()));
        before.iter().try_for_each(|launch| self.add(launch.clone()))?;
        // Whatever the update phase reads is exchanged before it begins, and so is what the caller gets.
        let reads = updates.iter().flat_map(|launch| &launch.reads);
        let outputs = program.outputs.iter().map(|named| &named.operand);
        for operand in reads.chain(outputs) {
            self.whole_buffer(operand.buffer)?;
        }
        self.update_start = self.launches.len();
        updates.iter().try_for_each(|launch| self.add_whole(launch.clone()))
    }

    /// The finished program; none where nothing is shared out.
    pub fn finish(mut self, inputs: BTreeMap<String, Range<u64>>) -> Option<Distributed> {
        if self.work.shared_launches == 0 {
            return None;
        }
        let outputs = self.program.outputs.iter().map(|named| {
            let buffer = self.gathered.get(&named.operand.buffer).copied().unwrap_or(named.operand.buffer);
            NamedOperand { operand: Operand { buffer, ..named.operand.clone() }, ..named.clone() }
        });
        let outputs = outputs.collect();
        let fed = self.program.inputs.iter().map(|named| {
            let Some(own) = inputs.get(&named.name) else { return Some(named.clone()) };
            let with_share = |sizes: &[u64]| {
                let mut sizes = sizes.to_vec();
                sizes.iter_mut().take(1).for_each(|size| *size = own.end - own.start);
                sizes
            };
            let desc = &named.operand.desc;
            let desc = TensorDesc::packed(desc.data_type(), &with_share(desc.sizes())).ok()?;
            let operand = Operand { desc, ..named.operand.clone() };
            Some(NamedOperand { name: named.name.clone(), shape: with_share(&named.shape), operand })
        });
        let fed = fed.collect::<Option<Vec<_>>>()?;
        for (buffer, state) in self.states.iter().enumerate() {
            if let State::Shared(shared) = state {
                let bytes = self.own(shared).map(|share| (share.end - share.start) * shared.image_bytes)?;
                self.buffers[buffer].size_bytes = bytes.next_multiple_of(4);
            }
        }
        let Building { program, buffers, launches, update_start, work, .. } = self;
        let program = Program { buffers, launches, update_start, inputs: fed, outputs, ..program.clone() };
        debug_assert_eq!(program.validate().map_err(|error| error.to_string()), Ok(()));
        Some(Distributed { program, inputs, work })
    }

    /// The images of each process.
    fn shares(&self, images: u64) -> Option<Vec<Range<u64>>> {
        shares(images, self.processes as u64, self.quantum)
    }

    /// What is known of an operand's buffer.
    fn of_buffer(&self, operand: &Operand) -> (State, u64) {
        (self.state(operand.buffer), self.buffers[operand.buffer.0 as usize].size_bytes)
    }

    /// Counts the operations of a launch of which each process has a share, or all.
    fn count(&mut self, launch: &ProgramLaunch, largest_share: f64) {
        let operations = launch.kernel.facts().operations(|operand| launch.desc(operand));
        self.work.operations += operations * largest_share;
    }

    /// The images of a buffer that this process has.
    fn own(&self, shared: &Shared) -> Option<Range<u64>> {
        self.shares(shared.images)?.get(self.rank).cloned()
    }

    fn state(&self, buffer: BufferId) -> State {
        self.states[buffer.0 as usize]
    }

    /// Adds a launch before the update phase: shared out where that can be, or whole.
    fn add(&mut self, launch: ProgramLaunch) -> Option<()> {
        let Some(sharing) = Sharing::of(&launch, &|operand| self.of_buffer(operand)) else {
            return self.add_whole(launch);
        };
        let is_sum = sharing.writes.iter().any(Option::is_none);
        let added = if is_sum { self.add_sum(&launch, &sharing) } else { self.add_shared(&launch, &sharing) };
        match added {
            Some(()) => Some(()),
            None => self.add_whole(launch),
        }
    }

    /// The rows of each process, if parts may begin there.
    fn rows(&self, sharing: &Sharing, step: u64) -> Option<Vec<Rows>> {
        let (unit, rows) = (sharing.cut.rows / sharing.images, sharing.cut.rows);
        let shares = self.shares(sharing.images)?;
        let of_share = |share: &Range<u64>| Rows { start: share.start * unit, end: share.end * unit };
        let all: Vec<Rows> = shares.iter().map(of_share).collect();
        all.iter().all(|own| own.start.is_multiple_of(step) && own.end <= rows).then_some(all)
    }

    /// An operand of a part, as it lies in this process' buffers. It lies within this process' images.
    fn own_operand(&self, mut operand: Operand) -> Option<Operand> {
        if let State::Shared(shared) = self.state(operand.buffer) {
            let before = self.own(&shared)?.start * shared.image_bytes;
            operand.offset_bytes = operand.offset_bytes.checked_sub(before)?;
        }
        Some(operand)
    }

    fn own_part(&self, part: ProgramLaunch) -> Option<ProgramLaunch> {
        let own = |operands: Vec<Operand>| operands.into_iter().map(|operand| self.own_operand(operand)).collect();
        let (reads, writes): (Option<Vec<_>>, Option<Vec<_>>) = (own(part.reads), own(part.writes));
        Some(ProgramLaunch { reads: reads?, writes: writes?, ..part })
    }

    /// Adds this process' part of a launch whose results have images. None where it cannot be; nothing has changed then.
    fn add_shared(&mut self, launch: &ProgramLaunch, sharing: &Sharing) -> Option<()> {
        let cutting = Cutting::new(launch, &sharing.cut)?;
        let rows = self.rows(sharing, sharing.dimension.cut?)?;
        let mut sums = None;
        if let Some(loss) = launch.kernel.facts().gradient_of_loss {
            let is_same =
                |(_, reads, _): &&(Summing, Vec<Operand>, Operand)| launch.reads.get(1..3) == Some(&reads[..]);
            let found = self.losses.iter().filter(|(of, ..)| *of == loss).find(is_same);
            sums = Some(found?.2.clone());
        }
        let parts = rows.iter().map(|&rows| cutting.part(rows, None)).collect::<Option<Vec<_>>>()?;
        let before = self.states.clone();
        for (write, shared) in launch.writes.iter().zip(&sharing.writes) {
            self.states[write.buffer.0 as usize] = State::Shared((*shared)?);
        }
        let part = parts.into_iter().nth(self.rank).and_then(|part| self.own_part(part));
        let Some(mut part) = part else {
            self.states = before;
            return None;
        };
        part.reads.extend(sums);
        for write in &launch.writes {
            self.gathered.remove(&write.buffer);
        }
        self.work.shared_launches += 1;
        self.count(launch, largest_share(&rows));
        self.launches.push(part);
        Some(())
    }

    /// Adds this process' part of a sum over images, the exchange of all parts, and what adds them. None where it cannot be; nothing
    /// has changed then.
    fn add_sum(&mut self, launch: &ProgramLaunch, sharing: &Sharing) -> Option<()> {
        let (cut, cutting) = (&sharing.cut, Cutting::new(launch, &sharing.cut)?);
        let rows = self.rows(sharing, cut.step)?;
        let leaves = cut.rows.div_ceil(cut.step);
        let nodes = rows.iter().map(|own| nodes_of(own.start / cut.step..own.end.div_ceil(cut.step), leaves));
        let nodes: Vec<Vec<Range<u64>>> = nodes.collect();
        let (is_tree, summed) = (cutting.is_tree(), Cutting::new(launch, cut)?.summed());
        let desc = match &summed {
            Some(SumsInParts { of, .. }) => {
                let channels = launch.writes.last().map_or(1, |write| write.desc.element_count());
                TensorDesc::packed(DataType::Float64, &[of.rows(), channels]).ok()?
            }
            None => launch.writes.first().filter(|write| is_tree && write.desc.is_packed())?.desc.clone(),
        };
        if summed.is_none() && launch.writes.len() > 1 {
            return None;
        }
        let sum_bytes = desc.total_size_bytes().next_multiple_of(SUMS_ALIGNMENT_BYTES);
        let slot = |buffer: BufferId, number: usize| Operand {
            buffer,
            offset_bytes: number as u64 * sum_bytes,
            desc: desc.clone(),
        };
        // The parts of all processes are looked at, so that all of them decide alike.
        let part = |node: &Range<u64>, sums: &Operand| {
            let rows = Rows { start: node.start * cut.step, end: (node.end * cut.step).min(cut.rows) };
            let mut part = cutting.part(rows, Some(sums))?;
            part.writes = vec![sums.clone()];
            Some(part)
        };
        let nowhere = slot(BufferId(u32::MAX), 0);
        nodes.iter().flatten().try_for_each(|node| part(node, &nowhere).map(drop))?;
        let parts = nodes[self.rank].iter().map(|node| {
            let part = part(node, &nowhere)?;
            let own = |read: Operand| self.own_operand(read);
            Some(ProgramLaunch { reads: part.reads.into_iter().map(own).collect::<Option<_>>()?, ..part })
        });
        let parts = parts.collect::<Option<Vec<_>>>()?;
        // From here on, nothing can fail.
        let own_sums = self.buffer(format!("sums of {}", launch.name), parts.len() as u64 * sum_bytes)?;
        for (number, part) in parts.into_iter().enumerate() {
            self.launches.push(ProgramLaunch { writes: vec![slot(own_sums, number)], ..part });
        }
        self.work.shared_launches += 1;
        self.count(launch, largest_share(&rows));
        let sizes: Vec<u64> = nodes.iter().map(|own| own.len() as u64 * sum_bytes).collect();
        let all_sums = self.buffer(format!("all sums of {}", launch.name), sizes.iter().sum())?;
        self.exchange_all(&launch.name, own_sums, all_sums, &sizes)?;
        let mut additions = Vec::new();
        let mut sums = PartialSums::default();
        for (number, node) in nodes.iter().flatten().enumerate() {
            sums.push(node.clone(), number, |earlier, later| {
                additions.push((earlier, later));
                earlier
            });
        }
        sums.total(|earlier, later| {
            additions.push((earlier, later));
            earlier
        });
        let mut kernel = launch.kernel.clone();
        let completed = kernel.activation_mut().map_or(Activation::None, |activation| *activation);
        let last = additions.len();
        for (number, (earlier, later)) in (1..).zip(additions) {
            let [earlier, later] = [earlier, later].map(|number| slot(all_sums, number));
            let is_result = number == last && summed.is_none();
            let kernel = match &summed {
                Some(SumsInParts { of, .. }) => Kernel::AddSums { of: *of },
                None => {
                    let activation = if is_result { completed } else { Activation::None };
                    Kernel::Binary { op: BinaryOp::Add, activation }
                }
            };
            let target = if is_result { launch.writes[0].clone() } else { earlier.clone() };
            let name = format!("{} sum {number} of {last}", launch.name);
            self.push(name, kernel, vec![earlier, later], vec![target]);
        }
        match summed {
            Some(summed) => self.finish_sums(launch, summed, slot(all_sums, 0)),
            None => {
                self.states[launch.writes[0].buffer.0 as usize] = State::Whole;
                Some(())
            }
        }
    }

    /// Adds what becomes of sums, and what the launch computes besides.
    fn finish_sums(&mut self, launch: &ProgramLaunch, summed: SumsInParts, sums: Operand) -> Option<()> {
        let SumsInParts { of, finish_reads, first_finished, rest, .. } = summed;
        self.losses.push((of, launch.reads.clone(), sums.clone()));
        let finished = launch.writes[first_finished..].to_vec();
        let reads = finish_reads.iter().map(|&read| launch.reads[read].clone());
        let reads = iter::once(sums.clone()).chain(reads).collect();
        finished.iter().for_each(|write| self.states[write.buffer.0 as usize] = State::Whole);
        self.push(format!("{} from sums", launch.name), Kernel::FromSums { of }, reads, finished.clone());
        let Some(Rest { kernel, reads, reads_finished, reads_sums }) = rest else { return Some(()) };
        let mut reads = launch.reads[..reads].to_vec();
        if reads_finished {
            reads.extend(finished);
        }
        reads.extend(reads_sums.then_some(sums));
        self.add(ProgramLaunch { kernel, reads, writes: launch.writes[..first_finished].to_vec(), ..launch.clone() })
    }

    /// Adds a launch that every process computes, with whole operands. None where it writes a part of what is shared out and cannot.
    fn add_whole(&mut self, mut launch: ProgramLaunch) -> Option<()> {
        let exchanges = self.work.exchanges;
        let images = images_of_writes(&launch, &|operand| self.of_buffer(operand));
        self.count(&launch, 1.0);
        for read in &mut launch.reads {
            read.buffer = self.whole_buffer(read.buffer)?;
        }
        if self.work.exchanges > exchanges {
            self.work.whole_launches.push(launch.name.clone());
        }
        // Where others have written their images, so does this launch, from a buffer of its own.
        let mut copies = Vec::new();
        for (write, images) in launch.writes.iter_mut().zip(images) {
            match self.state(write.buffer) {
                State::Shared(_) => {
                    let Buffer { name, size_bytes, .. } = &self.buffers[write.buffer.0 as usize];
                    let whole = self.buffer(format!("all of {name}"), *size_bytes)?;
                    let target = write.clone();
                    write.buffer = whole;
                    copies.push(ProgramLaunch {
                        name: format!("{} to its images", launch.name),
                        kernel: Kernel::Copy,
                        reads: vec![write.clone()],
                        writes: vec![target],
                        workspace_bytes: 0,
                        on_host: false,
                    });
                }
                State::Unwritten | State::Whole | State::Batch(_) => {}
            }
            self.states[write.buffer.0 as usize] = images.map_or(State::Whole, |images| State::Batch(Some(images)));
        }
        self.launches.push(launch);
        for copy in copies {
            let sharing = Sharing::of(&copy, &|operand| self.of_buffer(operand))?;
            self.add_shared(&copy, &sharing)?;
        }
        Some(())
    }

    /// The buffer that has all of a buffer's contents, which are exchanged if they are shared out.
    fn whole_buffer(&mut self, buffer: BufferId) -> Option<BufferId> {
        let State::Shared(shared) = self.state(buffer) else { return Some(buffer) };
        if let Some(&whole) = self.gathered.get(&buffer) {
            return Some(whole);
        }
        let Buffer { name, size_bytes, role } = self.buffers[buffer.0 as usize].clone();
        let whole = self.buffer(format!("all of {name}"), size_bytes)?;
        if role == Role::Gradient {
            self.buffers[whole.0 as usize].role = role;
        }
        let shares = self.shares(shared.images)?;
        let sizes: Vec<u64> = shares.iter().map(|share| (share.end - share.start) * shared.image_bytes).collect();
        self.exchange_all(&name, buffer, whole, &sizes)?;
        self.gathered.insert(buffer, whole);
        Some(whole)
    }

    /// Adds an exchange in which every process gets what all have.
    fn exchange_all(&mut self, name: &str, own: BufferId, all: BufferId, sizes: &[u64]) -> Option<()> {
        let number = u32::try_from(self.work.exchanges).ok().filter(|&number| number < EXCHANGES_MAX)?;
        let bytes = |buffer: BufferId, bytes: u64| {
            let desc = TensorDesc::packed(DataType::UInt8, &[bytes]).ok()?;
            Some(Operand { buffer, offset_bytes: 0, desc })
        };
        let (x, y) = (bytes(own, sizes[self.rank])?, bytes(all, sizes.iter().sum())?);
        let order = match self.order.clone() {
            Some(order) => order,
            None => {
                let buffer = self.buffer("order of exchanges".to_string(), 4)?;
                let desc = TensorDesc::packed(DataType::Float32, &[1]).ok()?;
                let order = Operand { buffer, offset_bytes: 0, desc };
                self.push(
                    "order of exchanges".to_string(),
                    Kernel::Fill { value: 0.0 },
                    Vec::new(),
                    vec![order.clone()],
                );
                self.order.insert(order).clone()
            }
        };
        let kernel = Kernel::Exchange(Exchange::gather(number, self.rank, sizes));
        self.push(format!("exchange of {name}"), kernel, vec![x, order.clone()], vec![y, order]);
        self.states[all.0 as usize] = State::Whole;
        self.work.exchanges += 1;
        self.work.sent_bytes += sizes[self.rank] * (self.processes as u64 - 1);
        self.work.all_sent_bytes += sizes.iter().sum::<u64>() * (self.processes as u64 - 1);
        Some(())
    }

    fn push(&mut self, name: String, kernel: Kernel, reads: Vec<Operand>, writes: Vec<Operand>) {
        self.launches.push(ProgramLaunch { name, kernel, reads, writes, workspace_bytes: 0, on_host: false });
    }

    /// A buffer of its own.
    fn buffer(&mut self, name: String, size_bytes: u64) -> Option<BufferId> {
        let buffer = BufferId(u32::try_from(self.buffers.len()).ok()?);
        self.buffers.push(Buffer { name, size_bytes, role: Role::Temporary });
        self.states.push(State::Unwritten);
        Some(buffer)
    }
}

/// The part of all rows that the process with the most of them has.
fn largest_share(rows: &[Rows]) -> f64 {
    let all = rows.last().map_or(1, |last| last.end).max(1);
    rows.iter().map(|own| own.len()).max().unwrap_or(all) as f64 / all as f64
}
