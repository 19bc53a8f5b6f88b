//! Pipelines: shaders with their constants, created at first use. What the driver compiled is kept on disk between runs.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ash::vk;
use forebay_device::DeviceError;
use forebay_gpu_kernels::{SUBGROUP_SIZE, Shader};

use crate::gpu::{Gpu, failed};

/// The entry point of every shader.
const ENTRY_POINT: &CStr = c"main";

/// The layout of a shader's bindings, which depends on their number.
#[derive(Clone, Copy)]
struct Layout {
    set: vk::DescriptorSetLayout,
    pipeline: vk::PipelineLayout,
}

/// A pipeline and the layout of its bindings.
#[derive(Clone, Copy)]
pub(crate) struct Pipeline {
    pub handle: vk::Pipeline,
    pub layout: vk::PipelineLayout,
    pub set: vk::DescriptorSetLayout,
}

/// All pipelines of a device.
pub(crate) struct Pipelines {
    gpu: Arc<Gpu>,
    cache: vk::PipelineCache,
    /// The file in which compiled shaders are kept, and how many bytes it had.
    file: Option<PathBuf>,
    kept_bytes: usize,
    /// Layouts by the number of bindings.
    layouts: BTreeMap<usize, Layout>,
    modules: BTreeMap<&'static str, vk::ShaderModule>,
    pipelines: BTreeMap<(&'static str, Vec<u32>), vk::Pipeline>,
}

impl Pipelines {
    /// Creates a table without pipelines. What an earlier run kept in `folder` is used if the driver accepts it.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn new(gpu: Arc<Gpu>, folder: Option<&Path>) -> Result<Pipelines, DeviceError> {
        let file = folder.map(|folder| folder.join(file_name(&gpu)));
        let kept = file.as_ref().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        let create = |data: &[u8]| {
            let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
            // SAFETY: the structure lives through the call; drivers check the data's header, and ours bears their version.
            unsafe { gpu.functions.create_pipeline_cache(&info, None) }
        };
        let cache = create(&kept).or_else(|_| create(&[])).map_err(failed("creating a pipeline cache"))?;
        let kept_bytes = kept.len();
        let (layouts, modules, pipelines) = Default::default();
        Ok(Pipelines { gpu, cache, file, kept_bytes, layouts, modules, pipelines })
    }

    /// Returns the pipeline of a shader with these constants and this many bindings.
    ///
    /// # Errors
    /// If Vulkan returns an error.
    pub fn of(&mut self, shader: &'static Shader, constants: &[u32], bindings: usize) -> Result<Pipeline, DeviceError> {
        let layout = self.layout(bindings)?;
        // A lookup with a borrowed key would need a separate key type; constants are only a few words.
        let key = (shader.name, constants.to_vec());
        let handle = match self.pipelines.get(&key) {
            Some(&handle) => handle,
            None => {
                let handle = self.compile(shader, constants, layout)?;
                self.pipelines.insert(key, handle);
                handle
            }
        };
        Ok(Pipeline { handle, layout: layout.pipeline, set: layout.set })
    }

    fn layout(&mut self, bindings: usize) -> Result<Layout, DeviceError> {
        if let Some(&layout) = self.layouts.get(&bindings) {
            return Ok(layout);
        }
        let failed = failed("creating the layout of a shader's bindings");
        let one = |index| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(index as u32)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let all: Vec<_> = (0..bindings).map(one).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&all);
        let functions = &self.gpu.functions;
        // SAFETY: the structures live through the calls.
        let layout = unsafe {
            let set = functions.create_descriptor_set_layout(&info, None).map_err(&failed)?;
            let sets = [set];
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let pipeline = functions.create_pipeline_layout(&info, None).map_err(|error| {
                functions.destroy_descriptor_set_layout(set, None);
                failed(error)
            })?;
            Layout { set, pipeline }
        };
        self.layouts.insert(bindings, layout);
        Ok(layout)
    }

    fn module(&mut self, shader: &'static Shader) -> Result<vk::ShaderModule, DeviceError> {
        if let Some(&module) = self.modules.get(shader.name) {
            return Ok(module);
        }
        let words: Vec<u32> =
            shader.code.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the code comes from our own compiler, and is checked by its validator when it is made.
        let module = unsafe { self.gpu.functions.create_shader_module(&info, None) };
        let module = module.map_err(failed("reading a shader"))?;
        self.modules.insert(shader.name, module);
        Ok(module)
    }

    fn compile(
        &mut self,
        shader: &'static Shader,
        constants: &[u32],
        layout: Layout,
    ) -> Result<vk::Pipeline, DeviceError> {
        let module = self.module(shader)?;
        let entries: Vec<vk::SpecializationMapEntry> = (0..constants.len() as u32)
            .map(|index| vk::SpecializationMapEntry { constant_id: index, offset: 4 * index, size: 4 })
            .collect();
        let data: Vec<u8> = constants.iter().flat_map(|constant| constant.to_ne_bytes()).collect();
        let constants = vk::SpecializationInfo::default().map_entries(&entries).data(&data);
        let mut subgroup_size =
            vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default().required_subgroup_size(SUBGROUP_SIZE);
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(ENTRY_POINT)
            .specialization_info(&constants);
        if shader.needs_cooperative() {
            stage =
                stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS).push_next(&mut subgroup_size);
        }
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout.pipeline);
        // SAFETY: the structures live through the call.
        let made = unsafe { self.gpu.functions.create_compute_pipelines(self.cache, &[info], None) };
        match made {
            Ok(pipelines) => Ok(pipelines[0]),
            Err((_, error)) => Err(failed("compiling a shader")(error)),
        }
    }

    /// Keeps what the driver compiled for the next run. If this fails, the next run is only slower.
    fn keep(&self) {
        let Some(file) = &self.file else { return };
        // SAFETY: the cache is the device's.
        let Ok(data) = (unsafe { self.gpu.functions.get_pipeline_cache_data(self.cache) }) else { return };
        if data.len() == self.kept_bytes {
            return;
        }
        let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
        let written = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = written.and_then(|()| std::fs::write(&temporary, data));
        if written.and_then(|()| std::fs::rename(&temporary, file)).is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        self.keep();
        let functions = &self.gpu.functions;
        // SAFETY: nothing that was submitted runs any more when a device lets go of its pipelines.
        unsafe {
            self.pipelines.values().for_each(|&pipeline| functions.destroy_pipeline(pipeline, None));
            self.modules.values().for_each(|&module| functions.destroy_shader_module(module, None));
            for layout in self.layouts.values() {
                functions.destroy_pipeline_layout(layout.pipeline, None);
                functions.destroy_descriptor_set_layout(layout.set, None);
            }
            functions.destroy_pipeline_cache(self.cache, None);
        }
    }
}

/// Returns the folder in which compiled shaders are kept: the user's cache folder. `None` if the system does not say where that is.
pub(crate) fn usual_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    Some(caches.or_else(|| set("HOME").map(|home| home.join(".cache")))?.join("forebay"))
}

/// Returns the name of the cache file, of which there is one per device and driver.
fn file_name(gpu: &Gpu) -> String {
    // SAFETY: the device is the instance's.
    let properties = unsafe { gpu.system.instance.get_physical_device_properties(gpu.physical) };
    let identity: String = properties.pipeline_cache_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("vulkan-{:08x}-{:08x}-{identity}.pipelines", properties.vendor_id, properties.device_id)
}
