//! Counts the calls to a driver where they are made.
//!
//! Both contenders find Vulkan through [`entry`], which hands out the loader's own functions, except for three that count dispatches and
//! barriers on the way.

use std::ffi::{c_char, CStr};
use std::mem::transmute;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use ash::{vk, Entry, StaticFn};

/// The calls to the process's drivers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The number of dispatches of shaders.
    pub dispatches: u64,
    /// The number of calls that are barriers.
    pub barriers: u64,
    /// The number of memory, buffer and image barriers in these calls.
    pub ordered: u64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            dispatches: self.dispatches - before.dispatches,
            barriers: self.barriers - before.barriers,
            ordered: self.ordered - before.ordered,
        }
    }
}

static DISPATCHES: AtomicU64 = AtomicU64::new(0);
static BARRIERS: AtomicU64 = AtomicU64::new(0);
static ORDERED: AtomicU64 = AtomicU64::new(0);

/// Returns the counts so far.
pub fn counts() -> Counts {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Counts { dispatches: read(&DISPATCHES), barriers: read(&BARRIERS), ordered: read(&ORDERED) }
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// The loader, which stays loaded.
static LOADER: OnceLock<Entry> = OnceLock::new();
/// The loader's functions that the counting ones call. They find the driver by the command buffer, so they serve all devices.
static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Any of Vulkan's functions, regardless of its type.
type Function = unsafe extern "system" fn();

struct Functions {
    get_device_proc_addr: vk::PFN_vkGetDeviceProcAddr,
    cmd_dispatch: vk::PFN_vkCmdDispatch,
    cmd_pipeline_barrier: vk::PFN_vkCmdPipelineBarrier,
    cmd_pipeline_barrier2: vk::PFN_vkCmdPipelineBarrier2,
}

/// Returns an entry to Vulkan through which everything is counted.
///
/// # Errors
/// If there is no Vulkan loader.
pub fn entry() -> Result<Entry, ash::LoadingError> {
    if LOADER.get().is_none() {
        // SAFETY: the system's Vulkan loader is trusted to be one.
        let loaded = unsafe { Entry::load() }?;
        LOADER.get_or_init(|| loaded);
    }
    // SAFETY: the function answers as the loader does, and stays for the process's life.
    Ok(unsafe { Entry::from_static_fn(StaticFn { get_instance_proc_addr: instance_function }) })
}

/// # Safety
/// As `vkGetInstanceProcAddr`.
unsafe extern "system" fn instance_function(instance: vk::Instance, name: *const c_char) -> vk::PFN_vkVoidFunction {
    let find = LOADER.get()?.static_fn().get_instance_proc_addr;
    // SAFETY: the caller's promises.
    let found = unsafe { find(instance, name) }?;
    // SAFETY: as above.
    if unsafe { CStr::from_ptr(name) } != c"vkGetDeviceProcAddr" {
        return Some(found);
    }
    // SAFETY: these names stand for functions of these types, and the instance lives.
    let functions = unsafe {
        let of = |name: &CStr| find(instance, name.as_ptr());
        Functions {
            get_device_proc_addr: transmute::<Function, vk::PFN_vkGetDeviceProcAddr>(found),
            cmd_dispatch: transmute::<Function, vk::PFN_vkCmdDispatch>(of(c"vkCmdDispatch")?),
            cmd_pipeline_barrier: transmute::<Function, vk::PFN_vkCmdPipelineBarrier>(of(c"vkCmdPipelineBarrier")?),
            cmd_pipeline_barrier2: transmute::<Function, vk::PFN_vkCmdPipelineBarrier2>(of(c"vkCmdPipelineBarrier2")?),
        }
    };
    FUNCTIONS.get_or_init(|| functions);
    // SAFETY: whoever asks by this name calls it by this type.
    Some(unsafe { transmute::<vk::PFN_vkGetDeviceProcAddr, Function>(device_function) })
}

/// # Safety
/// As `vkGetDeviceProcAddr`.
unsafe extern "system" fn device_function(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller's promises.
    let found = unsafe { (FUNCTIONS.get()?.get_device_proc_addr)(device, name) }?;
    // SAFETY: as above; each function has the type of what its name asks for.
    unsafe {
        Some(match CStr::from_ptr(name).to_bytes() {
            b"vkCmdDispatch" => transmute::<vk::PFN_vkCmdDispatch, Function>(dispatch),
            b"vkCmdPipelineBarrier" => transmute::<vk::PFN_vkCmdPipelineBarrier, Function>(barrier),
            b"vkCmdPipelineBarrier2" | b"vkCmdPipelineBarrier2KHR" => {
                transmute::<vk::PFN_vkCmdPipelineBarrier2, Function>(barrier2)
            }
            _ => found,
        })
    }
}

/// # Safety
/// As `vkCmdDispatch`.
unsafe extern "system" fn dispatch(commands: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    count(&DISPATCHES, 1);
    if let Some(functions) = FUNCTIONS.get() {
        // SAFETY: the caller's promises.
        unsafe { (functions.cmd_dispatch)(commands, x, y, z) };
    }
}

/// # Safety
/// As `vkCmdPipelineBarrier`.
#[allow(clippy::too_many_arguments)] // As many as Vulkan's function has.
unsafe extern "system" fn barrier(
    commands: vk::CommandBuffer,
    before: vk::PipelineStageFlags,
    after: vk::PipelineStageFlags,
    flags: vk::DependencyFlags,
    memory_count: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffer_count: u32,
    buffers: *const vk::BufferMemoryBarrier<'_>,
    image_count: u32,
    images: *const vk::ImageMemoryBarrier<'_>,
) {
    count(&BARRIERS, 1);
    count(&ORDERED, u64::from(memory_count) + u64::from(buffer_count) + u64::from(image_count));
    if let Some(functions) = FUNCTIONS.get() {
        // SAFETY: the caller's promises.
        unsafe {
            (functions.cmd_pipeline_barrier)(
                commands,
                before,
                after,
                flags,
                memory_count,
                memory,
                buffer_count,
                buffers,
                image_count,
                images,
            );
        }
    }
}

/// # Safety
/// As `vkCmdPipelineBarrier2`.
unsafe extern "system" fn barrier2(commands: vk::CommandBuffer, info: *const vk::DependencyInfo<'_>) {
    count(&BARRIERS, 1);
    if let Some(functions) = FUNCTIONS.get() {
        // SAFETY: the caller's promises: the structure is there.
        unsafe {
            let info = &*info;
            let ordered =
                [info.memory_barrier_count, info.buffer_memory_barrier_count, info.image_memory_barrier_count];
            count(&ORDERED, ordered.into_iter().map(u64::from).sum());
            (functions.cmd_pipeline_barrier2)(commands, info);
        }
    }
}
