//! Profile: how long launches and copies took, from what a device recorded; and which copies came too late.
//!
//! Launches that run side by side slow each other down, so a launch counts with its share of the machine: what it would
//! have taken had it had all the lanes that it can use. What passes before it starts counts as well, where no copy is to
//! blame: that is the machine's way from one launch to the next.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_base::StreamId;
use forebay_device::TraceRecord;

/// So many of the latest steps count.
const STEPS_KEPT: usize = 5;

/// A way for copies, in one direction.
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

/// Durations in the latest steps.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// By label: nanoseconds, the newest last.
    launches: BTreeMap<u32, VecDeque<u64>>,
    /// By link: bytes, and the time in which at least one copy went that way, the newest last.
    copies: BTreeMap<Link, VecDeque<(u64, Duration)>>,
}

impl Profile {
    /// Adds a step's records; `lanes_of` says how many lanes a launch can use, of `lanes` that there are, and `link_of` which
    /// way a stream's copies go.
    pub fn add(
        &mut self,
        records: &[TraceRecord],
        link_of: impl Fn(StreamId) -> Option<Link>,
        lanes_of: impl Fn(u32) -> f64,
        lanes: f64,
    ) {
        let leads = leads(records);
        for (label, alone) in times_alone(records, lanes_of, lanes) {
            let lead = leads.get(&label).copied().unwrap_or_default();
            keep(self.launches.entry(label).or_default(), (lead + alone).as_nanos() as u64);
        }
        let mut copies: BTreeMap<Link, Vec<&TraceRecord>> = BTreeMap::new();
        for record in records.iter().filter(|record| record.label.is_none() && record.bytes > 0) {
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

    /// Bytes per nanosecond of a link while copies used it; none where nothing went that way.
    pub fn bytes_per_ns(&self, link: Link) -> Option<f64> {
        let kept = self.copies.get(&link)?;
        let bytes: u64 = kept.iter().map(|&(bytes, _)| bytes).sum();
        let time: Duration = kept.iter().map(|&(_, time)| time).sum();
        (bytes > 0 && !time.is_zero()).then(|| bytes as f64 / time.as_nanos() as f64)
    }

    /// Median nanoseconds of a launch; none where it never ran.
    pub fn launch_ns(&self, label: u32) -> Option<u64> {
        let mut kept: Vec<u64> = self.launches.get(&label)?.iter().copied().collect();
        kept.sort_unstable();
        kept.get(kept.len() / 2).copied()
    }
}

fn keep<T>(kept: &mut VecDeque<T>, newest: T) {
    if kept.len() == STEPS_KEPT {
        kept.pop_front();
    }
    kept.push_back(newest);
}

/// The time that intervals cover together.
pub(crate) fn covered(intervals: impl Iterator<Item = (Duration, Duration)>) -> Duration {
    let mut intervals: Vec<(Duration, Duration)> = intervals.collect();
    intervals.sort_unstable();
    let (mut until, mut total) = (Duration::ZERO, Duration::ZERO);
    for (start, end) in intervals {
        total += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    total
}

/// By launch, what it would have taken alone: its time, weighted with the share of its lanes that others left it.
fn times_alone(
    records: &[TraceRecord],
    lanes_of: impl Fn(u32) -> f64,
    lanes: f64,
) -> impl Iterator<Item = (u32, Duration)> {
    let launches: Vec<(u32, &TraceRecord)> =
        records.iter().filter_map(|record| Some((record.label?, record))).collect();
    // Starts and ends in order of time; ends before starts of the same moment.
    let mut moments: Vec<(Duration, bool, usize)> = Vec::with_capacity(2 * launches.len());
    for (index, (_, record)) in launches.iter().enumerate() {
        moments.push((record.start, true, index));
        moments.push((record.end, false, index));
    }
    moments.sort_unstable();
    let mut alone = vec![Duration::ZERO; launches.len()];
    let (mut running, mut wanted, mut last): (Vec<usize>, f64, _) = (Vec::new(), 0.0, Duration::ZERO);
    for (now, starts, index) in moments {
        let share = if wanted > lanes { lanes / wanted } else { 1.0 };
        let passed = now.saturating_sub(last).mul_f64(share);
        running.iter().for_each(|&index: &usize| alone[index] += passed);
        last = now;
        let of_launch = lanes_of(launches[index].0);
        if starts {
            running.push(index);
            wanted += of_launch;
        } else {
            running.retain(|&other| other != index);
            wanted -= of_launch;
        }
    }
    let labels: Vec<u32> = launches.iter().map(|(label, _)| *label).collect();
    labels.into_iter().zip(alone)
}

/// A time in which no kernel ran, between two that did.
struct Gap {
    start: Duration,
    end: Duration,
    /// The launch that ended it.
    label: u32,
}

fn gaps(records: &[TraceRecord]) -> Vec<Gap> {
    let launch = |record: &TraceRecord| Some((record.start, record.end, record.label?));
    let mut launches: Vec<(Duration, Duration, u32)> = records.iter().filter_map(launch).collect();
    launches.sort_unstable();
    let mut until = launches.first().map_or(Duration::ZERO, |first| first.0);
    let mut gaps = Vec::new();
    for (start, end, label) in launches {
        if start > until {
            gaps.push(Gap { start: until, end: start, label });
        }
        until = until.max(end);
    }
    gaps
}

/// The last of these moments that lies in a gap.
fn last_inside(moments: &[Duration], gap: &Gap) -> Option<Duration> {
    let before_end = moments.partition_point(|&moment| moment <= gap.end);
    moments[..before_end].last().copied().filter(|&last| last > gap.start)
}

/// When copies ended, in order.
fn ends(records: &[TraceRecord], counts: impl Fn(&TraceRecord) -> bool) -> Vec<Duration> {
    let copies = records.iter().filter(|record| record.label.is_none() && counts(record));
    let mut ends: Vec<Duration> = copies.map(|record| record.end).collect();
    ends.sort_unstable();
    ends
}

/// By launch, the gap before it, where no copy ended in it.
fn leads(records: &[TraceRecord]) -> BTreeMap<u32, Duration> {
    let ends = ends(records, |_| true);
    let gaps = gaps(records).into_iter().filter(|gap| last_inside(&ends, gap).is_none());
    gaps.map(|gap| (gap.label, gap.end - gap.start)).collect()
}

/// Copies that kernels had to wait for: how many, and for how long no kernel ran because of them. `is_fetch` tells copies to
/// the device from others.
///
/// A gap between kernels counts where a copy to the device was the last to end in it before kernels went on.
pub fn late_copies(records: &[TraceRecord], is_fetch: impl Fn(&TraceRecord) -> bool) -> (usize, Duration) {
    let ends = ends(records, is_fetch);
    let late = gaps(records).into_iter().filter_map(|gap| Some(last_inside(&ends, &gap)? - gap.start));
    late.fold((0, Duration::ZERO), |(count, total), one| (count + 1, total + one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(label: Option<u32>, start: u64, end: u64) -> TraceRecord {
        let (start, end) = (Duration::from_nanos(start), Duration::from_nanos(end));
        TraceRecord { stream: StreamId(0), label, name: "", bytes: 0, start, end }
    }

    #[test]
    fn launches_side_by_side_share_the_machine() {
        let mut profile = Profile::default();
        let records = [record(Some(0), 0, 100), record(Some(1), 100, 300), record(Some(2), 200, 300)];
        profile.add(&records, |_| None, |_| 2.0, 2.0);
        assert_eq!([0, 1, 2, 3].map(|label| profile.launch_ns(label)), [Some(100), Some(150), Some(50), None]);
        let mut narrow = Profile::default();
        narrow.add(&records, |_| None, |_| 1.0, 2.0);
        assert_eq!(narrow.launch_ns(1), Some(200), "both find a lane of their own");
    }

    #[test]
    fn the_way_to_a_launch_counts_unless_a_copy_was_waited_for() {
        let mut profile = Profile::default();
        let records =
            [record(Some(0), 50, 100), record(Some(1), 110, 200), record(None, 0, 230), record(Some(2), 240, 300)];
        profile.add(&records, |_| None, |_| 1.0, 1.0);
        assert_eq!([0, 1, 2].map(|label| profile.launch_ns(label)), [Some(50), Some(100), Some(60)]);
    }

    #[test]
    fn the_median_of_the_latest_steps_counts() {
        let mut profile = Profile::default();
        for duration in [900, 900, 900, 10, 30, 20, 40, 50] {
            profile.add(&[record(Some(7), 0, duration)], |_| None, |_| 1.0, 1.0);
        }
        assert_eq!(profile.launch_ns(7), Some(30));
    }

    #[test]
    fn copies_side_by_side_share_the_link() {
        let mut profile = Profile::default();
        let copy = |start, end, bytes| TraceRecord { bytes, ..record(None, start, end) };
        let records = [copy(0, 100, 300), copy(50, 150, 300), copy(400, 450, 200)];
        profile.add(&records, |_| Some(Link::ToDisk), |_| 1.0, 1.0);
        assert_eq!(profile.bytes_per_ns(Link::ToDisk), Some(4.0));
        assert_eq!(profile.bytes_per_ns(Link::FromDisk), None);
    }

    #[test]
    fn a_copy_is_late_where_kernels_stood_still_for_it() {
        let is_fetch = |_: &TraceRecord| true;
        let hidden = [record(Some(0), 0, 100), record(None, 10, 90), record(Some(1), 101, 200)];
        assert_eq!(late_copies(&hidden, is_fetch), (0, Duration::ZERO));
        let late = [record(Some(0), 0, 100), record(None, 10, 140), record(Some(1), 145, 200), record(None, 150, 300)];
        assert_eq!(late_copies(&late, is_fetch), (1, Duration::from_nanos(40)), "the last copy keeps nobody waiting");
    }
}
