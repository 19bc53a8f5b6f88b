//! Flags and environment variables that determine how and when device memory is allocated.

use clap::Args;
use forebay::{DeviceOptions, MemorySize};

/// How device memory is allocated.
#[derive(Args, Debug)]
#[command(next_help_heading = "Device")]
pub struct HeapArguments {
    /// The largest heap whose tiles are mapped, in whole tiles [default: 32MiB]
    #[arg(long, value_name = "SIZE", env = "FOREBAY_HEAP_SIZE", value_parser = byte_count)]
    pub heap_size: Option<u64>,
    /// The unit in which heaps are mapped: a power of two, at least a page and at most a heap; does not change the results
    /// [default: 64KiB]
    #[arg(long, value_name = "SIZE", env = "FOREBAY_TILE_SIZE", value_parser = byte_count)]
    pub tile_size: Option<u64>,
    /// Allocate each heap in one piece instead of mapping it tile by tile (same as FOREBAY_TILED=0); does not change the results
    #[arg(long)]
    pub no_tiles: bool,
    /// The environment's setting for tiles.
    #[arg(long, hide = true, env = "FOREBAY_TILED", default_value = "1", value_parser = |text: &str| switch("FOREBAY_TILED", text))]
    pub tiled: bool,
    /// Let managed memory allocate all of its device memory at the start and keep it (same as FOREBAY_GROWTH=0), as a plan
    /// always does
    #[arg(long)]
    pub no_growth: bool,
    /// The environment's setting for growth.
    #[arg(long, hide = true, env = "FOREBAY_GROWTH", default_value = "1", value_parser = |text: &str| switch("FOREBAY_GROWTH", text))]
    pub growth: bool,
}

impl HeapArguments {
    /// Applies the flags to a device.
    pub fn apply(&self, device: &mut DeviceOptions) {
        device.heap_size = self.heap_size;
        device.tile_size = self.tile_size;
        device.tiled = self.tiled && !self.no_tiles;
    }

    /// Returns whether managed memory allocates device memory on demand.
    pub fn grows(&self) -> bool {
        self.growth && !self.no_growth
    }
}

/// Parses a size in bytes.
///
/// # Errors
/// Fails if the text is not a size, or if it is a share.
pub fn byte_count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(MemorySize::Bytes(bytes)) => Ok(bytes),
        Ok(MemorySize::Percent(_)) => Err("expected a size such as 8MiB, not a percentage".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a number of bytes per second: a size, optionally followed by `/s`.
///
/// # Errors
/// Returns the errors of [`byte_count`].
pub fn byte_rate(text: &str) -> Result<u64, String> {
    byte_count(text.strip_suffix("/s").unwrap_or(text))
}

/// Parses an environment variable that can turn something off.
fn switch(variable: &str, text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("the variable {variable} must be 0 or 1")),
    }
}
