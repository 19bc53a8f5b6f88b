//! Methods of a device that wraps another one and forwards most calls to it.

/// Implements the named methods of [`Device`](crate::Device) by forwarding them to a field that is itself a device.
///
/// ```
/// use forebay_base::{Command, EventId, HeapId, Kernel, Limits, MemoryId, Region, StreamId, TensorDesc};
/// use forebay_device::null::{NullDevice, NullProfile};
/// use forebay_device::{forward, Device, DeviceError};
///
/// /// A device that has no spill files.
/// struct Diskless {
///     inner: NullDevice,
/// }
///
/// impl Device for Diskless {
///     forward! {
///         inner: limits workspace_bytes host_workspace_bytes check_room create_heap destroy_heap create_reservation create_placed
///         create_host_block create_read_only destroy_memory create_stream destroy_stream create_event destroy_event submit synchronize recover wait_event
///         query_event event_time write_host read_host join take_index_fault usage set_trace take_trace
///     }
///
///     fn create_spill(&self, _: &std::path::Path, _: u64) -> Result<MemoryId, DeviceError> {
///         Err(DeviceError::Unsupported { kernel: "create_spill", reason: "there is no disk".to_string() })
///     }
/// }
///
/// let device = Diskless { inner: NullDevice::new(NullProfile::Tiled) };
/// assert!(device.create_heap(1).is_ok());
/// assert!(device.create_spill("/tmp".as_ref(), 1).is_err());
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:ident: $($method:ident)*) => { $( $crate::forward!(@$method $inner); )* };
    (@limits $inner:ident) => {
        fn limits(&self) -> &$crate::base::Limits {
            self.$inner.limits()
        }
    };
    (@workspace_bytes $inner:ident) => {
        fn workspace_bytes(
            &self,
            kernel: &$crate::base::Kernel,
            reads: &[$crate::base::TensorDesc],
            writes: &[$crate::base::TensorDesc],
        ) -> Result<u64, $crate::DeviceError> {
            self.$inner.workspace_bytes(kernel, reads, writes)
        }
    };
    (@host_workspace_bytes $inner:ident) => {
        fn host_workspace_bytes(
            &self,
            kernel: &$crate::base::Kernel,
            reads: &[$crate::base::TensorDesc],
            writes: &[$crate::base::TensorDesc],
        ) -> Result<u64, $crate::DeviceError> {
            self.$inner.host_workspace_bytes(kernel, reads, writes)
        }
    };
    (@check_room $inner:ident) => {
        fn check_room(&self, heap_bytes: u64, host_bytes: u64) -> Result<(), $crate::DeviceError> {
            self.$inner.check_room(heap_bytes, host_bytes)
        }
    };
    (@create_heap $inner:ident) => {
        fn create_heap(&self, size_bytes: u64) -> Result<$crate::base::HeapId, $crate::DeviceError> {
            self.$inner.create_heap(size_bytes)
        }
    };
    (@destroy_heap $inner:ident) => {
        fn destroy_heap(&self, heap: $crate::base::HeapId) {
            self.$inner.destroy_heap(heap);
        }
    };
    (@create_reservation $inner:ident) => {
        fn create_reservation(&self, size_bytes: u64) -> Result<$crate::base::MemoryId, $crate::DeviceError> {
            self.$inner.create_reservation(size_bytes)
        }
    };
    (@create_placed $inner:ident) => {
        fn create_placed(&self, size_bytes: u64) -> Result<$crate::base::MemoryId, $crate::DeviceError> {
            self.$inner.create_placed(size_bytes)
        }
    };
    (@create_released_host_block $inner:ident) => {
        fn create_released_host_block(&self, size_bytes: u64) -> Result<$crate::base::MemoryId, $crate::DeviceError> {
            self.$inner.create_released_host_block(size_bytes)
        }
    };
    (@release_host $inner:ident) => {
        fn release_host(&self, region: $crate::base::Region) {
            self.$inner.release_host(region)
        }
    };
    (@allocate_late $inner:ident) => {
        fn allocate_late(&self, enabled: bool) {
            self.$inner.allocate_late(enabled)
        }
    };
    (@fill_host $inner:ident) => {
        fn fill_host(&self, block: $crate::base::MemoryId) -> Result<(), $crate::DeviceError> {
            self.$inner.fill_host(block)
        }
    };
    (@create_host_block $inner:ident) => {
        fn create_host_block(&self, size_bytes: u64) -> Result<$crate::base::MemoryId, $crate::DeviceError> {
            self.$inner.create_host_block(size_bytes)
        }
    };
    (@create_spill $inner:ident) => {
        fn create_spill(
            &self,
            folder: &std::path::Path,
            size_bytes: u64,
        ) -> Result<$crate::base::MemoryId, $crate::DeviceError> {
            self.$inner.create_spill(folder, size_bytes)
        }
    };
    (@create_read_only $inner:ident) => {
        fn create_read_only(
            &self,
            bytes: std::sync::Arc<dyn $crate::Readable>,
        ) -> Result<$crate::base::MemoryId, $crate::DeviceError> {
            self.$inner.create_read_only(bytes)
        }
    };
    (@takes_loans $inner:ident) => {
        fn takes_loans(&self) -> bool {
            self.$inner.takes_loans()
        }
    };
    (@create_loan $inner:ident) => {
        fn create_loan(&self, size_bytes: u64) -> Result<$crate::base::MemoryId, $crate::DeviceError> {
            self.$inner.create_loan(size_bytes)
        }
    };
    (@lend $inner:ident) => {
        fn lend(&self, memory: $crate::base::MemoryId, loan: $crate::Loan) -> Result<(), $crate::Loan> {
            self.$inner.lend(memory, loan)
        }
    };
    (@give_back $inner:ident) => {
        fn give_back(&self, memory: $crate::base::MemoryId) -> Option<$crate::Loan> {
            self.$inner.give_back(memory)
        }
    };
    (@destroy_memory $inner:ident) => {
        fn destroy_memory(&self, memory: $crate::base::MemoryId) {
            self.$inner.destroy_memory(memory);
        }
    };
    (@create_stream $inner:ident) => {
        fn create_stream(&self, name: &str, priority: i32) -> Result<$crate::base::StreamId, $crate::DeviceError> {
            self.$inner.create_stream(name, priority)
        }
    };
    (@destroy_stream $inner:ident) => {
        fn destroy_stream(&self, stream: $crate::base::StreamId) {
            self.$inner.destroy_stream(stream);
        }
    };
    (@create_event $inner:ident) => {
        fn create_event(&self) -> Result<$crate::base::EventId, $crate::DeviceError> {
            self.$inner.create_event()
        }
    };
    (@destroy_event $inner:ident) => {
        fn destroy_event(&self, event: $crate::base::EventId) {
            self.$inner.destroy_event(event);
        }
    };
    (@submit $inner:ident) => {
        fn submit(&self, commands: &[$crate::base::Command]) -> Result<(), $crate::DeviceError> {
            self.$inner.submit(commands)
        }
    };
    (@synchronize $inner:ident) => {
        fn synchronize(&self, stream: $crate::base::StreamId) -> Result<(), $crate::DeviceError> {
            self.$inner.synchronize(stream)
        }
    };
    (@recover $inner:ident) => {
        fn recover(&self) -> Result<(), $crate::DeviceError> {
            self.$inner.recover()
        }
    };
    (@wait_event $inner:ident) => {
        fn wait_event(&self, event: $crate::base::EventId, generation: u64) -> Result<(), $crate::DeviceError> {
            self.$inner.wait_event(event, generation)
        }
    };
    (@query_event $inner:ident) => {
        fn query_event(&self, event: $crate::base::EventId) -> u64 {
            self.$inner.query_event(event)
        }
    };
    (@event_time $inner:ident) => {
        fn event_time(&self, event: $crate::base::EventId, generation: u64) -> Option<std::time::Duration> {
            self.$inner.event_time(event, generation)
        }
    };
    (@write_host $inner:ident) => {
        fn write_host(&self, region: $crate::base::Region, bytes: &[u8]) {
            self.$inner.write_host(region, bytes);
        }
    };
    (@read_host $inner:ident) => {
        fn read_host(&self, region: $crate::base::Region, bytes: &mut [u8]) {
            self.$inner.read_host(region, bytes);
        }
    };
    (@join $inner:ident) => {
        fn join(&self, communicator: std::sync::Arc<dyn $crate::Communicator>) -> Result<(), $crate::DeviceError> {
            self.$inner.join(communicator)
        }
    };
    (@take_index_fault $inner:ident) => {
        fn take_index_fault(&self) -> Option<$crate::IndexFault> {
            self.$inner.take_index_fault()
        }
    };
    (@usage $inner:ident) => {
        fn usage(&self) -> $crate::DeviceUsage {
            self.$inner.usage()
        }
    };
    (@set_trace $inner:ident) => {
        fn set_trace(&self, enabled: bool) {
            self.$inner.set_trace(enabled);
        }
    };
    (@take_trace $inner:ident) => {
        fn take_trace(&self) -> Vec<$crate::TraceRecord> {
            self.$inner.take_trace()
        }
    };
}
