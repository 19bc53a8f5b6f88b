//! Demand paging, for comparison: nothing moves before a kernel needs it, and the least recently used tensor leaves first.
//!
//! The rules are those of the planner: dirty tensors are written back, clean ones are dropped, dead ones cost nothing, both directions of
//! the link work at once, and the step is repeated until it ends as it started.

use crate::schedule::{Direction, Drop, Launch, MemorySpace, Piece, Resident, Schedule, Transfer};
use crate::timeline::carrying_ns;
use crate::workload::{Kernel, SwapError, Workload};

/// Tensors are paged in pieces of this size, so that a piece can come in as soon as another one has left.
const PAGE_BYTES: u64 = 16 << 20;

/// The number of steps within which the state must repeat.
const MOST_STEPS: usize = 32;

/// Returns the schedule of one step of demand paging in its steady state.
///
/// # Errors
/// If a kernel does not fit the device, or if the paging of the workload does not repeat from step to step.
pub fn demand_lru(workload: &Workload) -> Result<Schedule, SwapError> {
    workload.validate()?;
    let lives = Lives::new(workload);
    let mut paging = Paging::new(workload, &lives);
    for _ in 0..MOST_STEPS {
        let before = paging.state();
        paging.run_step();
        if paging.state() == before {
            return Ok(paging.schedule);
        }
    }
    Err(SwapError::NoSchedule { reason: format!("demand paging does not become periodic within {MOST_STEPS} steps") })
}

/// When contents are no longer needed.
struct Lives {
    /// For each kernel, the tensors that are dead after it.
    dead: Vec<Vec<usize>>,
    /// The tensors whose contents the step expects at its start: persistent ones that it does not write before it reads them.
    at_start: Vec<bool>,
}

impl Lives {
    fn new(workload: &Workload) -> Lives {
        // Whether the next touch of each tensor reads it; at the end of the step, the first touch of the next step counts.
        let mut next_reads: Vec<bool> = workload.tensors.iter().map(|tensor| tensor.persistent).collect();
        for kernel in workload.kernels.iter().rev() {
            for tensor in kernel.touches() {
                next_reads[tensor] = workload.tensors[tensor].persistent && kernel.reads.contains(&tensor);
            }
        }
        let at_start = next_reads.clone();
        let mut dead = vec![Vec::new(); workload.kernels.len()];
        for (number, kernel) in workload.kernels.iter().enumerate().rev() {
            for tensor in kernel.touches() {
                if !next_reads[tensor] {
                    dead[number].push(tensor);
                }
                next_reads[tensor] = kernel.reads.contains(&tensor);
            }
        }
        Lives { dead, at_start }
    }
}

/// Where a tensor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Page {
    /// Whether it is on the device.
    resident: bool,
    /// A valid copy elsewhere.
    copy: Option<MemorySpace>,
}

/// The machine under demand paging.
struct Paging<'a> {
    workload: &'a Workload,
    lives: &'a Lives,
    pages: Vec<Page>,
    /// The resident tensors, the least recently used first.
    recency: Vec<usize>,
    device_used_bytes: u64,
    host_used_bytes: u64,
    now_ns: u64,
    schedule: Schedule,
}

