//! The Vulkan loader, an instance, and the validation layer's messages.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use ash::{Entry, Instance, ext, vk};
use forebay_device::DeviceError;

/// The layer that checks everything.
const VALIDATION_LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// The validation layer's messages, oldest first.
#[derive(Default)]
pub(crate) struct Messages {
    lines: Mutex<Vec<String>>,
}

impl Messages {
    fn push(&self, line: String) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Takes the messages so far.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the first message, if there is one.
    pub fn first(&self) -> Option<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }
}

/// The loader and an instance of it.
pub(crate) struct System {
    pub instance: Instance,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// Boxed, because the messenger holds its address.
    pub messages: Box<Messages>,
    /// The version of Vulkan for which the validation layer was made; `None` without the layer.
    layer_version: Option<u32>,
    /// Keeps the library loaded as long as its functions may be called.
    pub entry: Entry,
}

/// Returns the error for a machine on which Vulkan cannot be used at all.
pub(crate) fn no_vulkan(reason: impl ToString) -> DeviceError {
    DeviceError::Setting { reason: format!("Vulkan is not available: {}", reason.to_string()) }
}

/// Returns the loader of this process, which is opened once.
///
/// # Errors
/// [`DeviceError::Setting`] if there is none.
pub(crate) fn entry() -> Result<Entry, DeviceError> {
    static ENTRY: OnceLock<Result<Entry, String>> = OnceLock::new();
    // SAFETY: the system's Vulkan loader is trusted to be one; it stays loaded for the process's life.
    let loaded = ENTRY.get_or_init(|| unsafe { Entry::load() }.map_err(|error| error.to_string()));
    loaded.clone().map_err(no_vulkan)
}

impl System {
    /// Creates an instance; if `validate`, with the validation layer, including synchronization validation.
    ///
    /// # Errors
    /// [`DeviceError::Setting`] if there is no driver, or if the validation layer is requested but missing.
    pub fn new(entry: Entry, validate: bool) -> Result<System, DeviceError> {
        let application = vk::ApplicationInfo::default()
            .application_name(c"forebay")
            .engine_name(c"forebay")
            .api_version(vk::API_VERSION_1_3);
        let messages = Box::<Messages>::default();
        if !validate {
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            // SAFETY: the structure and what it points to live through the call.
            let instance = unsafe { entry.create_instance(&info, None) }.map_err(no_vulkan)?;
            return Ok(System { instance, messenger: None, messages, layer_version: None, entry });
        }
        // SAFETY: a query without preconditions.
        let layers = unsafe { entry.enumerate_instance_layer_properties() }.map_err(no_vulkan)?;
        let Some(layer) = layers.iter().find(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION_LAYER)) else {
            let reason = "validation was requested (FOREBAY_VALIDATE), but the layer VK_LAYER_KHRONOS_validation is not \
                          installed (on Debian: apt-get install vulkan-validationlayers)";
            return Err(DeviceError::Setting { reason: reason.to_string() });
        };
        let layer_version = Some(layer.spec_version);
        let (layers, extensions) = ([VALIDATION_LAYER.as_ptr()], [ext::debug_utils::NAME.as_ptr()]);
        let enabled = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&enabled);
        let mut listener = listener(&messages);
        let info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions)
            .push_next(&mut features)
            .push_next(&mut listener);
        // SAFETY: as above; the listener's messages are boxed and outlive the instance.
        let instance = unsafe { entry.create_instance(&info, None) }.map_err(no_vulkan)?;
        let functions = ext::debug_utils::Instance::new(&entry, &instance);
        // SAFETY: as above.
        let messenger = unsafe { functions.create_debug_utils_messenger(&self::listener(&messages), None) };
        let messenger = messenger.map_err(no_vulkan)?;
        Ok(System { instance, messenger: Some((functions, messenger)), messages, layer_version, entry })
    }

    /// Returns whether the validation layer can check what came with a version of Vulkan; true without a layer. An older layer takes new
    /// structures and shaders for mistakes.
    pub fn can_judge(&self, version: u32) -> bool {
        can_judge(self.layer_version, version)
    }
}

fn can_judge(layer_version: Option<u32>, version: u32) -> bool {
    layer_version.is_none_or(|layer_version| layer_version >= version)
}

impl Drop for System {
    fn drop(&mut self) {
        // SAFETY: everything made from the instance is gone, since its owners hold this.
        unsafe {
            if let Some((functions, messenger)) = &self.messenger {
                functions.destroy_debug_utils_messenger(*messenger, None);
            }
            self.instance.destroy_instance(None);
        }
    }
}

/// Returns a listener that keeps warnings and errors.
fn listener(messages: &Messages) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Kind};
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::WARNING | Severity::ERROR)
        .message_type(Kind::VALIDATION | Kind::GENERAL)
        .pfn_user_callback(Some(listen))
        .user_data(std::ptr::from_ref(messages).cast_mut().cast())
}

/// # Safety
/// Called by the layer, with valid data and the messages that the listener was made with.
unsafe extern "system" fn listen(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // General messages are about the machine's drivers and layers, not about what we do.
    if kind.contains(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION) {
        // SAFETY: the caller's promises.
        unsafe {
            let text = (*data).message_as_c_str().map_or("a message without text".into(), CStr::to_string_lossy);
            // Newer layers name the rule only here.
            let rule = (*data).message_id_name_as_c_str().map_or("".into(), CStr::to_string_lossy);
            let is_named = rule.is_empty() || text.contains(&*rule);
            // Loaders and drivers look up functions of every version; the layer cannot tell that it was not us.
            if text.contains("vkGetDeviceProcAddr()") {
                return vk::FALSE;
            }
            (*messages.cast::<Messages>()).push(if is_named { text.into() } else { format!("{rule}: {text}") });
        }
    }
    vk::FALSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_judges_what_is_no_newer_than_itself() {
        let version = |minor, patch| vk::make_api_version(0, 1, minor, patch);
        assert!(can_judge(None, version(4, 311)));
        assert!(can_judge(Some(version(4, 311)), version(4, 311)) && can_judge(Some(version(4, 1)), version(3, 255)));
        assert!(!can_judge(Some(version(3, 239)), version(3, 255)) && !can_judge(Some(version(3, 300)), version(4, 0)));
    }
}
