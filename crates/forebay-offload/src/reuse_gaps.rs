//! When tensors are idle: the spans between two launches that touch them, and the versions that they hold in the meantime.

use crate::timeline::Timeline;
use crate::workload::Workload;

/// The contents of a tensor from one write to the next. A copy elsewhere stays valid for as long as the version lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The tensor that has these contents.
    pub tensor: usize,
    /// The slot after the launch that wrote it: copies can start here. `None` if no launch ever writes the tensor.
    pub written_before: Option<usize>,
}

/// A span in which nothing touches the contents of a tensor, although they are needed later.
///
/// Slots are numbered onwards from the start of the version, so slots past the end of the step have numbers beyond the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseGap {
    /// The number of the version.
    pub version: usize,
    /// Its first slot.
    pub begin: usize,
    /// The slot after its last one: the next launch that touches the tensor starts here.
    pub end: usize,
}

/// All information about when tensors are needed.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// The versions that are read after a gap.
    pub versions: Vec<Version>,
    /// The gaps, by version and time.
    pub reuse_gaps: Vec<ReuseGap>,
    /// The tensors that no launch touches but that live on: the persistent ones.
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
        // A tensor without bytes has nothing to move.
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
        // The round of a persistent tensor starts after its first write, so that the life of each version is in one piece.
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
