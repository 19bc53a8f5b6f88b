//! A step on wgpu, as a good user of wgpu would write it: pipelines, bind groups and parameters are created once, and a step is one
//! command encoder, with as few passes as its copies allow, and one submission.

use std::collections::BTreeMap;
use std::error::Error;

use ash::vk;
use forebay_vulkan::kernels::{Bound, Dispatch, Operand};
use wgpu::util::{BufferInitDescriptor, DeviceExt};

use crate::counting;
use crate::layout::Layout;
use crate::sequence::{Operation, Place};
use crate::shader::specialized;

type Failure = Box<dyn Error>;

/// The size of the words in which a dispatch counts its workgroups or stores an index.
const COUNTER_BYTES: u64 = 16;
/// How buffers can be used.
const USAGES: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// A wgpu device.
#[derive(Clone)]
pub struct Wgpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
}

impl Wgpu {
    /// Opens the device whose name is contained in `name`, through the counting loader.
    ///
    /// # Errors
    /// If wgpu has no such device, or the device lacks what Forebay's shaders need.
    pub fn open(name: &str) -> Result<Wgpu, Failure> {
        let instance = instance()?;
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let named = adapters.into_iter().find(|adapter| name.contains(&adapter.get_info().name));
        let adapter = named.ok_or_else(|| format!("wgpu has no device named '{name}'"))?;
        let limits = adapter.limits();
        let descriptor = wgpu::DeviceDescriptor {
            required_features: wgpu::Features::PASSTHROUGH_SHADERS | wgpu::Features::SHADER_F64,
            required_limits: limits,
            // SAFETY: what runs are Forebay's own shaders, with Forebay's operands.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))?;
        Ok(Wgpu { device, queue })
    }
}

/// Creates an instance on the counting loader.
fn instance() -> Result<wgpu::Instance, Failure> {
    use wgpu::hal::vulkan::Instance;
    let (entry, version, flags) = (counting::entry()?, vk::API_VERSION_1_3, wgpu::InstanceFlags::empty());
    let extensions = Instance::desired_extensions(&entry, version, flags)?;
    let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
    let application = vk::ApplicationInfo::default().application_name(c"forebay beside wgpu").api_version(version);
    let info = vk::InstanceCreateInfo::default().application_info(&application).enabled_extension_names(&names);
    // SAFETY: the structures live through the call, and the instance is given to one that destroys it.
    let instance = unsafe {
        let raw = entry.create_instance(&info, None)?;
        let thresholds = wgpu::MemoryBudgetThresholds::default();
        Instance::from_raw(entry, raw, version, 0, None, extensions, flags, thresholds, false, None)?
    };
    // SAFETY: it was made for this.
    Ok(unsafe { wgpu::Instance::from_hal::<wgpu::hal::api::Vulkan>(instance) })
}

/// A dispatch that is ready to be recorded.
struct Ready {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    groups: [u32; 3],
}

/// A part of a step.
enum Stage {
    Pass(Vec<Ready>),
    Copy(Place, Place),
    Clear(Place),
}

/// A step on wgpu.
pub struct Replay {
    wgpu: Wgpu,
    buffers: Vec<wgpu::Buffer>,
    stages: Vec<Stage>,
}

impl Replay {
    /// Creates everything that the step needs, with the bytes that it finds.
    ///
    /// # Errors
    /// If wgpu cannot do what the step does.
    pub fn new(wgpu: &Wgpu, layout: &Layout) -> Result<Replay, Failure> {
        let buffer = |contents: &Vec<u8>| {
            let mut contents = contents.clone();
            contents.resize(contents.len().next_multiple_of(4).max(4), 0);
            let descriptor = BufferInitDescriptor { label: None, contents: &contents, usage: USAGES };
            wgpu.device.create_buffer_init(&descriptor)
        };
        let buffers: Vec<wgpu::Buffer> = layout.buffers.iter().map(buffer).collect();
        let mut maker = Maker::new(wgpu, &buffers, &layout.operations);
        let mut stages = Vec::new();
        for operation in &layout.operations {
            match operation {
                Operation::Launch { .. } => {
                    let ready = maker.launch(operation)?;
                    match stages.last_mut() {
                        Some(Stage::Pass(pass)) => pass.extend(ready),
                        _ => stages.push(Stage::Pass(ready)),
                    }
                }
                Operation::Copy { from, to } if from.buffer != to.buffer => stages.push(Stage::Copy(*from, *to)),
                Operation::Fill { to, pattern: [0, 0, 0, 0] } => stages.push(Stage::Clear(*to)),
                Operation::Copy { .. } => return Err("wgpu cannot copy within a buffer".into()),
                Operation::Fill { .. } => return Err("wgpu can only fill with zeros".into()),
            }
        }
        Ok(Replay { wgpu: wgpu.clone(), buffers, stages })
    }

