//! Checks a schedule against its workload alone: nothing here depends on how schedules are made.
//!
//! Two steps are replayed in a row. The checks are: every kernel runs once, in order and alone, and finds every byte that it reads in the
//! version that the plain step would have; recomputations run kernels that update nothing in place, after their first run, on the versions
//! that they had then; no memory is ever overfull; in no window of time does a link carry more than its rate allows; and the second step
//! starts and ends as the first one did.
//!
//! Times are whole nanoseconds, so a window of time is allowed [`ROUNDING_NS`] more than its length.

mod links;
mod memory;

use std::fmt;

use crate::schedule::{Direction, Drop, Launch, MemorySpace, Piece, Schedule, Transfer};
use crate::workload::Workload;

use memory::{Memory, Version, When};

/// What rounding can add to a window of time: one nanosecond at each end, for each of the two memories that share the link.
pub const ROUNDING_NS: u64 = 4;

/// What a correct schedule does in one step.
///
/// ```
/// use forebay_offload::verify::verify;
/// use forebay_offload::workload::{Kernel, Machine, Tensor, Workload};
///
/// # let tensor = |persistent| Tensor { size_bytes: 1 << 20, persistent };
/// # let kernel = |name: &str, reads: &[usize], writes: &[usize]| Kernel {
/// #     name: name.to_string(), duration_ns: 1_000_000, reads: reads.to_vec(), writes: writes.to_vec(), workspace_bytes: 0,
/// # };
/// # let machine = Machine {
/// #     device_memory_bytes: 2 << 20, host_memory_bytes: 1 << 30, link_bytes_per_s: 4 << 30,
/// #     ssd_read_bytes_per_s: 1 << 30, ssd_write_bytes_per_s: 1 << 30,
/// # };
/// # let workload = Workload {
/// #     tensors: vec![tensor(false), tensor(false), tensor(false)],
/// #     kernels: vec![kernel("a", &[], &[0]), kernel("b", &[], &[1, 2]), kernel("c", &[1], &[2]), kernel("d", &[0], &[2])],
/// #     machine,
/// # };
/// // Four kernels of a millisecond; the third needs a block that does not fit with the first one's.
/// let schedule = forebay_offload::planner::plan(&workload, &mut |_| ()).unwrap();
/// let account = verify(&workload, &schedule).unwrap();
/// assert!(account.device_peak_bytes <= workload.machine.device_memory_bytes);
/// assert_eq!(account.step_ns, schedule.step_ns);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// How long the step takes.
    pub step_ns: u64,
    /// The most bytes on the device.
    pub device_peak_bytes: u64,
    /// The most bytes in the host's memory.
    pub host_peak_bytes: u64,
    /// The most bytes on the SSD.
    pub ssd_peak_bytes: u64,
    /// Bytes from the device to the host.
    pub host_out_bytes: u64,
    /// Bytes from the host to the device.
    pub host_in_bytes: u64,
    /// Bytes from the device to the SSD.
    pub ssd_out_bytes: u64,
    /// Bytes from the SSD to the device.
    pub ssd_in_bytes: u64,
    /// The number of kernels that are recomputed.
    pub recomputed_kernels: u64,
    /// How long the recomputations take.
    pub recomputed_ns: u64,
    /// The number of kernels that wait for a transfer to the device of something that they touch.
    pub late_prefetches: u64,
    /// How long kernels wait, for whatever reason.
    pub wait_ns: u64,
}

