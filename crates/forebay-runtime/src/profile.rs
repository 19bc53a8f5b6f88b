//! Profile: how long launches and copies took according to a device's records, and which copies were late.
//!
//! Concurrent launches slow each other down, and so do copies if workers make them, so a launch counts with its share of the machine: the
//! time that it would have taken with all the workers that it can use. The gap before a launch counts as well, minus the time in which
//! copies that ended in the gap were running: it is the machine's overhead from one launch to the next. The time before the first command
//! of a step and after the last one belongs to the step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use forebay_base::StreamId;
use forebay_device::TraceRecord;
use forebay_plan::cost::workers_for_launches;
use forebay_plan::plan::Share;

/// The number of latest steps that count.
const STEPS_KEPT: usize = 7;
/// Smaller copies show how long it takes to begin a copy, not how fast bytes move.
const RATED_MIN_BYTES: u64 = 64 << 10;
/// A copy that kept at least this fraction of the workers busy left none for launches. Over a link that is slower than workers copy, no
/// copy does.
const ALL_WORKERS: f64 = 0.75;

/// A link for copies, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// From host memory to the device.
    ToDevice,
    /// From the device to host memory.
    FromDevice,
    /// From a disk.
    FromDisk,
    /// To a disk.
    ToDisk,
}

/// The workers of a device, and how they are used.
#[derive(Clone, Copy, Debug)]
pub struct Workers<'a> {
    /// The number of workers.
    pub count: f64,
    /// By label: the number of workers that the launch can use; 1 if it is not listed.
    pub of_launches: &'a [f64],
    /// How long a copy between host and device keeps a worker busy, in nanoseconds per byte, if its record does not say.
    pub copy_ns_per_byte: f64,
    /// Workers of the host that only the launches with these labels share, or `None` if all launches share those of the device.
    pub host: Option<(f64, &'a BTreeSet<u32>)>,
}

impl Workers<'_> {
    /// Whether a launch uses the workers of the host.
    fn on_host(&self, record: &TraceRecord) -> bool {
        record.label.zip(self.host).is_some_and(|(label, (_, labels))| labels.contains(&label))
    }

    /// The number of workers that the record's command wants while it runs; `copies` says whether it is a copy between host and device.
    fn wanted(&self, record: &TraceRecord, copies: bool) -> f64 {
        match record.label {
            Some(label) => self.of_launches.get(label as usize).copied().unwrap_or(1.0),
            None if copies => {
                let duration_ns = (record.end - record.start).as_nanos().max(1) as f64;
                let worker_ns = match record.worker_time {
                    Duration::ZERO => record.bytes as f64 * self.copy_ns_per_byte,
                    worker_time => worker_time.as_nanos() as f64,
                };
                (worker_ns / duration_ns).min(self.count)
            }
            None => 0.0,
        }
    }
}

/// Durations in the latest steps.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// By launch of the program that was planned: its nanoseconds, newest last.
    launches: BTreeMap<u32, VecDeque<u64>>,
    /// The time of all launches of a step together, newest last.
    totals: VecDeque<u64>,
    /// By link: bytes, and the time in which at least one copy used the link, newest last.
    copies: BTreeMap<Link, VecDeque<(u64, Duration)>>,
    /// Bytes of copies between host and device, and how long they kept a worker busy, newest last.
    worker_times: VecDeque<(u64, Duration)>,
    /// The time that steps took outside their commands, newest last.
    steps: VecDeque<u64>,
}