    /// Runs the step and waits for it.
    ///
    /// # Errors
    /// If the device reports an error.
    pub fn step(&self) -> Result<(), Failure> {
        let mut encoder = self.wgpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for stage in &self.stages {
            match stage {
                Stage::Pass(dispatches) => {
                    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                    for Ready { pipeline, bindings, groups: [x, y, z] } in dispatches {
                        pass.set_pipeline(pipeline);
                        pass.set_bind_group(0, bindings, &[]);
                        pass.dispatch_workgroups(*x, *y, *z);
                    }
                }
                Stage::Copy(from, to) => {
                    let (source, target) = (&self.buffers[from.buffer], &self.buffers[to.buffer]);
                    let size_bytes = from.size_bytes.next_multiple_of(4);
                    encoder.copy_buffer_to_buffer(source, from.offset_bytes, target, to.offset_bytes, size_bytes);
                }
                Stage::Clear(to) => {
                    let size_bytes = to.size_bytes.next_multiple_of(4);
                    encoder.clear_buffer(&self.buffers[to.buffer], to.offset_bytes, Some(size_bytes));
                }
            }
        }
        self.wgpu.queue.submit([encoder.finish()]);
        self.wgpu.device.poll(wgpu::PollType::wait_indefinitely())?;
        Ok(())
    }

    /// Returns the contents of all buffers.
    ///
    /// # Errors
    /// If the device reports an error.
    pub fn read(&self) -> Result<Vec<Vec<u8>>, Failure> {
        self.buffers.iter().map(|buffer| self.read_buffer(buffer)).collect()
    }

    fn read_buffer(&self, buffer: &wgpu::Buffer) -> Result<Vec<u8>, Failure> {
        let Wgpu { device, queue } = &self.wgpu;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: None, size: buffer.size(), usage, mapped_at_creation: false };
        let staging = device.create_buffer(&descriptor);
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        queue.submit([encoder.finish()]);
        let (sender, receiver) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |mapped| sender.send(mapped).unwrap_or_default());
        device.poll(wgpu::PollType::wait_indefinitely())?;
        receiver.recv()??;
        let bytes = staging.get_mapped_range(..)?.to_vec();
        Ok(bytes)
    }
}

/// The layouts of a shader's bindings.
struct Slots {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// Creates pipelines and bind groups.
struct Maker<'a> {
    device: &'a wgpu::Device,
    buffers: &'a [wgpu::Buffer],
    /// The words of all dispatches, one after the other, and where the next ones begin.
    parameters: wgpu::Buffer,
    parameters_at: u64,
    /// The slots, keyed by which bindings are only read.
    slots: BTreeMap<Vec<bool>, Slots>,
    pipelines: BTreeMap<(&'static str, Vec<u32>, Vec<bool>), wgpu::ComputePipeline>,
}

impl<'a> Maker<'a> {
    fn new(wgpu: &'a Wgpu, buffers: &'a [wgpu::Buffer], operations: &[Operation<Place>]) -> Maker<'a> {
        let device = &wgpu.device;
        let mut contents: Vec<u8> = Vec::new();
        for dispatch in operations.iter().flat_map(Operation::dispatches) {
            contents.extend(dispatch.parameters.iter().flat_map(|word| word.to_le_bytes()));
            contents.resize(contents.len().max(1).next_multiple_of(alignment(device) as usize), 0);
        }
        let descriptor = BufferInitDescriptor { label: None, contents: &contents, usage: USAGES };
        let parameters = device.create_buffer_init(&descriptor);
        Maker { device, buffers, parameters, parameters_at: 0, slots: BTreeMap::new(), pipelines: BTreeMap::new() }
    }

    fn launch(&mut self, operation: &Operation<Place>) -> Result<Vec<Ready>, Failure> {
        operation.dispatches().iter().map(|dispatch| self.dispatch(operation, dispatch)).collect()
    }