/// What is wrong with a schedule.
///
/// ```
/// use forebay_offload::schedule::Schedule;
/// use forebay_offload::verify::{verify, Fault};
/// use forebay_offload::workload::{Kernel, Machine, Tensor, Workload};
///
/// # let tensor = |persistent| Tensor { size_bytes: 1 << 20, persistent };
/// # let kernel = |name: &str, reads: &[usize], writes: &[usize]| Kernel {
/// #     name: name.to_string(), duration_ns: 1_000_000, reads: reads.to_vec(), writes: writes.to_vec(), workspace_bytes: 0,
/// # };
/// # let machine = Machine {
/// #     device_memory_bytes: 2 << 20, host_memory_bytes: 1 << 30, link_bytes_per_s: 4 << 30,
/// #     ssd_read_bytes_per_s: 1 << 30, ssd_write_bytes_per_s: 1 << 30,
/// # };
/// # let workload = Workload {
/// #     tensors: vec![tensor(false), tensor(false), tensor(false)],
/// #     kernels: vec![kernel("a", &[], &[0]), kernel("b", &[], &[1, 2]), kernel("c", &[1], &[2]), kernel("d", &[0], &[2])],
/// #     machine,
/// # };
/// // A schedule in which nothing runs.
/// let fault: Fault = verify(&workload, &Schedule::default()).unwrap_err();
/// assert_eq!((fault.step, fault.at_ns), (0, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The step, from 0.
    pub step: usize,
    /// When in that step.
    pub at_ns: u64,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}, at {} ns: {}", self.step, self.at_ns, self.reason)
    }
}

impl std::error::Error for Fault {}

/// Checks a schedule.
///
/// # Errors
/// Returns the first fault found.
pub fn verify(workload: &Workload, schedule: &Schedule) -> Result<Account, Fault> {
    let mut replay = Replay::new(workload, schedule);
    let at_start = |reason| Fault { step: 0, at_ns: 0, reason };
    replay.check_stamps().map_err(at_start)?;
    replay.fill().map_err(at_start)?;
    for step in 0..2 {
        let before = replay.snapshot(0);
        replay.step = step;
        replay.run_step()?;
        let at_end = |reason| Fault { step, at_ns: schedule.step_ns, reason };
        if let Some(difference) = memory::difference(&before, &replay.snapshot(1)) {
            return Err(at_end(format!("the step does not end as it started: {difference}")));
        }
        replay.shift();
    }
    links::check(&workload.machine, schedule).map_err(|(at_ns, reason)| Fault { step: 0, at_ns, reason })?;
    let (late_prefetches, wait_ns) = waits(workload, schedule);
    Ok(Account { late_prefetches, wait_ns, ..replay.account })
}

/// How many kernels wait for a transfer of something that they touch, and how long all kernels wait.
fn waits(workload: &Workload, schedule: &Schedule) -> (u64, u64) {
    let mut arrivals: Vec<(u64, usize)> = Vec::new();
    let comes_in = |transfer: &&Transfer| transfer.direction == Direction::In;
    arrivals
        .extend(schedule.transfers.iter().filter(comes_in).map(|transfer| (transfer.end_ns, transfer.piece.tensor)));
    arrivals.sort_unstable();
    let mut launches: Vec<&Launch> = schedule.launches.iter().collect();
    launches.sort_by_key(|launch| launch.start_ns);
    let (mut late, mut wait_ns, mut free_ns) = (0, 0, 0);
    for launch in launches {
        let kernel = &workload.kernels[launch.kernel];
        let from = arrivals.partition_point(|(at_ns, _)| *at_ns <= free_ns);
        let to = arrivals.partition_point(|(at_ns, _)| *at_ns <= launch.start_ns);
        let touched = |tensor: &usize| kernel.reads.contains(tensor) || kernel.writes.contains(tensor);
        late += u64::from(from < to && arrivals[from..to].iter().any(|(_, tensor)| touched(tensor)));
        wait_ns += launch.start_ns - free_ns;
        free_ns = launch.start_ns + kernel.duration_ns.max(1);
    }
    (late, wait_ns)
}

/// Something that happens at one moment. Ends come first, then drops, then starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    TransferEnds(usize),
    LaunchEnds(usize),
    Dropped(usize),
    LaunchStarts(usize),
    TransferStarts(usize),
}

/// The state of the machine while the schedule is replayed.
struct Replay<'a> {
    workload: &'a Workload,
    schedule: &'a Schedule,
    /// For each kernel, the version of each tensor that it reads, as in the plain step.
    expected: Vec<Vec<Version>>,
    /// The first kernel that touches each tensor in the plain step.
    first_touch: Vec<Option<usize>>,
    /// The versions of tensors when a step starts.
    initial: Vec<Version>,
    device: Memory,
    host: Memory,
    ssd: Memory,
    /// The number of transfers of each tensor that are under way.
    under_way: Vec<usize>,
    /// The contents that each transfer carries.
    carried: Vec<Vec<(u64, u64, Option<Version>)>>,
    running: Option<usize>,
    /// The first kernel that has not run yet.
    next_kernel: usize,
    step: usize,
    account: Account,
}

