//! When tensors lie idle: the spans between two launches that touch them, and the versions that they hold meanwhile.

use crate::timeline::Timeline;
use crate::workload::Workload;

/// Contents of a tensor from one write to the next. A copy elsewhere stays valid for as long as the version lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Whose contents.
    pub tensor: usize,
    /// The slot after the launch that wrote it: copies may start here. None where no launch ever writes the tensor.
    pub written_before: Option<usize>,
}

/// A span in which a tensor's contents are needed later, but nothing touches them.
///
/// Slots count on from the version's start, so that what passes the end of the step is beyond the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseGap {
    /// The version, by its number.
    pub version: usize,
    /// Its first slot.
    pub begin: usize,
    /// The slot after its last one: the next launch that touches the tensor starts here.
    pub end: usize,
}

/// Everything about when tensors are needed.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Versions that are read after a gap.
    pub versions: Vec<Version>,
    /// Gaps, by version and time.
    pub reuse_gaps: Vec<ReuseGap>,
    /// Tensors that no launch touches but that live on: the persistent ones.
    pub untouched: Vec<usize>,
}

/// A touch of one tensor by one launch.
#[derive(Clone, Copy)]
struct Touch {
    launch: usize,
    reads: bool,
    writes: bool,
}

impl Needs {
    /// Finds all gaps of a sequence of launches, each given as the kernel that it runs.
    pub fn new(workload: &Workload, launches: &[usize], timeline: &Timeline) -> Needs {
        let mut touches: Vec<Vec<Touch>> = vec![Vec::new(); workload.tensors.len()];
        for (launch, &kernel) in launches.iter().enumerate() {
            let kernel = &workload.kernels[kernel];
            for tensor in kernel.touches() {
                let (reads, writes) = (kernel.reads.contains(&tensor), kernel.writes.contains(&tensor));
                touches[tensor].push(Touch { launch, reads, writes });
            }
        }
        let mut needs = Needs::default();
        // What has no bytes has none to move.
        for (tensor, touches) in
            touches.iter().enumerate().filter(|(tensor, _)| workload.tensors[*tensor].size_bytes > 0)
        {
            let persistent = workload.tensors[tensor].persistent;
            if touches.is_empty() && persistent {
                needs.untouched.push(tensor);
            }
            needs.add_tensor(tensor, touches, persistent, timeline);
        }
        needs
    }

    fn add_tensor(&mut self, tensor: usize, touches: &[Touch], persistent: bool, timeline: &Timeline) {
        let count = timeline.slots.len();
        // A persistent tensor's round starts after its first write, so that each version's life is in one piece.
        let first = if persistent { touches.iter().position(|touch| touch.writes) } else { Some(0) };
        let (start, eternal) = (first.unwrap_or(0), first.is_none());
        let mut version = None;
        let pairs = if persistent { touches.len() } else { touches.len().saturating_sub(1) };
        for index in start..start + pairs {
            let (from, to) = (touches[index % touches.len()], touches[(index + 1) % touches.len()]);
            let begin = timeline.runs[from.launch].end + if index >= touches.len() { count } else { 0 };
            let end = timeline.runs[to.launch].start + if index + 1 >= touches.len() { count } else { 0 };
            if from.writes || version.is_none() {
                let written_before = if eternal { None } else { Some(begin) };
                self.versions.push(Version { tensor, written_before });
                version = Some(self.versions.len() - 1);
            }
            if let (Some(version), true) = (version, to.reads && begin < end) {
                self.reuse_gaps.push(ReuseGap { version, begin, end });
            }
        }
    }
}
