//! Conversion between data types.

use forebay_base::narrow::{self, Narrowing};
use forebay_base::{DataType, rounded_to_odd};
use half::{bf16, f16};

use super::super::View;
use super::super::block::map1;
use super::super::buffer::{BLOCK, Buffer};
use super::super::element::{Bool, Element};
use super::super::parallel::{Pointer, Walk, broadcast_strides, require_packed};

/// The widest types. Each element type fits exactly into one of them, so a conversion widens, then narrows, and rounds once; 23 x 23 direct
/// conversions would only be more code.
trait Wide: Copy + Default + Send + Sync {
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn to_u64(self) -> u64;
    fn to_f32(self) -> f32;
    fn is_zero(self) -> bool;
    /// Converts to an element of a narrow type.
    fn to_narrow(self, data_type: DataType, narrowing: Narrowing) -> u8;
    /// Converts to an integer of at most 32 bits: real numbers saturate, integers wrap.
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
    fn to_narrow(self, data_type: DataType, narrowing: Narrowing) -> u8 {
        narrow::encode(data_type, self, narrowing)
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
            fn to_narrow(self, data_type: DataType, narrowing: Narrowing) -> u8 {
                match data_type.is_float() {
                    true => narrow::encode(data_type, self as f64, narrowing),
                    false => narrow::encode_integer(data_type, self as i64),
                }
            }
            fn to_small(self, _low: i64, _high: i64) -> i64 {
                self as i64
            }
        }
    )*};
}

wide_integer!(i64 u64);

/// Reads a run of up to [`BLOCK`] elements with a stride.
type Widen<'a, W> = &'a (dyn Fn(*const u8, isize, usize, &mut [W; BLOCK]) + Sync);

/// Writes a run of elements. For a narrow type, the last two arguments give the type and the conversion.
type Store<W> = unsafe fn(&[W], *mut u8, DataType, Narrowing);

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

macro_rules! store {
    ($wide:ident, $type:ty, |$x:ident $(, $data_type:ident, $narrowing:ident)?| $convert:expr) => {{
        /// # Safety
        /// The elements must be writable.
        unsafe fn store<W: Wide>(wide: &[W], y: *mut u8, _data_type: DataType, _narrowing: Narrowing) {
            $(let ($data_type, $narrowing) = (_data_type, _narrowing);)?
            for (i, &$x) in wide.iter().enumerate() {
                // SAFETY: writable by the caller's promise.
                unsafe { *y.cast::<$type>().add(i) = $convert };
            }
        }
        store::<$wide>
    }};
}

fn store<W: Wide>(data_type: DataType) -> Store<W> {
    match data_type {
        DataType::Float64 => store!(W, f64, |x| x.to_f64()),
        DataType::Float32 => store!(W, f32, |x| x.to_f32()),
        DataType::Float16 => store!(W, f16, |x| f16::from_f32(rounded_to_odd(x.to_f64()))),
        DataType::BFloat16 => store!(W, bf16, |x| bf16::from_f32(rounded_to_odd(x.to_f64()))),
        DataType::Int64 => store!(W, i64, |x| x.to_i64()),
        DataType::Int32 => store!(W, i32, |x| x.to_small(i32::MIN as i64, i32::MAX as i64) as i32),
        DataType::Int16 => store!(W, i16, |x| x.to_small(i16::MIN as i64, i16::MAX as i64) as i16),
        DataType::Int8 => store!(W, i8, |x| x.to_small(i8::MIN as i64, i8::MAX as i64) as i8),
        DataType::UInt64 => store!(W, u64, |x| x.to_u64()),
        DataType::UInt32 => store!(W, u32, |x| x.to_small(0, u32::MAX as i64) as u32),
        DataType::UInt16 => store!(W, u16, |x| x.to_small(0, u16::MAX as i64) as u16),
        DataType::UInt8 => store!(W, u8, |x| x.to_small(0, u8::MAX as i64) as u8),
        DataType::Bool => store!(W, Bool, |x| Bool::from(!x.is_zero())),
        DataType::Float8E4M3FN
        | DataType::Float8E4M3FNUZ
        | DataType::Float8E5M2
        | DataType::Float8E5M2FNUZ
        | DataType::Float8E8M0
        | DataType::Float4E2M1
        | DataType::Int4
        | DataType::UInt4
        | DataType::Int2
        | DataType::UInt2 => store!(W, u8, |x, data_type, narrowing| x.to_narrow(data_type, narrowing)),
    }
}