impl<'a> Paging<'a> {
    fn new(workload: &'a Workload, lives: &'a Lives) -> Paging<'a> {
        let mut paging = Paging {
            workload,
            lives,
            pages: vec![Page::default(); workload.tensors.len()],
            recency: Vec::new(),
            device_used_bytes: 0,
            host_used_bytes: 0,
            now_ns: 0,
            schedule: Schedule::default(),
        };
        for (tensor, lives) in lives.at_start.iter().enumerate() {
            if *lives {
                paging.pages[tensor].copy = Some(paging.place_for(workload.tensors[tensor].size_bytes));
            }
        }
        paging
    }

    fn state(&self) -> (Vec<Page>, Vec<usize>) {
        (self.pages.clone(), self.recency.clone())
    }

    /// Finds a memory with room for a copy, and takes the room.
    fn place_for(&mut self, size_bytes: u64) -> MemorySpace {
        if self.host_used_bytes + size_bytes <= self.workload.machine.host_memory_bytes {
            self.host_used_bytes += size_bytes;
            return MemorySpace::Host;
        }
        MemorySpace::Ssd
    }

    fn size_bytes(&self, tensor: usize) -> u64 {
        self.workload.tensors[tensor].size_bytes
    }

    fn whole(&self, tensor: usize) -> Piece {
        Piece { tensor, offset_bytes: 0, size_bytes: self.size_bytes(tensor) }
    }

    fn run_step(&mut self) {
        self.now_ns = 0;
        self.schedule = Schedule { resident: self.residents(), ..Schedule::default() };
        for number in 0..self.workload.kernels.len() {
            self.run_kernel(number);
        }
        self.schedule.step_ns = self.now_ns;
    }

    fn residents(&self) -> Vec<Resident> {
        let mut residents = Vec::new();
        for (tensor, page) in self.pages.iter().enumerate().filter(|(tensor, _)| self.size_bytes(*tensor) > 0) {
            let places = page.resident.then_some(MemorySpace::Device).into_iter().chain(page.copy);
            residents.extend(places.map(|place| Resident { piece: self.whole(tensor), place }));
        }
        residents
    }

    fn run_kernel(&mut self, number: usize) {
        let kernel = &self.workload.kernels[number];
        let touched = kernel.touches();
        self.recency.retain(|tensor| touched.binary_search(tensor).is_err());
        self.make_resident(kernel, &touched);
        let start_ns = self.now_ns;
        self.now_ns += kernel.duration_ns.max(1);
        self.schedule.launches.push(Launch { kernel: number, start_ns, recomputation: false });
        for &tensor in &kernel.writes {
            self.forget_copy(tensor, start_ns);
        }
        self.recency.extend(&touched);
        for &tensor in &self.lives.dead[number] {
            self.forget_copy(tensor, self.now_ns);
            self.leave_device(tensor, self.now_ns);
            self.recency.retain(|other| *other != tensor);
        }
    }

    fn forget_copy(&mut self, tensor: usize, at_ns: u64) {
        let Some(place) = self.pages[tensor].copy.take() else { return };
        if place == MemorySpace::Host {
            self.host_used_bytes -= self.size_bytes(tensor);
        }
        self.drop_piece(self.whole(tensor), place, at_ns);
    }

    fn leave_device(&mut self, tensor: usize, at_ns: u64) {
        self.pages[tensor].resident = false;
        self.device_used_bytes -= self.size_bytes(tensor);
        self.drop_piece(self.whole(tensor), MemorySpace::Device, at_ns);
    }

    fn drop_piece(&mut self, piece: Piece, place: MemorySpace, at_ns: u64) {
        if piece.size_bytes > 0 {
            self.schedule.drops.push(Drop { piece, place, at_ns });
        }
    }

    /// Evicts until the kernel fits, fetches what it reads, and waits for both.
    fn make_resident(&mut self, kernel: &Kernel, touched: &[usize]) {
        let missing: Vec<usize> = touched.iter().copied().filter(|tensor| !self.pages[*tensor].resident).collect();
        let missing_bytes: u64 = missing.iter().map(|tensor| self.size_bytes(*tensor)).sum();
        let needed_bytes = missing_bytes + kernel.workspace_bytes;
        let capacity_bytes = self.workload.machine.device_memory_bytes;
        let mut written_back = Vec::new();
        let mut free_bytes = capacity_bytes - self.device_used_bytes;
        let mut leaving_bytes = 0;
        let mut victims = 0;
        while free_bytes + leaving_bytes < needed_bytes {
            let victim = self.recency[victims];
            victims += 1;
            if self.pages[victim].copy.is_some() {
                free_bytes += self.size_bytes(victim);
                self.leave_device(victim, self.now_ns);
            } else {
                leaving_bytes += self.size_bytes(victim);
                let place = self.place_for(self.size_bytes(victim));
                self.pages[victim] = Page { resident: false, copy: Some(place) };
                self.device_used_bytes -= self.size_bytes(victim);
                written_back.push((victim, place));
            }
        }
        self.recency.drain(..victims);
        let fetched: Vec<(usize, MemorySpace)> = missing
            .iter()
            .filter(|tensor| kernel.reads.binary_search(tensor).is_ok())
            .filter_map(|tensor| self.pages[*tensor].copy.map(|place| (*tensor, place)))
            .collect();
        self.transfer(&written_back, &fetched, free_bytes);
        for tensor in missing {
            self.pages[tensor].resident = true;
            self.device_used_bytes += self.size_bytes(tensor);
        }
    }

    /// Adds transfers. Both directions work at once; a piece comes in as soon as there is room for it.
    fn transfer(&mut self, written_back: &[(usize, MemorySpace)], fetched: &[(usize, MemorySpace)], free_bytes: u64) {
        let mut out_ns = self.now_ns;
        let mut room = Vec::new();
        for (piece, place) in pages(self, written_back) {
            let end_ns = out_ns + self.duration_ns(piece.size_bytes, Direction::Out, place);
            self.schedule.transfers.push(Transfer {
                piece,
                direction: Direction::Out,
                place,
                start_ns: out_ns,
                end_ns,
            });
            self.schedule.drops.push(Drop { piece, place: MemorySpace::Device, at_ns: end_ns });
            room.push((end_ns, piece.size_bytes));
            out_ns = end_ns;
        }
        let (mut in_ns, mut free_bytes) = (self.now_ns, free_bytes);
        let mut room = room.into_iter();
        for (piece, place) in pages(self, fetched) {
            while free_bytes < piece.size_bytes {
                let Some((at_ns, bytes)) = room.next() else { break };
                in_ns = in_ns.max(at_ns);
                free_bytes += bytes;
            }
            free_bytes -= piece.size_bytes.min(free_bytes);
            let end_ns = in_ns + self.duration_ns(piece.size_bytes, Direction::In, place);
            self.schedule.transfers.push(Transfer { piece, direction: Direction::In, place, start_ns: in_ns, end_ns });
            in_ns = end_ns;
        }
        self.now_ns = out_ns.max(in_ns);
    }

    fn duration_ns(&self, size_bytes: u64, direction: Direction, place: MemorySpace) -> u64 {
        let machine = &self.workload.machine;
        let ssd =
            if direction == Direction::Out { machine.ssd_write_bytes_per_s } else { machine.ssd_read_bytes_per_s };
        let rate = if place == MemorySpace::Ssd { ssd.min(machine.link_bytes_per_s) } else { machine.link_bytes_per_s };
        carrying_ns(size_bytes, rate).max(1)
    }
}

/// Splits tensors into pieces.
fn pages(paging: &Paging<'_>, tensors: &[(usize, MemorySpace)]) -> Vec<(Piece, MemorySpace)> {
    let mut pieces = Vec::new();
    for &(tensor, place) in tensors {
        let mut offset_bytes = 0;
        while offset_bytes < paging.size_bytes(tensor) {
            let size_bytes = PAGE_BYTES.min(paging.size_bytes(tensor) - offset_bytes);
            pieces.push((Piece { tensor, offset_bytes, size_bytes }, place));
            offset_bytes += size_bytes;
        }
    }
    pieces
}
