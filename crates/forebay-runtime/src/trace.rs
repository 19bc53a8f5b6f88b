//! What ran when, as JSON for Perfetto and chrome://tracing: one row per stream, with memory as a counter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_base::StreamId;
use forebay_device::TraceRecord;
use forebay_plan::Plan;
use serde_json::{Value, json};

use crate::live::live_bytes_by_label;

/// What ran when, in all traced steps.
pub struct Trace {
    labels: Vec<String>,
    streams: Vec<String>,
    /// The labels of launches that run on the host. Their rows come after those of the streams.
    on_host: BTreeSet<u32>,
    live_bytes: BTreeMap<u32, u64>,
    heap_bytes: u64,
    /// The stream of the plan, and the record.
    records: Vec<(usize, TraceRecord)>,
}

impl Trace {
    /// Creates a trace without records for runs of this plan.
    pub fn new(plan: &Plan) -> Trace {
        let on_host = plan.launches().filter(|launch| plan.runs_on_host(launch)).map(|launch| launch.label).collect();
        let streams = plan.streams.iter().map(|stream| stream.name.clone());
        Trace {
            labels: plan.labels.clone(),
            streams: streams.chain(["host".to_string()]).collect(),
            on_host,
            live_bytes: live_bytes_by_label(plan),
            heap_bytes: plan.statistics.device_peak_bytes,
            records: Vec::new(),
        }
    }