/// y = x, converted to the type of y.
///
/// # Safety
/// As for [`super::super::run`].
pub(super) unsafe fn run(narrowing: Narrowing, x: &View, y: &View) -> Result<(), String> {
    if [x, y].iter().all(|view| view.desc.data_type().computed_in() == DataType::Float32) {
        // SAFETY: the caller's promises. Float32 represents all 16-bit numbers, so nothing is rounded twice.
        return unsafe { map1(x, y, |x: f32| x) };
    }
    macro_rules! convert {
        ($type:ty, $wide:ty) => {{
            let widen = |x: *const u8, stride, count, wide: &mut _| {
                // SAFETY: `convert` calls it with elements of x, whose type it is.
                unsafe { widen::<$type, $wide>(x, stride, count, wide) }
            };
            // SAFETY: the caller's promises, and the type is that of the view.
            unsafe { convert::<$wide>(narrowing, &widen, x, y) }
        }};
    }
    match x.desc.data_type() {
        DataType::Float64 => convert!(f64, f64),
        DataType::Float32 => convert!(f32, f64),
        DataType::Float16 => convert!(f16, f64),
        DataType::BFloat16 => convert!(bf16, f64),
        DataType::Int64 => convert!(i64, i64),
        DataType::Int32 => convert!(i32, i64),
        DataType::Int16 => convert!(i16, i64),
        DataType::Int8 | DataType::Int4 | DataType::Int2 => convert!(i8, i64),
        DataType::UInt64 => convert!(u64, u64),
        DataType::UInt32 => convert!(u32, u64),
        DataType::UInt16 => convert!(u16, u64),
        DataType::UInt8 | DataType::UInt4 | DataType::UInt2 => convert!(u8, u64),
        DataType::Bool => convert!(Bool, i64),
        data_type @ (DataType::Float8E4M3FN
        | DataType::Float8E4M3FNUZ
        | DataType::Float8E5M2
        | DataType::Float8E5M2FNUZ
        | DataType::Float8E8M0
        | DataType::Float4E2M1) => {
            let mut numbers = [0.0; 256];
            (0..=u8::MAX).zip(&mut numbers).for_each(|(code, number)| *number = narrow::decode(data_type, code));
            let widen = |x: *const u8, stride, count, wide: &mut [f64; BLOCK]| {
                let mut buffer = Buffer::<u8>::new();
                // SAFETY: `convert` calls it with elements of x, which are bytes; nothing is written while the slice lives.
                let codes = unsafe { buffer.load(x, stride, count, std::ptr::null::<u8>()) };
                for (wide, &code) in wide.iter_mut().zip(codes) {
                    *wide = numbers[usize::from(code)];
                }
            };
            // SAFETY: the caller's promises, and the type is that of the view.
            unsafe { convert::<f64>(narrowing, &widen, x, y) }
        }
    }
}

/// # Safety
/// As for [`super::super::run`], and `widen` must read x's type.
unsafe fn convert<W: Wide>(narrowing: Narrowing, widen: Widen<W>, x: &View, y: &View) -> Result<(), String> {
    require_packed(&[*y])?;
    let sizes = y.sizes();
    let walk = Walk::new(&sizes, &[broadcast_strides(x, &sizes)?, broadcast_strides(y, &sizes)?]);
    let [x_stride, _] = walk.inner_strides();
    let data_type = y.desc.data_type();
    let (x_size, y_size) = (x.desc.data_type().size_bytes() as isize, data_type.size_bytes() as isize);
    let store = store::<W>(data_type);
    let (x, y) = (Pointer::<u8>::of(x), Pointer::<u8>::of(y));
    walk.for_each_run(|[x_offset, y_offset], length| {
        let mut wide = [W::default(); BLOCK];
        for start in (0..length).step_by(BLOCK) {
            let count = BLOCK.min(length - start);
            let first = start as isize;
            // SAFETY: the block lies in the run. All of it is read before any of it is written, so x may be y.
            unsafe {
                widen(x.at((x_offset + first * x_stride) * x_size), x_stride, count, &mut wide);
                store(&wide[..count], y.at((y_offset + first) * y_size), data_type, narrowing);
            }
        }
    });
    Ok(())
}