    fn dispatch(&mut self, launch: &Operation<Place>, dispatch: &Dispatch) -> Result<Ready, Failure> {
        if dispatch.shader.is_by_address() {
            return Err(format!("{} needs buffer addresses, which wgpu does not provide", dispatch.shader.name).into());
        }
        let size_bytes = (4 * dispatch.parameters.len() as u64).max(4);
        let parameters = binding(&self.parameters, self.parameters_at, size_bytes);
        self.parameters_at = (self.parameters_at + size_bytes).next_multiple_of(alignment(self.device));
        let usage = wgpu::BufferUsages::STORAGE;
        let descriptor = wgpu::BufferDescriptor { label: None, size: COUNTER_BYTES, usage, mapped_at_creation: false };
        let own: Vec<wgpu::Buffer> = dispatch.bindings.iter().map(|_| self.device.create_buffer(&descriptor)).collect();
        let bound: Vec<(Option<Place>, bool)> =
            dispatch.bindings.iter().map(|bound| place(launch, bound)).collect::<Result<_, _>>()?;
        // Within a dispatch, wgpu accepts a buffer either only for reading or for all uses.
        let written = |buffer: usize| {
            bound.iter().any(|(place, writes)| *writes && place.map(|place| place.buffer) == Some(buffer))
        };
        let (mut read_only, mut resources) = (vec![true], vec![parameters]);
        for ((place, _), own) in bound.iter().zip(&own) {
            read_only.push(place.is_some_and(|place| !written(place.buffer)));
            resources.push(match place {
                Some(place) => {
                    let size_bytes = place.size_bytes.next_multiple_of(4);
                    binding(&self.buffers[place.buffer], place.offset_bytes, size_bytes)
                }
                None => binding(own, 0, COUNTER_BYTES),
            });
        }
        let entries: Vec<wgpu::BindGroupEntry> =
            (0..).zip(resources).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
        let device = self.device;
        let slots = self.slots.entry(read_only.clone()).or_insert_with(|| Slots::new(device, &read_only));
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &slots.group, entries: &entries };
        let bindings = device.create_bind_group(&descriptor);
        let key = (dispatch.shader.name, dispatch.constants.clone(), read_only);
        let pipeline = self.pipelines.entry(key).or_insert_with(|| compile(device, slots, dispatch)).clone();
        Ok(Ready { pipeline, bindings, groups: dispatch.groups })
    }
}

fn alignment(device: &wgpu::Device) -> u64 {
    u64::from(device.limits().min_storage_buffer_offset_alignment)
}

fn binding(buffer: &wgpu::Buffer, offset: u64, size_bytes: u64) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: wgpu::BufferSize::new(size_bytes) })
}

/// Returns the bytes of a dispatch's binding (`None` for words of its own), and whether the dispatch can write them.
fn place(launch: &Operation<Place>, bound: &Bound) -> Result<(Option<Place>, bool), Failure> {
    let Operation::Launch { reads, writes, workspace, .. } = launch else { return Err("not a launch".into()) };
    let (place, written) = match bound.operand {
        Operand::Read(index) => (reads.get(index).copied(), false),
        Operand::Write(index) => (writes.get(index).copied(), true),
        Operand::Workspace | Operand::Between => (*workspace, true),
        Operand::Counter | Operand::Fault => return Ok((None, true)),
    };
    let place = place.ok_or_else(|| format!("a launch has no {:?}", bound.operand))?;
    Ok((Some(place.part(bound.offset_bytes, bound.size_bytes)), written))
}

impl Slots {
    fn new(device: &wgpu::Device, read_only: &[bool]) -> Slots {
        let entry = |(binding, &read_only): (u32, &bool)| {
            let ty = wgpu::BufferBindingType::Storage { read_only };
            let ty = wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
            wgpu::BindGroupLayoutEntry { binding, visibility: wgpu::ShaderStages::COMPUTE, ty, count: None }
        };
        let entries: Vec<_> = (0..).zip(read_only).map(entry).collect();
        let group =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let groups = [Some(&group)];
        let descriptor = wgpu::PipelineLayoutDescriptor { label: None, bind_group_layouts: &groups, immediate_size: 0 };
        let pipeline = device.create_pipeline_layout(&descriptor);
        Slots { group, pipeline }
    }
}

fn compile(device: &wgpu::Device, slots: &Slots, dispatch: &Dispatch) -> wgpu::ComputePipeline {
    let entry_points = [wgpu::PassthroughShaderEntryPoint { name: "main".into(), workgroup_size: (0, 0, 0) }];
    let descriptor = wgpu::ShaderModuleDescriptorPassthrough {
        label: Some(dispatch.shader.name),
        entry_points: entry_points.as_slice().into(),
        spirv: Some(specialized(dispatch.shader, &dispatch.constants).into()),
        ..wgpu::ShaderModuleDescriptorPassthrough::default()
    };
    // SAFETY: the code is what Forebay runs with these operands.
    let module = unsafe { device.create_shader_module_passthrough(descriptor) };
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(dispatch.shader.name),
        layout: Some(&slots.pipeline),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    })
}