impl Profile {
    /// Adds a step's records and its total duration. `link_of` returns the link that a stream's copies use, `share_of` the launch that a
    /// label is a part of and the part's share of it.
    pub fn add(
        &mut self,
        records: &[TraceRecord],
        step: Duration,
        link_of: impl Fn(StreamId) -> Option<Link>,
        share_of: impl Fn(u32) -> Share,
        workers: Workers<'_>,
    ) {
        let from = records.iter().map(|record| record.start).min().unwrap_or_default();
        let to = records.iter().map(|record| record.end).max().unwrap_or_default();
        keep(&mut self.steps, step.saturating_sub(to - from).as_nanos() as u64);
        let leads = leads(records, workers.count);
        let crosses = |record: &TraceRecord| matches!(link_of(record.stream), Some(Link::ToDevice | Link::FromDevice));
        // By launch: the nanoseconds of its parts, and their total share of it.
        let mut parts: BTreeMap<u32, (u64, f64)> = BTreeMap::new();
        for (label, alone) in times_alone(records, crosses, workers) {
            let lead = leads.get(&label).copied().unwrap_or_default();
            let Share { launch, time } = share_of(label);
            let (parts_ns, whole) = parts.entry(launch).or_default();
            *parts_ns += (lead + alone).as_nanos() as u64;
            *whole += time;
        }
        let on_workers = records.iter().filter(|record| crosses(record) && !record.worker_time.is_zero());
        let (bytes, worker_time) = on_workers
            .fold((0, Duration::ZERO), |(bytes, time), record| (bytes + record.bytes, time + record.worker_time));
        keep(&mut self.worker_times, (bytes, worker_time));
        let mut total_ns = 0;
        for (launch, (parts_ns, whole)) in parts {
            let duration_ns = (parts_ns as f64 / whole).round() as u64;
            total_ns += duration_ns;
            keep(self.launches.entry(launch).or_default(), duration_ns);
        }
        keep(&mut self.totals, total_ns);
        let mut copies: BTreeMap<Link, Vec<&TraceRecord>> = BTreeMap::new();
        for record in records.iter().filter(|record| record.label.is_none() && record.bytes >= RATED_MIN_BYTES) {
            if let Some(link) = link_of(record.stream) {
                copies.entry(link).or_default().push(record);
            }
        }
        for (link, copies) in copies {
            let bytes = copies.iter().map(|record| record.bytes).sum();
            let time = covered(copies.iter().map(|record| (record.start, record.end)));
            keep(self.copies.entry(link).or_default(), (bytes, time));
        }
    }

    /// Bytes per nanosecond of a link while large copies used it, or `None` if there were none.
    pub fn bytes_per_ns(&self, link: Link) -> Option<f64> {
        rate(self.copies.get(&link)?)
    }

    /// How long copies between host and device keep a worker busy, in nanoseconds per byte, or `None` if no record says so.
    pub fn copy_worker_ns_per_byte(&self) -> Option<f64> {
        rate(&self.worker_times).map(f64::recip)
    }

    /// The nanoseconds of each launch that ran, by its place in the program: the median, times a factor that is the same for all launches,
    /// so that they add up to the median of the steps' sums. An occasional disturbance makes a launch longer, never shorter, and hits a
    /// different launch each time, so the sum of the medians would be that of a step that is never disturbed.
    pub fn launch_ns(&self) -> BTreeMap<u32, u64> {
        let mut medians: BTreeMap<u32, u64> =
            self.launches.iter().filter_map(|(&label, kept)| Some((label, median(kept)?))).collect();
        let sum: u64 = medians.values().sum();
        let factor = median(&self.totals).unwrap_or(0) as f64 / sum.max(1) as f64;
        medians.values_mut().for_each(|duration| *duration = (*duration as f64 * factor).round() as u64);
        medians
    }

    /// The median number of nanoseconds that a step takes outside its commands, or `None` if there was no step.
    pub fn step_ns(&self) -> Option<u64> {
        median(&self.steps)
    }
}

/// Bytes per nanosecond, or `None` if there are no bytes or no time.
fn rate(kept: &VecDeque<(u64, Duration)>) -> Option<f64> {
    let bytes: u64 = kept.iter().map(|&(bytes, _)| bytes).sum();
    let time: Duration = kept.iter().map(|&(_, time)| time).sum();
    (bytes > 0 && !time.is_zero()).then(|| bytes as f64 / time.as_nanos() as f64)
}

fn median(kept: &VecDeque<u64>) -> Option<u64> {
    let mut kept: Vec<u64> = kept.iter().copied().collect();
    kept.sort_unstable();
    kept.get(kept.len() / 2).copied()
}

fn keep<T>(kept: &mut VecDeque<T>, newest: T) {
    if kept.len() == STEPS_KEPT {
        kept.pop_front();
    }
    kept.push_back(newest);
}

/// The total time that intervals cover.
pub(crate) fn covered(intervals: impl Iterator<Item = (Duration, Duration)>) -> Duration {
    union(intervals).into_iter().map(|(start, end)| end - start).sum()
}

/// The union of intervals, as disjoint intervals in order.
fn union(intervals: impl Iterator<Item = (Duration, Duration)>) -> Vec<(Duration, Duration)> {
    // Growing would take longer than the rest.
    let mut all = Vec::with_capacity(intervals.size_hint().1.unwrap_or_default());
    all.extend(intervals);
    all.sort_unstable();
    let mut apart: Vec<(Duration, Duration)> = Vec::new();
    for (start, end) in all {
        match apart.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => apart.push((start, end)),
        }
    }
    apart
}

