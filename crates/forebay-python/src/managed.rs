//! Memory for more data than the device holds, and the experiment that determines its eviction order.

use std::path::PathBuf;

use forebay::managed::{Advice, Location, Policy};
use forebay::probe::Action;
use forebay::{DeviceOptions, ManagedOptions, ProbeOptions, RuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::{Given, Taken, data_type, tensor};
use crate::device_tensor::DeviceTensor;
use crate::eager::{Context, Stream, waiting};
use crate::errors::{choice, exception};
use crate::long_work::obeying_signals;

const POLICIES: [(&str, Policy); 3] =
    [("driver", Policy::Driver), ("touch", Policy::Touch), ("planned", Policy::Planned)];

/// Settings of a managed memory. Sizes are in bytes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ManagedGiven {
    device_memory: u64,
    policy: String,
    growth: bool,
    host_memory: Option<u64>,
    spill_dir: Option<PathBuf>,
    unit_size: Option<u64>,
}

/// A part of device memory shared by buffers larger than it.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct ManagedMemory(forebay::ManagedMemory);

#[pymethods]
impl ManagedMemory {
    #[new]
    fn new(py: Python<'_>, context: &Context, given: ManagedGiven) -> PyResult<ManagedMemory> {
        let policy = choice(py, "eviction order", &given.policy, &POLICIES)?;
        let mut options = ManagedOptions::new(given.device_memory, policy).growth(given.growth);
        (options.host_bytes, options.spill_dir, options.unit_bytes) =
            (given.host_memory, given.spill_dir, given.unit_size);
        let context = context.context.clone();
        obeying_signals(py, f64::INFINITY, move || Ok(forebay::ManagedMemory::new(&context, &options)?))
            .map(ManagedMemory)
    }

    fn buffer(&self, py: Python<'_>, size_bytes: u64) -> PyResult<ManagedBuffer> {
        let made = py.detach(|| self.0.buffer(size_bytes));
        made.map(ManagedBuffer).map_err(|error| exception(py, &error.into()))
    }

    /// Returns the most device bytes that its buffers take together, the size of the units that move as a whole, and the policy.
    fn described(&self) -> (u64, Option<u64>, &'static str) {
        let policy = self.0.policy();
        let name = POLICIES.iter().find(|(_, known)| *known == policy).map_or("", |(name, _)| name);
        (self.0.capacity_bytes(), self.0.unit_bytes(), name)
    }

    fn set_next_uses(&self, uses: Vec<Vec<Bound<'_, ManagedBuffer>>>) {
        let buffers = |uses: &Vec<Bound<'_, ManagedBuffer>>| -> Vec<forebay::ManagedBuffer> {
            uses.iter().map(|buffer| buffer.get().0.clone()).collect()
        };
        let uses: Vec<Vec<forebay::ManagedBuffer>> = uses.iter().map(buffers).collect();
        self.0.set_next_uses(&uses.iter().map(|uses| uses.iter().collect()).collect::<Vec<_>>());
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let memory = self.0.clone();
        obeying_signals(py, f64::INFINITY, move || Ok(memory.synchronize()?))
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = py.detach(|| self.0.statistics());
        let dictionary = PyDict::new(py);
        for (name, value) in [
            ("faults", statistics.faults),
            ("evictions", statistics.evictions),
            ("fetched_bytes", statistics.fetched_bytes),
            ("copied_back_bytes", statistics.copied_back_bytes),
            ("mapped_bytes", statistics.mapped_bytes),
            ("dropped_bytes", statistics.dropped_bytes),
            ("prefetches", statistics.prefetches),
            ("spilled_bytes", statistics.spilled_bytes),
            ("unspilled_bytes", statistics.unspilled_bytes),
            ("stalls", statistics.stalls),
            ("resident_bytes", statistics.resident_bytes),
            ("device_bytes", statistics.device_bytes),
            ("host_bytes", statistics.host_bytes),
            ("file_bytes", statistics.file_bytes),
        ] {
            dictionary.set_item(name, value)?;
        }
        dictionary.set_item("stall_seconds", statistics.stall.as_secs_f64())?;
        Ok(dictionary)
    }
}

fn location(py: Python<'_>, name: &str) -> PyResult<Location> {
    choice(py, "place", name, &[("device", Location::Device), ("host", Location::Host)])
}

fn advice(py: Python<'_>, name: &str, place: Option<&str>) -> PyResult<Advice> {
    let place = || location(py, place.unwrap_or("device"));
    match choice(py, "advice", name, &[("read_mostly", 0), ("preferred_location", 1), ("accessed_by", 2)])? {
        0 => Ok(Advice::ReadMostly),
        1 => Ok(Advice::PreferredLocation(place()?)),
        _ => Ok(Advice::AccessedBy(place()?)),
    }
}

