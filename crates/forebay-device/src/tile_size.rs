//! The size of a tile, the unit in which heaps are mapped into reservations.

use crate::device::DeviceError;

/// The default size of a tile, in bytes: that of Direct3D.
pub const TILE_SIZE_BYTES: u64 = 64 << 10;
/// The size of the largest tile, in bytes. All memory comes in whole tiles, so larger ones would waste more than they save.
pub const TILE_SIZE_MAX_BYTES: u64 = 1 << 30;

/// Returns the size of the largest heap of whole tiles of at most `heap_bytes_max` bytes, on a machine with pages of `page_bytes`.
///
/// # Errors
/// [`DeviceError::Setting`] if tiles of this size are impossible.
pub fn whole_tiles(tile_bytes: u64, heap_bytes_max: u64, page_bytes: u64) -> Result<u64, DeviceError> {
    let reason = if !tile_bytes.is_power_of_two() || !tile_bytes.is_multiple_of(page_bytes) {
        format!("the size must be a power of two and a multiple of the page size of {page_bytes} bytes")
    } else if tile_bytes > TILE_SIZE_MAX_BYTES {
        format!("the maximum is {TILE_SIZE_MAX_BYTES} bytes")
    } else if tile_bytes > heap_bytes_max {
        format!("a heap of at most {heap_bytes_max} bytes cannot hold one; choose smaller tiles or larger heaps")
    } else {
        return Ok(heap_bytes_max / tile_bytes * tile_bytes);
    };
    Err(DeviceError::Setting { reason: format!("a tile of {tile_bytes} bytes is not supported: {reason}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_are_whole_tiles() {
        assert_eq!(whole_tiles(4096, 4096, 4096), Ok(4096));
        assert_eq!(whole_tiles(8192, 5 * 8192 + 1, 4096), Ok(5 * 8192));
        assert_eq!(whole_tiles(TILE_SIZE_MAX_BYTES, u64::MAX, 4096), Ok(u64::MAX - (TILE_SIZE_MAX_BYTES - 1)));
    }

    #[test]
    fn impossible_tiles_are_refused_with_the_reason() {
        for (tile_bytes, heap_bytes_max, words) in [
            (0, 1 << 25, "power of two"),
            (3 << 10, 1 << 25, "power of two"),
            (3 << 16, 1 << 25, "power of two"),
            (2048, 1 << 25, "page size of 4096 bytes"),
            (2 * TILE_SIZE_MAX_BYTES, u64::MAX, "the maximum is 1073741824"),
            (1 << 26, 1 << 25, "a heap of at most 33554432 bytes"),
        ] {
            let error = whole_tiles(tile_bytes, heap_bytes_max, 4096).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains(&tile_bytes.to_string()), "{error}");
        }
    }
}