    /// Adds a step's records; `streams` are the device's ids in the plan's order.
    pub fn add(&mut self, streams: &[StreamId], records: Vec<TraceRecord>) {
        self.records.extend(records.into_iter().filter_map(|record| {
            let stream = streams.iter().position(|&stream| stream == record.stream)?;
            let on_host = record.label.is_some_and(|label| self.on_host.contains(&label));
            Some((if on_host { self.streams.len() - 1 } else { stream }, record))
        }));
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the events in Chrome's trace event format, to be joined with those of other traces. `process` distinguishes the traces of
    /// several plans, and `name` is the name shown in the viewer.
    pub fn events(&self, process: u32, name: &str) -> Vec<Value> {
        let mut events = vec![json!({
            "ph": "M", "pid": process, "name": "process_name", "args": { "name": name },
        })];
        let mut records: Vec<&(usize, TraceRecord)> = self.records.iter().collect();
        records.sort_by_key(|(stream, record)| (record.start, *stream, record.end));
        let mut workers = Workers::default();
        for (stream, record) in records {
            let (thread, new) = workers.place(*stream, record);
            if let Some(worker) = new {
                let stream_name = self.streams.get(*stream).map_or("copy", String::as_str);
                let name =
                    if worker == 0 { stream_name.to_string() } else { format!("{stream_name} ({})", worker + 1) };
                events.push(json!({
                    "ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": { "name": name },
                }));
                events.push(json!({
                    "ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index",
                    "args": { "sort_index": thread },
                }));
            }
            events.push(self.slice(process, thread, record));
            if let Some(live) = record.label.and_then(|label| self.live_bytes.get(&label)) {
                events.push(json!({
                    "ph": "C", "pid": process, "name": "device memory", "ts": microseconds(record.start),
                    "args": { "bytes in use": live },
                }));
                events.push(json!({
                    "ph": "C", "pid": process, "name": "heap bytes", "ts": microseconds(record.start),
                    "args": { "bytes": self.heap_bytes },
                }));
            }
        }
        events
    }

    fn slice(&self, process: u32, thread: u64, record: &TraceRecord) -> Value {
        let label = record.label.and_then(|label| self.labels.get(label as usize));
        json!({
            "ph": "X",
            "pid": process,
            "tid": thread,
            "name": label.map_or(record.name, String::as_str),
            "ts": microseconds(record.start),
            "dur": microseconds(record.end.saturating_sub(record.start)),
            "args": { "kernel": record.name, "bytes": record.bytes },
        })
    }
}

/// Returns the whole document for the events of one or more traces.
pub fn document(events: Vec<Value>) -> Value {
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

/// The rows of the viewer. Slices in one row must not overlap, but a stream can run several commands at once; it then gets additional rows,
/// each named after it.
#[derive(Default)]
struct Workers {
    /// When each row of each stream is free.
    free_at: BTreeMap<(usize, usize), Duration>,
}

impl Workers {
    /// Returns the thread id for a record, and the number of its row if the row is new. Records come in the order of their starts.
    fn place(&mut self, stream: usize, record: &TraceRecord) -> (u64, Option<usize>) {
        let rows = self.free_at.range((stream, 0)..(stream + 1, 0));
        let free = rows.clone().find(|&(_, &free_at)| free_at <= record.start).map(|(&(_, worker), _)| worker);
        let worker = free.unwrap_or(rows.count());
        let new = self.free_at.insert((stream, worker), record.end).is_none();
        (stream as u64 * 1000 + worker as u64 + 1, new.then_some(worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Binding, Command, DataType, Kernel, Launch, MemoryId, Region, Space, TensorDesc};
    use forebay_plan::plan::{MemoryKind, PlanMemory, PlanStream};

    fn record(stream: u32, label: Option<u32>, start_us: u64, end_us: u64) -> TraceRecord {
        TraceRecord {
            stream: StreamId(stream),
            label,
            name: if label.is_some() { "MatMul" } else { "copy" },
            bytes: 64,
            start: Duration::from_micros(start_us),
            end: Duration::from_micros(end_us),
            worker_time: Duration::ZERO,
        }
    }

    #[test]
    fn every_stream_is_a_row_and_every_node_has_its_name() {
        let plan = Plan {
            labels: vec!["fc".to_string()],
            streams: vec![PlanStream { name: "compute".to_string() }, PlanStream { name: "copy in".to_string() }],
            ..Plan::default()
        };
        let mut trace = Trace::new(&plan);
        let records = vec![record(7, Some(0), 10, 20), record(9, None, 5, 15), record(7, Some(0), 15, 25)];
        trace.add(&[StreamId(7), StreamId(9)], records);
        let events = trace.events(1, "training");
        let named = |kind: &str| -> Vec<String> {
            events
                .iter()
                .filter(|event| event["name"] == kind)
                .map(|event| event["args"]["name"].as_str().unwrap_or_default().to_string())
                .collect()
        };
        assert_eq!(named("thread_name"), ["copy in", "compute", "compute (2)"]);
        let slices: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(slices.len(), 3);
        assert_eq!(slices[1]["name"], "fc");
        assert_eq!(slices[1]["dur"], 10.0);
        assert_eq!(slices[1]["args"]["kernel"], "MatMul");
    }

    #[test]
    fn launches_on_the_host_have_a_row_of_their_own() {
        let desc = TensorDesc::packed(DataType::Float32, &[16]).unwrap();
        let writes = vec![Binding { region: Region::new(MemoryId(0), 0, 64), desc }];
        let launch = Launch { kernel: Kernel::Copy, reads: Vec::new(), writes, workspace: None, label: 1 };
        let plan = Plan {
            labels: vec!["fc".to_string(), "exp".to_string()],
            streams: vec![PlanStream { name: "compute".to_string() }],
            memories: vec![PlanMemory { kind: MemoryKind::HostBlock, space: Space::Host, size_bytes: 64 }],
            commands: vec![Command::Launch { stream: StreamId(0), launch: Box::new(launch) }],
            ..Plan::default()
        };
        let mut trace = Trace::new(&plan);
        trace.add(&[StreamId(7)], vec![record(7, Some(0), 10, 20), record(7, Some(1), 20, 30)]);
        let events = trace.events(1, "training");
        let rows = events.iter().filter(|event| event["name"] == "thread_name");
        let rows: Vec<_> = rows.map(|event| (event["args"]["name"].as_str().unwrap(), &event["tid"])).collect();
        assert_eq!(rows.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["compute", "host"]);
        let slice = events.iter().find(|event| event["ph"] == "X" && event["name"] == "exp").unwrap();
        assert_eq!(&slice["tid"], rows[1].1);
    }
}
