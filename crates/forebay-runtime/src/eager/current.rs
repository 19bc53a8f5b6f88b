//! The stream that a thread's work goes to.

use std::cell::RefCell;
use std::marker::PhantomData;

use forebay_queue::shim::thread_local;

use super::context::Context;
use super::stream::Stream;

thread_local! {
    /// The streams of all contexts that were entered and not left, in the order of entering, each with a number that identifies it.
    static ENTERED: RefCell<Vec<(u64, Stream)>> = const { RefCell::new(Vec::new()) };
}

/// The stream of a context that this thread entered last.
fn of_context(context: &Context) -> Option<Stream> {
    ENTERED.with(|entered| {
        entered.borrow().iter().rev().map(|(_, stream)| stream).find(|stream| stream.context().is(context)).cloned()
    })
}

/// Enters a stream. Returns the number by which it is left.
fn enter(stream: Stream) -> u64 {
    ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        let number = entered.last().map_or(1, |(number, _)| number + 1);
        entered.push((number, stream));
        number
    })
}

/// Leaves a stream; streams that were entered later stay entered.
fn leave(number: u64) {
    // The stream is dropped after the borrow ends.
    let _left = ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        entered.iter().position(|(other, _)| *other == number).map(|place| entered.remove(place))
    });
}

/// While this guard lives, the stream that it was created from is the thread's current one ([`Stream::enter`]).
///
/// ```
/// # use std::sync::Arc;
/// # use forebay_device::host::{HostDevice, HostOptions};
/// use forebay_base::DataType;
/// use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor, Stream};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(HostDevice::new(&HostOptions::default())?);
/// let context = Context::new(device, &ContextOptions::default())?;
/// let stream = Stream::new(&context, 0)?;
/// {
///     let _entered = stream.enter(); // what follows runs on this stream
///     DeviceTensor::zeros(&context, DataType::Float32, &[4])?;
/// }
/// stream.synchronize()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the stream is left when this is dropped"]
pub struct StreamGuard {
    number: u64,
    /// A guard belongs to the thread that entered.
    thread: PhantomData<*const ()>,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        leave(self.number);
    }
}

impl Stream {
    /// Makes this the current stream of the thread until the guard is dropped.
    pub fn enter(&self) -> StreamGuard {
        StreamGuard { number: enter(self.clone()), thread: PhantomData }
    }
}

impl Context {
    /// The stream that this thread's work goes to: the one entered last ([`Stream::enter`]), or else the default stream.
    pub fn current_stream(&self) -> Stream {
        of_context(self).unwrap_or_else(|| self.default_stream())
    }
}
