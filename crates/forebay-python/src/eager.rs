//! Streams and events. Python tracks each thread's current stream (`forebay/_streams.py`); here, each call names its stream.

use std::sync::Arc;

use forebay::{ContextOptions, DeviceOptions, Error};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::long_work::{Maker, obeying_signals, seconds_of};

/// The options of a device and its memory. Sizes are in bytes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct ContextGiven {
    device: String,
    threads: Option<usize>,
    device_memory: Option<u64>,
    growth: bool,
    tile_size: Option<u64>,
    tiled: bool,
    link_bytes_per_second: Option<u64>,
    record: bool,
    extend_lifetimes: bool,
    memory_history: usize,
}

/// A device with its streams and memory.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Context {
    pub context: forebay::Context,
    maker: Maker,
}

#[pymethods]
impl Context {
    #[new]
    fn new(py: Python<'_>, given: ContextGiven) -> PyResult<Context> {
        let mut device = DeviceOptions::default();
        device.name = given.device.parse().map_err(|error| exception(py, &error))?;
        (device.threads, device.tile_size, device.tiled) = (given.threads, given.tile_size, given.tiled);
        device.link_bytes_per_second = given.link_bytes_per_second;
        let mut options = ContextOptions::default().record(given.record).memory_history(given.memory_history);
        options = options.extend_lifetimes(given.extend_lifetimes).growth(given.growth).tiled(given.tiled);
        options.device_memory_bytes = given.device_memory;
        let made = move || Ok(forebay::Context::new(forebay::open_device(&device)?, &options)?);
        obeying_signals(py, f64::INFINITY, made).map(|context| Context { context, maker: Maker::this() })
    }

    /// Fails in a fork of the process that made the context.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.maker.check(py, "context", "contexts, streams and tensors")
    }

    fn default_stream(&self) -> Stream {
        Stream(self.context.default_stream())
    }

    fn device_name(&self) -> String {
        self.context.device().limits().name.clone()
    }

    fn device_memory(&self) -> u64 {
        self.context.device().limits().memory_bytes
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let context = self.context.clone();
        obeying_signals(py, f64::INFINITY, move || Ok(context.synchronize()?))
    }

    fn start_recording(&self) {
        self.context.start_recording();
    }

    /// Returns a sentence for each race in what was recorded.
    fn races(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let context = self.context.clone();
        obeying_signals(py, f64::INFINITY, move || {
            Ok(context.check().err().map(|races| races.sentences).unwrap_or_default())
        })
    }

    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        let context = self.context.clone();
        obeying_signals(py, f64::INFINITY, move || Ok(context.trim()?))
    }

    /// Returns every block of device memory with its owner, as JSON.
    fn memory(&self) -> String {
        self.context.memory_snapshot_json().to_string()
    }

    fn reset_peaks(&self) {
        self.context.reset_peaks();
    }

    /// Returns a picture of who owned which bytes when, or `None` if no history was kept.
    fn memory_picture(&self, title: &str) -> Option<String> {
        self.context.memory_history().map(|history| history.picture(title).svg())
    }
}

/// Waits for work that is not complete yet, or that handles many bytes, and handles signals in the meantime.
///
/// # Errors
/// Returns the error of the work as an exception, or the exception that a signal raises.
pub fn waiting<T: Send + 'static>(
    py: Python<'_>,
    stream: &forebay::Stream,
    bytes: u64,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    // If nothing is in progress, the host does not wait.
    let is_idle = stream.query().unwrap_or(true);
    obeying_signals(py, if is_idle { seconds_of(bytes) } else { f64::INFINITY }, work)
}

/// A stream.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Stream(pub forebay::Stream);

#[pymethods]
impl Stream {
    #[new]
    fn new(py: Python<'_>, context: &Context, priority: i32) -> PyResult<Stream> {
        let made = py.detach(|| forebay::Stream::new(&context.context, priority));
        made.map(Stream).map_err(|error| exception(py, &error.into()))
    }

    fn number(&self) -> usize {
        self.0.number()
    }

    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.0.query()).map_err(|error| exception(py, &error.into()))
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.0.clone();
        waiting(py, &self.0, 0, move || Ok(stream.synchronize()?))
    }

    fn wait_stream(&self, py: Python<'_>, other: &Stream) -> PyResult<()> {
        py.detach(|| self.0.wait_stream(&other.0)).map_err(|error| exception(py, &error.into()))
    }
}

/// An event.
#[pyclass(module = "forebay._forebay", frozen)]
pub struct Event(Arc<forebay::Event>);

#[pymethods]
impl Event {
    #[new]
    fn new(context: &Context, timing: bool) -> Event {
        Event(Arc::new(forebay::Event::new(&context.context, timing)))
    }

    fn record(&self, py: Python<'_>, stream: &Stream) -> PyResult<()> {
        let (event, stream) = (self.0.clone(), stream.0.clone());
        py.detach(|| event.record_on(&stream)).map_err(|error| exception(py, &error.into()))
    }

    fn wait(&self, py: Python<'_>, stream: &Stream) -> PyResult<()> {
        py.detach(|| self.0.wait_on(&stream.0)).map_err(|error| exception(py, &error.into()))
    }

    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.0.query()).map_err(|error| exception(py, &error.into()))
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let event = self.0.clone();
        let fired = self.query(py)?;
        obeying_signals(py, if fired { 0.0 } else { f64::INFINITY }, move || Ok(event.synchronize()?))
    }

    fn elapsed_time(&self, py: Python<'_>, end: &Event) -> PyResult<f64> {
        py.detach(|| self.0.elapsed_time(&end.0)).map_err(|error| exception(py, &error.into()))
    }
}