/// A buffer in managed memory. Ranges are in bytes.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct ManagedBuffer(forebay::ManagedBuffer);

impl ManagedBuffer {
    fn quickly<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&forebay::ManagedBuffer) -> Result<T, RuntimeError> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&self.0)).map_err(|error| exception(py, &error.into()))
    }
}

#[pymethods]
impl ManagedBuffer {
    /// Returns a tensor in this buffer.
    fn tensor(&self, py: Python<'_>, type_name: &str, shape: Vec<u64>, offset: u64) -> PyResult<DeviceTensor> {
        let data_type = data_type(type_name)?;
        self.quickly(py, |buffer| buffer.tensor(data_type, &shape, offset)).map(DeviceTensor)
    }

    fn write(&self, py: Python<'_>, offset: u64, given: Given<'_>) -> PyResult<()> {
        let (array, buffer) = (tensor(given)?, self.0.clone());
        obeying_signals(py, f64::INFINITY, move || Ok(buffer.write(offset, array.bytes())?))
    }

    /// Reads an array.
    fn read<'py>(&self, py: Python<'py>, type_name: &str, shape: Vec<u64>, offset: u64) -> PyResult<Taken<'py>> {
        let (data_type, buffer) = (data_type(type_name)?, self.0.clone());
        let read = obeying_signals(py, f64::INFINITY, move || {
            let ty = forebay::TensorType::new(data_type, &shape);
            let reason = || forebay::Error::Option { reason: format!("{ty} does not fit in host memory") };
            let mut bytes = Vec::new();
            let count = ty.checked_size_bytes().and_then(|count| usize::try_from(count).ok()).ok_or_else(reason)?;
            bytes.try_reserve_exact(count).map_err(|_| reason())?;
            bytes.resize(count, 0);
            buffer.read(offset, &mut bytes)?;
            forebay::Tensor::new(data_type, &shape, bytes).ok_or_else(reason)
        })?;
        Ok(crate::arrays::array(py, read))
    }

    /// Fills the buffer with a pattern of four bytes.
    fn fill(&self, py: Python<'_>, stream: &Stream, pattern: [u8; 4]) -> PyResult<()> {
        let (buffer, on) = (self.0.clone(), stream.0.clone());
        let bytes = self.0.size_bytes();
        waiting(py, &stream.0, bytes, move || {
            let _entered = on.enter();
            Ok(buffer.fill(pattern)?)
        })
    }

    fn prefetch(&self, py: Python<'_>, start: u64, end: u64, to: &str) -> PyResult<()> {
        let to = location(py, to)?;
        self.quickly(py, |buffer| buffer.prefetch(start..end, to))
    }

    fn cancel_prefetch(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<u64> {
        self.quickly(py, |buffer| buffer.cancel_prefetch(start..end))
    }

    fn advise(&self, py: Python<'_>, start: u64, end: u64, name: &str, place: Option<&str>) -> PyResult<()> {
        let advice = advice(py, name, place)?;
        self.quickly(py, |buffer| buffer.advise(start..end, advice))
    }

    fn withdraw_advice(&self, py: Python<'_>, start: u64, end: u64, name: &str, place: Option<&str>) -> PyResult<()> {
        let advice = advice(py, name, place)?;
        self.quickly(py, |buffer| buffer.withdraw_advice(start..end, advice))
    }

    fn discard(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<()> {
        self.quickly(py, |buffer| buffer.discard(start..end))
    }

    fn resident_bytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.0.resident_bytes())
    }
}

/// The result of the experiment for one action: its number in the paper, its description, the evicted chunks, the chunk that the paper
/// found, the seconds to create one more chunk, and, per chunk used afterwards, whether it was resident and how long its use took.
type Found = (u32, &'static str, Vec<usize>, Option<usize>, f64, Vec<(bool, f64)>);

/// Determines the eviction order of managed memory.
#[pyfunction]
pub fn probe(
    py: Python<'_>,
    device: &str,
    policy: &str,
    chunk_bytes: u64,
    chunk_count: u64,
    growth: bool,
) -> PyResult<Vec<Found>> {
    let mut options = ProbeOptions::default();
    options.device = DeviceOptions::default();
    options.device.name = device.parse().map_err(|error| exception(py, &error))?;
    options.policy = choice(py, "eviction order", policy, &POLICIES)?;
    (options.chunk_bytes, options.chunk_count, options.growth) = (chunk_bytes, chunk_count, growth);
    let findings = obeying_signals(py, f64::INFINITY, move || forebay::probe(&options))?;
    let found = findings.into_iter().map(|finding| {
        let action: Action = finding.action;
        let touches = finding.touches.iter().map(|touch| (touch.resident, touch.seconds)).collect();
        let measured = action.measured();
        (action.number(), action.description(), finding.evicted, measured, finding.overcommit_seconds, touches)
    });
    Ok(found.collect())
}