/// By launch: the time that it would have taken alone, which is its time weighted with the share of its workers that others left it.
/// `crosses` tells copies between host and device from others.
fn times_alone(
    records: &[TraceRecord],
    crosses: impl Fn(&TraceRecord) -> bool,
    workers: Workers<'_>,
) -> Vec<(u32, Duration)> {
    // Starts and ends in order of time; ends come before starts at the same moment.
    let mut moments: Vec<(Duration, bool, usize)> = Vec::with_capacity(2 * records.len());
    for (index, record) in records.iter().enumerate() {
        moments.push((record.start, true, index));
        moments.push((record.end, false, index));
    }
    moments.sort_unstable();
    let mut alone = vec![Duration::ZERO; records.len()];
    let (mut running, mut copying, mut last) = (Vec::<usize>::new(), 0.0, Duration::ZERO);
    // On the device, and on the host.
    let mut launching = [0.0; 2];
    let host_count = workers.host.map_or(0.0, |(count, _)| count);
    for (now, starts, index) in moments {
        let free = [workers_for_launches(workers.count, copying), host_count];
        let share = |side: usize| if launching[side] > free[side] { free[side] / launching[side] } else { 1.0 };
        let passed = [share(0), share(1)].map(|share| now.saturating_sub(last).mul_f64(share));
        running.iter().for_each(|&index| alone[index] += passed[usize::from(workers.on_host(&records[index]))]);
        last = now;
        let record = &records[index];
        let wanted = workers.wanted(record, crosses(record)) * if starts { 1.0 } else { -1.0 };
        match (record.label, starts) {
            (None, _) => copying += wanted,
            (Some(_), true) => running.push(index),
            (Some(_), false) => running.retain(|&other| other != index),
        }
        launching[usize::from(workers.on_host(record))] += if record.label.is_some() { wanted } else { 0.0 };
    }
    records.iter().zip(alone).filter_map(|(record, alone)| Some((record.label?, alone))).collect()
}

/// A time in which no kernel ran, between two kernels.
struct IdleTime {
    start: Duration,
    end: Duration,
    /// The launch that ended it.
    label: u32,
}

fn gaps(records: &[TraceRecord]) -> Vec<IdleTime> {
    let launch = |record: &TraceRecord| Some((record.start, record.end, record.label?));
    let mut launches: Vec<(Duration, Duration, u32)> = records.iter().filter_map(launch).collect();
    launches.sort_unstable();
    let mut until = launches.first().map_or(Duration::ZERO, |first| first.0);
    let mut gaps = Vec::new();
    for (start, end, label) in launches {
        if start > until {
            gaps.push(IdleTime { start: until, end: start, label });
        }
        until = until.max(end);
    }
    gaps
}

/// The last of these moments that is inside a gap.
fn last_inside(moments: &[Duration], gap: &IdleTime) -> Option<Duration> {
    let before_end = moments.partition_point(|&moment| moment <= gap.end);
    moments[..before_end].last().copied().filter(|&last| last > gap.start)
}

/// The times at which copies ended, in order.
fn ends(records: &[TraceRecord], counts: impl Fn(&TraceRecord) -> bool) -> Vec<Duration> {
    let copies = records.iter().filter(|record| record.label.is_none() && counts(record));
    let mut ends: Vec<Duration> = copies.map(|record| record.end).collect();
    ends.sort_unstable();
    ends
}

/// By launch: the gap before it, minus the time in which copies were running that ended in the gap or that took the workers, since workers
/// copy first.
fn leads(records: &[TraceRecord], workers: f64) -> BTreeMap<u32, Duration> {
    let mut copies: Vec<&TraceRecord> = records.iter().filter(|record| record.label.is_none()).collect();
    copies.sort_by_key(|copy| copy.end);
    let takes_workers =
        |copy: &&&TraceRecord| copy.worker_time >= (copy.end - copy.start).mul_f64(ALL_WORKERS * workers);
    let by_workers = copies.iter().filter(|copy| !copy.worker_time.is_zero()).filter(takes_workers);
    let by_workers = union(by_workers.map(|copy| (copy.start, copy.end)));
    let lead = |gap: IdleTime| {
        let [from, to] = [gap.start, gap.end].map(|moment| copies.partition_point(|copy| copy.end <= moment));
        let ended = copies[from..to].iter().map(|copy| (copy.start, copy.end));
        let (from, to) = (
            by_workers.partition_point(|&(_, end)| end <= gap.start),
            by_workers.partition_point(|&(start, _)| start < gap.end),
        );
        let moved = ended.chain(by_workers[from..to].iter().copied());
        let waited = covered(moved.map(|(start, end)| (start.max(gap.start), end.min(gap.end))));
        (gap.label, gap.end - gap.start - waited)
    };
    gaps(records).into_iter().map(lead).collect()
}

