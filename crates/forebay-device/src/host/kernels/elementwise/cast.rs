//! Conversion between data types.

use forebay_base::DataType;
use half::{bf16, f16};

use super::super::block::{Buffer, BLOCK};
use super::super::element::{Bool, Element};
use super::super::parallel::{broadcast_strides, require_packed, Pointer, Walk};
use super::super::View;

/// The widest types. Every element type is held exactly by one of them, so that a conversion is a widening and a narrowing
/// and rounds once; 13 x 13 direct conversions would only be more code.
trait Wide: Copy + Default + Send + Sync {
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn to_u64(self) -> u64;
    fn to_f32(self) -> f32;
    fn is_zero(self) -> bool;
    /// As an integer of at most 32 bits converts from this type: real numbers saturate, integers wrap.
    fn to_small(self, low: i64, high: i64) -> i64;
}

impl Wide for f64 {
    fn to_f64(self) -> f64 {
        self
    }
    fn to_i64(self) -> i64 {
        self as i64
    }
    fn to_u64(self) -> u64 {
        self as u64
    }
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn is_zero(self) -> bool {
        self == 0.0
    }
    fn to_small(self, low: i64, high: i64) -> i64 {
        (self as i64).clamp(low, high)
    }
}

macro_rules! wide_integer {
    ($($type:ident)*) => {$(
        impl Wide for $type {
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn to_i64(self) -> i64 {
                self as i64
            }
            fn to_u64(self) -> u64 {
                self as u64
            }
            fn to_f32(self) -> f32 {
                self as f32
            }
            fn is_zero(self) -> bool {
                self == 0
            }
            fn to_small(self, _low: i64, _high: i64) -> i64 {
                self as i64
            }
        }
    )*};
}

wide_integer!(i64 u64);

/// Reads a run of up to [`BLOCK`] elements with a stride.
type Widen<W> = unsafe fn(*const u8, isize, usize, &mut [W; BLOCK]);

/// Writes a run of elements.
type SixteenBit<W> = unsafe fn(&[W], *mut u8);

/// # Safety
/// The elements must be readable and of type `X`.
unsafe fn widen<X: Element + Into<W>, W: Wide>(x: *const u8, stride: isize, count: usize, wide: &mut [W; BLOCK]) {
    let mut buffer = Buffer::<X>::new();
    // SAFETY: readable by the caller's promise; nothing is written while the slice lives.
    let values = unsafe { buffer.load(x.cast(), stride, count, std::ptr::null::<u8>()) };
    for (wide, &x) in wide.iter_mut().zip(values) {
        *wide = x.into();
    }
}

impl From<Bool> for i64 {
    fn from(value: Bool) -> i64 {
        value.get() as i64
    }
}

macro_rules! sixteen_bit {
    ($wide:ident, $type:ty, |$x:ident| $convert:expr) => {{
        /// # Safety
        /// The elements must be writable.
        unsafe fn sixteen_bit<W: Wide>(wide: &[W], y: *mut u8) {
            for (i, &$x) in wide.iter().enumerate() {
                // SAFETY: writable by the caller's promise.
                unsafe { *y.cast::<$type>().add(i) = $convert };
            }
        }
        sixteen_bit::<$wide>
    }};
}

fn to_sixteen_bit<W: Wide>(data_type: DataType) -> SixteenBit<W> {
    match data_type {
        DataType::Float64 => sixteen_bit!(W, f64, |x| x.to_f64()),
        DataType::Float32 => sixteen_bit!(W, f32, |x| x.to_f32()),
        DataType::Float16 => sixteen_bit!(W, f16, |x| f16::from_f64(x.to_f64())),
        DataType::BFloat16 => sixteen_bit!(W, bf16, |x| bf16::from_f64(x.to_f64())),
        DataType::Int64 => sixteen_bit!(W, i64, |x| x.to_i64()),
        DataType::Int32 => sixteen_bit!(W, i32, |x| x.to_small(i32::MIN as i64, i32::MAX as i64) as i32),
        DataType::Int16 => sixteen_bit!(W, i16, |x| x.to_small(i16::MIN as i64, i16::MAX as i64) as i16),
        DataType::Int8 => sixteen_bit!(W, i8, |x| x.to_small(i8::MIN as i64, i8::MAX as i64) as i8),
        DataType::UInt64 => sixteen_bit!(W, u64, |x| x.to_u64()),
        DataType::UInt32 => sixteen_bit!(W, u32, |x| x.to_small(0, u32::MAX as i64) as u32),
        DataType::UInt16 => sixteen_bit!(W, u16, |x| x.to_small(0, u16::MAX as i64) as u16),
        DataType::UInt8 => sixteen_bit!(W, u8, |x| x.to_small(0, u8::MAX as i64) as u8),
        DataType::Bool => sixteen_bit!(W, Bool, |x| Bool::from(!x.is_zero())),
    }
}

/// y = x in y's type.
///
/// # Safety
/// As [`super::super::run`].
pub(super) unsafe fn run(x: &View, y: &View) -> Result<(), String> {
    // SAFETY: the caller's promises, and the types are those of the views.
    unsafe {
        match x.desc.data_type() {
            DataType::Float64 => convert::<f64>(widen::<f64, f64>, x, y),
            DataType::Float32 => convert::<f64>(widen::<f32, f64>, x, y),
            DataType::Float16 => convert::<f64>(widen::<f16, f64>, x, y),
            DataType::BFloat16 => convert::<f64>(widen::<bf16, f64>, x, y),
            DataType::Int64 => convert::<i64>(widen::<i64, i64>, x, y),
            DataType::Int32 => convert::<i64>(widen::<i32, i64>, x, y),
            DataType::Int16 => convert::<i64>(widen::<i16, i64>, x, y),
            DataType::Int8 => convert::<i64>(widen::<i8, i64>, x, y),
            DataType::UInt64 => convert::<u64>(widen::<u64, u64>, x, y),
            DataType::UInt32 => convert::<u64>(widen::<u32, u64>, x, y),
            DataType::UInt16 => convert::<u64>(widen::<u16, u64>, x, y),
            DataType::UInt8 => convert::<u64>(widen::<u8, u64>, x, y),
            DataType::Bool => convert::<i64>(widen::<Bool, i64>, x, y),
        }
    }
}

/// # Safety
/// As [`super::super::run`], and `widen` must read x's type.
unsafe fn convert<W: Wide>(widen: Widen<W>, x: &View, y: &View) -> Result<(), String> {
    require_packed(&[*y])?;
    let sizes = y.sizes();
    let walk = Walk::new(&sizes, &[broadcast_strides(x, &sizes)?, broadcast_strides(y, &sizes)?]);
    let [x_stride, _] = walk.inner_strides();
    let (x_size, y_size) = (x.desc.data_type().size_bytes() as isize, y.desc.data_type().size_bytes() as isize);
    let sixteen_bit = to_sixteen_bit::<W>(y.desc.data_type());
    let (x, y) = (Pointer::<u8>::of(x), Pointer::<u8>::of(y));
    walk.for_each_run(|[x_offset, y_offset], length| {
        let mut wide = [W::default(); BLOCK];
        for start in (0..length).step_by(BLOCK) {
            let count = BLOCK.min(length - start);
            let first = start as isize;
            // SAFETY: the block lies in the run. All of it is read before any of it is written, so x may be y.
            unsafe {
                widen(x.at((x_offset + first * x_stride) * x_size), x_stride, count, &mut wide);
                sixteen_bit(&wide[..count], y.at((y_offset + first) * y_size));
            }
        }
    });
    Ok(())
}
