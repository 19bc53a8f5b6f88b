//! When an output is as expected: it has the same type and sizes; integers and booleans are equal; floating-point numbers differ by at most
//! 1e-5 plus 1e-3 of the expected number, or 2^-6 of it for bfloat16, as in ONNX's own runner.

use forebay::{Tensor, Value};
use forebay_base::DataType;

/// The absolute tolerance between two numbers.
const ABSOLUTE: f64 = 1e-5;
/// The tolerance between two numbers, relative to the expected one.
const RELATIVE: f64 = 1e-3;
/// The relative tolerance of bfloat16: two units in the last place.
const RELATIVE_BFLOAT16: f64 = 1.0 / 64.0;

/// Returns what is wrong with an output; `None` if it is as expected.
pub fn difference(found: &Value, expected: &Value) -> Option<String> {
    match (found, expected) {
        (Value::Tensor(found), Value::Tensor(expected)) => of_tensors(found, expected),
        (Value::Sequence(found), Value::Sequence(expected)) if found.len() == expected.len() => {
            let pairs = found.iter().zip(expected).enumerate();
            let mut wrong = pairs.filter_map(|(i, (found, expected))| Some((i, of_tensors(found, expected)?)));
            wrong.next().map(|(i, difference)| format!("element {i} {difference}"))
        }
        (Value::Absent, Value::Absent) => None,
        _ => Some(format!("is {found}, not {expected}")),
    }
}

/// Returns what is wrong with a tensor; `None` if it is as expected.
fn of_tensors(found: &Tensor, expected: &Tensor) -> Option<String> {
    let (found_ty, expected_ty) = (found.ty(), expected.ty());
    if found_ty != expected_ty {
        return Some(format!("is {found_ty}, not {expected_ty}"));
    }
    if !expected.data_type().is_float() {
        let size = expected.data_type().size_bytes() as usize;
        let pairs = found.bytes().chunks(size).zip(expected.bytes().chunks(size));
        let wrong = pairs.clone().filter(|(found, expected)| found != expected).count();
        let first = pairs.clone().position(|(found, expected)| found != expected)?;
        return Some(format!("{wrong} of {} elements differ, the first at {first}", expected.count()));
    }
    let (found, wanted) = (found.to_f64()?, expected.to_f64()?);
    let relative = if expected.data_type() == DataType::BFloat16 { RELATIVE_BFLOAT16 } else { RELATIVE };
    let fits = |(&found, &expected): (&f64, &f64)| {
        (found.is_nan() && expected.is_nan())
            || found == expected
            || (found - expected).abs() <= ABSOLUTE + relative * expected.abs()
    };
    let wrong = found.iter().zip(&wanted).filter(|&pair| !fits(pair)).count();
    let first = found.iter().zip(&wanted).position(|pair| !fits(pair))?;
    Some(format!(
        "{wrong} of {} elements differ, the first at {first}: {} instead of {}",
        wanted.len(),
        found[first],
        wanted[first]
    ))
}