impl<'a> Replay<'a> {
    fn new(workload: &'a Workload, schedule: &'a Schedule) -> Replay<'a> {
        let (initial, expected) = reference(workload);
        let count = workload.tensors.len();
        let mut first_touch = vec![None; count];
        for (number, kernel) in workload.kernels.iter().enumerate() {
            for tensor in kernel.touches() {
                first_touch[tensor].get_or_insert(number);
            }
        }
        Replay {
            workload,
            schedule,
            expected,
            first_touch,
            initial,
            device: Memory::new("the device", workload.machine.device_memory_bytes, count),
            host: Memory::new("the host", workload.machine.host_memory_bytes, count),
            ssd: Memory::new("the SSD", u64::MAX, count),
            under_way: vec![0; count],
            carried: vec![Vec::new(); schedule.transfers.len()],
            running: None,
            next_kernel: 0,
            step: 0,
            account: Account { step_ns: schedule.step_ns, ..Account::default() },
        }
    }

    /// Checks for numbers that name nothing and times outside the step.
    fn check_stamps(&self) -> Result<(), String> {
        let step_ns = self.schedule.step_ns;
        for launch in &self.schedule.launches {
            let Some(kernel) = self.workload.kernels.get(launch.kernel) else {
                return Err(format!("the workload has no kernel {}", launch.kernel));
            };
            if launch.start_ns.saturating_add(kernel.duration_ns.max(1)) > step_ns {
                return Err(format!("kernel {} ends after the end of the step", launch.kernel));
            }
        }
        for Transfer { piece, start_ns, end_ns, place, .. } in &self.schedule.transfers {
            self.check_piece(piece)?;
            if start_ns >= end_ns || *end_ns > step_ns {
                return Err(format!(
                    "a transfer of {piece} runs from {start_ns} to {end_ns} ns in a step of {step_ns}"
                ));
            }
            if *place == MemorySpace::Device {
                return Err(format!("a transfer of {piece} names the device as its other end"));
            }
        }
        for Drop { piece, at_ns, .. } in &self.schedule.drops {
            self.check_piece(piece)?;
            if *at_ns > step_ns {
                return Err(format!("{piece} is dropped after the end of the step"));
            }
        }
        self.schedule.resident.iter().try_for_each(|resident| self.check_piece(&resident.piece))
    }

    fn check_piece(&self, piece: &Piece) -> Result<(), String> {
        let size_bytes = self.workload.tensors.get(piece.tensor).map(|tensor| tensor.size_bytes);
        let end_bytes = piece.offset_bytes.checked_add(piece.size_bytes);
        match (size_bytes, end_bytes) {
            (Some(size_bytes), Some(end_bytes)) if end_bytes <= size_bytes && piece.size_bytes > 0 => Ok(()),
            _ => Err(format!("the workload has no {piece}")),
        }
    }

    /// Fills the memories with what is resident when the step starts.
    fn fill(&mut self) -> Result<(), String> {
        for resident in &self.schedule.resident {
            let piece = resident.piece;
            if !self.workload.tensors[piece.tensor].persistent {
                return Err(format!(
                    "{piece} is resident at the start, but only persistent tensors live from one step to the next"
                ));
            }
            let version = self.initial[piece.tensor];
            self.memory(resident.place).take(&piece, Some(version))?;
        }
        Ok(())
    }

    fn memory(&mut self, place: MemorySpace) -> &mut Memory {
        match place {
            MemorySpace::Device => &mut self.device,
            MemorySpace::Host => &mut self.host,
            MemorySpace::Ssd => &mut self.ssd,
        }
    }

    /// What all memories hold, with versions as a step that starts `steps` later would name them.
    fn snapshot(&self, steps: u8) -> Vec<memory::Contents> {
        [&self.device, &self.host, &self.ssd].into_iter().map(|memory| memory.contents(steps)).collect()
    }

    /// From now on, what was written in this step counts as written in the last step.
    fn shift(&mut self) {
        [&mut self.device, &mut self.host, &mut self.ssd].into_iter().for_each(Memory::shift);
        self.next_kernel = 0;
    }

    fn run_step(&mut self) -> Result<(), Fault> {
        let step = self.step;
        for (at_ns, event) in self.events() {
            self.apply(event).map_err(|reason| Fault { step, at_ns, reason })?;
            self.account.device_peak_bytes = self.account.device_peak_bytes.max(self.device.used_bytes);
            self.account.host_peak_bytes = self.account.host_peak_bytes.max(self.host.used_bytes);
            self.account.ssd_peak_bytes = self.account.ssd_peak_bytes.max(self.ssd.used_bytes);
        }
        if self.next_kernel < self.workload.kernels.len() {
            let reason = format!("kernel {} does not run", self.next_kernel);
            return Err(Fault { step, at_ns: self.schedule.step_ns, reason });
        }
        Ok(())
    }

    fn events(&self) -> Vec<(u64, Event)> {
        let mut events = Vec::new();
        for (index, transfer) in self.schedule.transfers.iter().enumerate() {
            events.push((transfer.start_ns, Event::TransferStarts(index)));
            events.push((transfer.end_ns, Event::TransferEnds(index)));
        }
        for (index, launch) in self.schedule.launches.iter().enumerate() {
            let duration_ns = self.workload.kernels[launch.kernel].duration_ns.max(1);
            events.push((launch.start_ns, Event::LaunchStarts(index)));
            events.push((launch.start_ns + duration_ns, Event::LaunchEnds(index)));
        }
        events.extend(self.schedule.drops.iter().enumerate().map(|(index, drop)| (drop.at_ns, Event::Dropped(index))));
        events.sort_unstable();
        events
    }

    fn apply(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::TransferStarts(index) => self.start_transfer(index),
            Event::TransferEnds(index) => self.end_transfer(index),
            Event::LaunchStarts(index) => self.start_launch(index),
            Event::LaunchEnds(index) => self.end_launch(index),
            Event::Dropped(index) => {
                let Drop { piece, place, .. } = self.schedule.drops[index];
                self.memory(place).release(&piece)
            }
        }
    }

    fn start_transfer(&mut self, index: usize) -> Result<(), String> {
        let Transfer { piece, direction, place, .. } = self.schedule.transfers[index];
        let (source, target) = match direction {
            Direction::Out => (MemorySpace::Device, place),
            Direction::In => (place, MemorySpace::Device),
        };
        let carried = self.memory(source).read(&piece)?;
        if carried.iter().any(|(_, _, version)| version.is_none()) {
            return Err(format!("{piece} leaves {} while it is being written", self.memory(source).name));
        }
        self.carried[index] = carried;
        self.under_way[piece.tensor] += 1;
        self.memory(target).take(&piece, None)
    }

    fn end_transfer(&mut self, index: usize) -> Result<(), String> {
        let Transfer { piece, direction, place, .. } = self.schedule.transfers[index];
        let (source, target) = match direction {
            Direction::Out => (MemorySpace::Device, place),
            Direction::In => (place, MemorySpace::Device),
        };
        let carried = std::mem::take(&mut self.carried[index]);
        if self.memory(source).read(&piece)? != carried {
            return Err(format!("{piece} changes on {} while it is copied", self.memory(source).name));
        }
        if self.memory(target).read(&piece)?.iter().any(|(_, _, version)| version.is_some()) {
            return Err(format!("{piece} changes on {} while it arrives", self.memory(target).name));
        }
        for (from, to, version) in carried {
            let part = Piece { tensor: piece.tensor, offset_bytes: from, size_bytes: to - from };
            self.memory(target).write(&part, version);
        }
        self.under_way[piece.tensor] -= 1;
        let bytes = match (direction, place) {
            (Direction::Out, MemorySpace::Ssd) => &mut self.account.ssd_out_bytes,
            (Direction::In, MemorySpace::Ssd) => &mut self.account.ssd_in_bytes,
            (Direction::Out, _) => &mut self.account.host_out_bytes,
            (Direction::In, _) => &mut self.account.host_in_bytes,
        };
        *bytes += if self.step == 0 { piece.size_bytes } else { 0 };
        Ok(())
    }

    /// Checks that a kernel finds what it reads, and room for what it writes.
    fn start_launch(&mut self, index: usize) -> Result<(), String> {
        let Launch { kernel: number, recomputation, .. } = self.schedule.launches[index];
        let (workload, kernel) = (self.workload, &self.workload.kernels[number]);
        if let Some(other) = self.running.replace(index) {
            let other = self.schedule.launches[other].kernel;
            return Err(format!("kernel {number} starts while kernel {other} runs"));
        }
        if recomputation {
            if number >= self.next_kernel {
                return Err(format!("kernel {number} is recomputed before its first run"));
            }
            if kernel.updates_in_place() {
                return Err(format!("kernel {number} updates a tensor in place, so it must not run twice"));
            }
        } else if number != self.next_kernel {
            return Err(format!("kernel {number} runs, but kernel {} is next", self.next_kernel));
        } else {
            self.next_kernel += 1;
        }
        let reads = kernel.reads.iter().zip(self.expected[number].clone());
        for (&tensor, version) in reads {
            let whole = whole(workload, tensor);
            let born_here = version == Version::Input && self.device.holds_nothing(tensor) && !recomputation;
            if born_here && self.first_touch[tensor] == Some(number) {
                self.device.take(&whole, Some(version))?;
            }
            if whole.size_bytes > 0 && self.device.read(&whole)? != [(0, whole.size_bytes, Some(version))] {
                return Err(format!("kernel {number} '{}' finds the wrong contents in tensor {tensor}", kernel.name));
            }
        }
        for &tensor in &kernel.writes {
            if self.under_way[tensor] > 0 {
                return Err(format!("kernel {number} writes tensor {tensor} while a transfer of it is under way"));
            }
            self.device.release_all(tensor);
            self.device.take(&whole(workload, tensor), None)?;
        }
        self.device.grow(kernel.workspace_bytes)
    }

    fn end_launch(&mut self, index: usize) -> Result<(), String> {
        let Launch { kernel: number, recomputation, .. } = self.schedule.launches[index];
        let kernel = &self.workload.kernels[number];
        for &tensor in &kernel.writes {
            let written = Some(Version::Written { kernel: number, when: When::ThisStep });
            self.device.write(&whole(self.workload, tensor), written);
        }
        self.device.used_bytes -= kernel.workspace_bytes;
        self.running = None;
        if recomputation && self.step == 0 {
            self.account.recomputed_kernels += 1;
            self.account.recomputed_ns += kernel.duration_ns.max(1);
        }
        Ok(())
    }
}

/// All of a tensor.
fn whole(workload: &Workload, tensor: usize) -> Piece {
    Piece { tensor, offset_bytes: 0, size_bytes: workload.tensors[tensor].size_bytes }
}

/// The plain step: versions at its start, and what each kernel reads.
fn reference(workload: &Workload) -> (Vec<Version>, Vec<Vec<Version>>) {
    let mut initial = vec![Version::Input; workload.tensors.len()];
    for (number, kernel) in workload.kernels.iter().enumerate() {
        for &tensor in kernel.writes.iter().filter(|tensor| workload.tensors[**tensor].persistent) {
            initial[tensor] = Version::Written { kernel: number, when: When::LastStep };
        }
    }
    let mut current = initial.clone();
    let mut expected = Vec::with_capacity(workload.kernels.len());
    for (number, kernel) in workload.kernels.iter().enumerate() {
        expected.push(kernel.reads.iter().map(|tensor| current[*tensor]).collect());
        for &tensor in &kernel.writes {
            current[tensor] = Version::Written { kernel: number, when: When::ThisStep };
        }
    }
    (initial, expected)
}
