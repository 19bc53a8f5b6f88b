//! Context settings from environment variables, for programs that their users should not have to change.

use std::ffi::OsString;

use forebay_memory::size::MemorySize;

use super::options::ContextOptions;
use crate::error::RuntimeError;

impl ContextOptions {
    /// Returns the default settings, overridden by the environment.
    ///
    /// # Errors
    /// As for [`ContextOptions::with_environment`].
    pub fn from_environment() -> Result<ContextOptions, RuntimeError> {
        ContextOptions::default().with_environment()
    }

    /// Overrides these settings with the environment's: `FOREBAY_DEVICE_MEMORY`, `FOREBAY_HEAP_SIZE`, `FOREBAY_TILE_SIZE`,
    /// `FOREBAY_SEGMENT_SIZE` and `FOREBAY_STAGING` are sizes such as `256MiB`; `FOREBAY_GROWTH` and `FOREBAY_TILED` are 0 or 1. Empty
    /// variables are ignored.
    ///
    /// # Errors
    /// Returns [`RuntimeError::Setting`] for an invalid value.
    pub fn with_environment(self) -> Result<ContextOptions, RuntimeError> {
        self.with_variables(std::env::var_os)
    }

    fn with_variables(
        mut self,
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<ContextOptions, RuntimeError> {
        let value =
            |name| variable(name).filter(|text| !text.is_empty()).map(|text| text.to_string_lossy().into_owned());
        let size_bytes = |name| value(name).map(|text| size_bytes(name, &text)).transpose();
        let switch = |name| value(name).map(|text| switch(name, &text)).transpose();
        if let Some(bytes) = size_bytes("FOREBAY_DEVICE_MEMORY")? {
            self.device_memory_bytes = Some(bytes);
        }
        if let Some(bytes) = size_bytes("FOREBAY_STAGING")? {
            self.staging_bytes = Some(bytes);
        }
        if let Some(bytes) = size_bytes("FOREBAY_TILE_SIZE")? {
            self.tile_bytes = Some(bytes);
        }
        self.heap_bytes = size_bytes("FOREBAY_HEAP_SIZE")?.unwrap_or(self.heap_bytes);
        self.segment_bytes = size_bytes("FOREBAY_SEGMENT_SIZE")?.unwrap_or(self.segment_bytes);
        self.growth = switch("FOREBAY_GROWTH")?.unwrap_or(self.growth);
        self.tiled = switch("FOREBAY_TILED")?.unwrap_or(self.tiled);
        Ok(self)
    }
}

fn size_bytes(variable: &'static str, text: &str) -> Result<u64, RuntimeError> {
    let size: Result<MemorySize, _> = text.parse();
    let error = |reason| RuntimeError::Setting { variable, text: text.to_string(), reason };
    match size {
        Ok(MemorySize::Bytes(bytes)) => Ok(bytes),
        Ok(MemorySize::Percent(_)) => Err(error("a percentage is not supported here; write a size such as 256MiB")),
        Err(size) => Err(error(size.reason)),
    }
}

fn switch(variable: &'static str, text: &str) -> Result<bool, RuntimeError> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(RuntimeError::Setting { variable, text: text.to_string(), reason: "expected 0 or 1" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<ContextOptions, RuntimeError> {
        let find = |name| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| OsString::from(text));
        ContextOptions::default().with_variables(find)
    }

    #[test]
    fn variables_replace_settings_and_nothing_else() {
        let found = with(&[
            ("FOREBAY_DEVICE_MEMORY", "1.5GiB"),
            ("FOREBAY_HEAP_SIZE", "4MiB"),
            ("FOREBAY_TILE_SIZE", "128KiB"),
            ("FOREBAY_SEGMENT_SIZE", "64k"),
            ("FOREBAY_STAGING", "3MB"),
            ("FOREBAY_GROWTH", "0"),
            ("FOREBAY_TILED", "0"),
        ]);
        let expected = ContextOptions {
            device_memory_bytes: Some(3 << 29),
            heap_bytes: 4 << 20,
            tile_bytes: Some(128 << 10),
            segment_bytes: 64 << 10,
            staging_bytes: Some(3_000_000),
            growth: false,
            tiled: false,
            ..ContextOptions::default()
        };
        assert_eq!(found, Ok(expected));
        assert_eq!(with(&[("FOREBAY_GROWTH", "1"), ("FOREBAY_STAGING", "")]), Ok(ContextOptions::default()));
    }

    #[test]
    fn nonsense_names_its_variable() {
        for (variable, text, words) in [
            ("FOREBAY_DEVICE_MEMORY", "50%", "percentage"),
            ("FOREBAY_HEAP_SIZE", "many", "number"),
            ("FOREBAY_TILE_SIZE", "1%", "percentage"),
            ("FOREBAY_SEGMENT_SIZE", "0", "zero"),
            ("FOREBAY_STAGING", "1XB", "unit"),
            ("FOREBAY_GROWTH", "yes", "0 or 1"),
            ("FOREBAY_TILED", "2", "0 or 1"),
        ] {
            let error = with(&[(variable, text)]).unwrap_err().to_string();
            assert!([variable, text, words].iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
