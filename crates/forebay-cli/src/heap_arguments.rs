//! Flags and variables that say in what pieces device memory is had, and when.

use clap::Args;
use forebay::{DeviceOptions, MemorySize};

/// In what device memory is had.
#[derive(Args, Debug)]
#[command(next_help_heading = "Device")]
pub struct HeapArguments {
    /// The largest heap whose tiles are mapped, in whole tiles [default: 32MiB]
    #[arg(long, value_name = "SIZE", env = "FOREBAY_HEAP_SIZE", value_parser = byte_count)]
    pub heap_size: Option<u64>,
    /// The unit in which heaps are mapped: a power of two from a page up, no more than a heap; results do not depend on it
    /// [default: 64KiB]
    #[arg(long, value_name = "SIZE", env = "FOREBAY_TILE_SIZE", value_parser = byte_count)]
    pub tile_size: Option<u64>,
    /// Do not map tiles: memory is placed heaps, each in one piece, also with FOREBAY_TILED=0; results do not depend on it
    #[arg(long)]
    pub no_tiles: bool,
    /// What the environment says about tiles.
    #[arg(long, hide = true, env = "FOREBAY_TILED", default_value = "1", value_parser = |text: &str| switch("FOREBAY_TILED", text))]
    pub tiled: bool,
    /// Let managed memory take all of its device memory at the start and keep it, also with FOREBAY_GROWTH=0; a plan always
    /// does so
    #[arg(long)]
    pub no_growth: bool,
    /// What the environment says about growth.
    #[arg(long, hide = true, env = "FOREBAY_GROWTH", default_value = "1", value_parser = |text: &str| switch("FOREBAY_GROWTH", text))]
    pub growth: bool,
}

impl HeapArguments {
    /// Sets what the flags say of a device.
    pub fn apply(&self, device: &mut DeviceOptions) {
        device.heap_size = self.heap_size;
        device.tile_size = self.tile_size;
        device.tiled = self.tiled && !self.no_tiles;
    }

    /// Whether managed memory takes device memory as it needs it.
    pub fn grows(&self) -> bool {
        self.growth && !self.no_growth
    }
}

/// A size in bytes.
///
/// # Errors
/// A text that is none, or a share.
pub fn byte_count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(MemorySize::Bytes(bytes)) => Ok(bytes),
        Ok(MemorySize::Percent(_)) => Err("a share of what? write a size like 8MiB".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A number of bytes per second: a size, with or without `/s` behind it.
///
/// # Errors
/// As [`byte_count`].
pub fn byte_rate(text: &str) -> Result<u64, String> {
    byte_count(text.strip_suffix("/s").unwrap_or(text))
}

/// What a variable says that turns something off.
fn switch(variable: &str, text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("the variable {variable} is 0 or 1")),
    }
}