/// The number of copies that kernels had to wait for, and how long no kernel ran because of them. `is_swap_in` tells copies to the device
/// from others.
///
/// A gap between kernels counts if a copy to the device was the last to end in it before kernels continued.
pub fn late_copies(records: &[TraceRecord], is_swap_in: impl Fn(&TraceRecord) -> bool) -> (usize, Duration) {
    let ends = ends(records, is_swap_in);
    let late = gaps(records).into_iter().filter_map(|gap| Some(last_inside(&ends, &gap)? - gap.start));
    late.fold((0, Duration::ZERO), |(count, total), one| (count + 1, total + one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(label: Option<u32>, start: u64, end: u64) -> TraceRecord {
        let (start, end) = (Duration::from_nanos(start), Duration::from_nanos(end));
        TraceRecord { stream: StreamId(0), label, name: "", bytes: 0, start, end, worker_time: Duration::ZERO }
    }

    fn workers(count: f64, of_launches: &[f64]) -> Workers<'_> {
        Workers { count, of_launches, copy_ns_per_byte: 0.0, host: None }
    }

    fn whole(label: u32) -> Share {
        Share { launch: label, time: 1.0 }
    }

    #[test]
    fn parts_make_up_what_they_are_parts_of() {
        let mut profile = Profile::default();
        let records = [record(Some(0), 0, 60), record(Some(1), 60, 110), record(Some(2), 110, 120)];
        let share_of = |label| Share { launch: label / 2 + 4, time: if label < 2 { 0.55 } else { 1.0 } };
        profile.add(&records, Duration::ZERO, |_| None, share_of, workers(1.0, &[]));
        assert_eq!(profile.launch_ns(), [(4, 100), (5, 10)].into());
    }

    #[test]
    fn what_passes_before_and_after_the_commands_is_the_steps() {
        let mut profile = Profile::default();
        assert_eq!(profile.step_ns(), None);
        let step = Duration::from_nanos(1_000);
        profile.add(&[record(Some(0), 50, 400), record(None, 60, 750)], step, |_| None, whole, workers(1.0, &[]));
        assert_eq!(profile.step_ns(), Some(300));
    }

    #[test]
    fn copies_on_workers_slow_launches_down() {
        let copy = TraceRecord { bytes: 50, ..record(None, 100, 200) };
        let records = [record(Some(0), 0, 300), copy];
        let measured = |copy_ns_per_byte, link| {
            let mut profile = Profile::default();
            let workers = Workers { copy_ns_per_byte, ..workers(2.0, &[2.0]) };
            profile.add(&records, Duration::ZERO, |_| Some(link), whole, workers);
            profile.launch_ns()[&0]
        };
        assert_eq!(measured(0.0, Link::ToDevice), 300);
        assert_eq!(measured(2.0, Link::ToDevice), 250, "half of the workers for 100 ns");
        assert_eq!(measured(9.0, Link::ToDevice), 200, "all workers");
        assert_eq!(measured(1.0, Link::FromDevice), 275, "the link is slower than a worker copies");
        assert_eq!(measured(2.0, Link::FromDisk), 300, "disks have threads of their own");
    }

    #[test]
    fn records_that_say_how_long_a_worker_was_busy_are_believed() {
        let mut profile = Profile::default();
        assert_eq!(profile.copy_worker_ns_per_byte(), None);
        let copy = TraceRecord { bytes: 50, worker_time: Duration::from_nanos(60), ..record(None, 100, 200) };
        let workers = Workers { copy_ns_per_byte: 9.0, ..workers(2.0, &[2.0]) };
        let link_of = |stream| (stream == copy.stream).then_some(Link::ToDevice);
        profile.add(&[record(Some(0), 0, 300), copy.clone()], Duration::ZERO, link_of, whole, workers);
        assert_eq!(profile.launch_ns()[&0], 270, "60 of its 600 on two workers");
        assert_eq!(profile.copy_worker_ns_per_byte(), Some(1.2));
        let disk = |_| Some(Link::FromDisk);
        let mut profile = Profile::default();
        profile.add(&[copy], Duration::ZERO, disk, whole, workers);
        assert_eq!(profile.copy_worker_ns_per_byte(), None, "disks have threads of their own");
    }

    #[test]
    fn launches_side_by_side_share_the_machine() {
        let mut profile = Profile::default();
        let records = [record(Some(0), 0, 100), record(Some(1), 100, 300), record(Some(2), 200, 300)];
        profile.add(&records, Duration::ZERO, |_| None, whole, workers(2.0, &[2.0; 3]));
        assert_eq!(profile.launch_ns(), [(0, 100), (1, 150), (2, 50)].into());
        let mut narrow = Profile::default();
        narrow.add(&records, Duration::ZERO, |_| None, whole, workers(2.0, &[]));
        assert_eq!(narrow.launch_ns()[&1], 200, "both find a worker of their own");
    }

    #[test]
    fn the_way_to_a_launch_counts_unless_a_copy_moved_that_it_may_have_waited_for() {
        let mut profile = Profile::default();
        let records =
            [record(Some(0), 50, 100), record(Some(1), 110, 200), record(None, 0, 230), record(Some(2), 240, 300)];
        profile.add(&records, Duration::from_nanos(275), |_| None, whole, workers(1.0, &[]));
        assert_eq!(profile.launch_ns(), [(0, 50), (1, 100), (2, 70)].into());
        let mut later = Profile::default();
        let records =
            [record(Some(0), 0, 100), record(None, 120, 130), record(None, 125, 300), record(Some(1), 150, 200)];
        later.add(&records, Duration::ZERO, |_| None, whole, workers(1.0, &[]));
        assert_eq!(later.launch_ns()[&1], 90, "a copy that goes on was not waited for");
        let mut busy = Profile::default();
        let by_workers = TraceRecord { worker_time: Duration::from_nanos(30), ..record(None, 130, 160) };
        busy.add(
            &[record(Some(0), 0, 100), by_workers, record(Some(1), 150, 200)],
            Duration::ZERO,
            |_| None,
            whole,
            workers(1.0, &[]),
        );
        assert_eq!(busy.launch_ns()[&1], 80, "unless it took the workers");
    }

    #[test]
    fn the_median_of_the_latest_steps_counts() {
        let mut profile = Profile::default();
        for duration in [900, 900, 900, 10, 30, 20, 40, 50] {
            profile.add(&[record(Some(7), 0, duration)], Duration::ZERO, |_| None, whole, workers(1.0, &[]));
        }
        assert_eq!(profile.launch_ns(), [(7, 40)].into());
    }

    #[test]
    fn launches_add_up_to_the_median_of_the_steps() {
        let mut profile = Profile::default();
        for (first, second) in [(10, 10), (40, 10), (10, 40)] {
            let records = [record(Some(0), 0, first), record(Some(1), first, first + second)];
            profile.add(&records, Duration::ZERO, |_| None, whole, workers(1.0, &[]));
        }
        assert_eq!(profile.launch_ns(), [(0, 25), (1, 25)].into(), "two of three steps took 50");
    }

    #[test]
    fn copies_side_by_side_share_the_link() {
        let mut profile = Profile::default();
        let copy = |start, end, bytes| TraceRecord { bytes, ..record(None, start, end) };
        let kib = |count: u64| count << 10;
        let records = [copy(0, 100, kib(300)), copy(50, 150, kib(300)), copy(400, 450, kib(200)), copy(500, 900, 4)];
        profile.add(&records, Duration::ZERO, |_| Some(Link::ToDisk), whole, workers(1.0, &[]));
        assert_eq!(profile.bytes_per_ns(Link::ToDisk), Some(4096.0), "the smallest copy says nothing");
        assert_eq!(profile.bytes_per_ns(Link::FromDisk), None);
    }

    #[test]
    fn a_copy_is_late_where_kernels_stood_still_for_it() {
        let is_swap_in = |_: &TraceRecord| true;
        let hidden = [record(Some(0), 0, 100), record(None, 10, 90), record(Some(1), 101, 200)];
        assert_eq!(late_copies(&hidden, is_swap_in), (0, Duration::ZERO));
        let late = [record(Some(0), 0, 100), record(None, 10, 140), record(Some(1), 145, 200), record(None, 150, 300)];
        assert_eq!(late_copies(&late, is_swap_in), (1, Duration::from_nanos(40)), "the last copy keeps nobody waiting");
    }
}
