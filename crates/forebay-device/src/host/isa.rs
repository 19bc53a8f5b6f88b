//! The vector instructions that kernels use: the widest that the processor has, or those that `FOREBAY_ISA` names.

use std::sync::OnceLock;

use crate::device::DeviceError;

/// The environment variable that selects the instructions.
const VARIABLE: &str = "FOREBAY_ISA";

/// Vector instructions, from the narrowest to the widest.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InstructionSet {
    /// The instructions that the program was compiled for.
    Scalar,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512.
    Avx512,
}

/// All instruction sets, by name.
const NAMES: [(&str, InstructionSet); 3] =
    [("scalar", InstructionSet::Scalar), ("avx2", InstructionSet::Avx2), ("avx512", InstructionSet::Avx512)];

/// Returns the widest instructions of this processor.
fn widest() -> InstructionSet {
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx2 = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
        if has_avx2 && std::arch::is_x86_feature_detected!("avx512f") {
            return InstructionSet::Avx512;
        }
        if has_avx2 {
            return InstructionSet::Avx2;
        }
    }
    InstructionSet::Scalar
}

/// Returns the instructions that the variable's value selects on a processor with these instructions.
fn chosen(value: Option<&str>, widest: InstructionSet) -> Result<InstructionSet, String> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(widest) };
    let here = NAMES.iter().filter(|(_, set)| *set <= widest).map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    match NAMES.iter().find(|(name, _)| *name == value) {
        Some(&(_, set)) if set <= widest => Ok(set),
        Some(_) => Err(format!("{VARIABLE}={value}: this processor does not have these instructions (it has {here})")),
        None => Err(format!("{VARIABLE}={value} is not an instruction set; this processor has {here}")),
    }
}

fn setting() -> &'static Result<InstructionSet, String> {
    static SETTING: OnceLock<Result<InstructionSet, String>> = OnceLock::new();
    SETTING.get_or_init(|| {
        let value = std::env::var_os(VARIABLE);
        chosen(value.map(|value| value.to_string_lossy().into_owned()).as_deref(), widest())
    })
}

/// Returns whether kernels may use these instructions, which is the same for the whole process.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) fn has(set: InstructionSet) -> bool {
    setting().as_ref().is_ok_and(|chosen| set <= *chosen)
}

/// Checks that the variable names instructions of this processor.
///
/// # Errors
/// Returns an error that says what it names and what is available.
pub(super) fn check() -> Result<(), DeviceError> {
    setting().as_ref().map(|_| ()).map_err(|reason| DeviceError::Setting { reason: reason.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_instructions_that_there_are() {
        assert_eq!(chosen(None, InstructionSet::Avx2), Ok(InstructionSet::Avx2));
        assert_eq!(chosen(Some(""), InstructionSet::Avx512), Ok(InstructionSet::Avx512));
        assert_eq!(chosen(Some("scalar"), InstructionSet::Avx512), Ok(InstructionSet::Scalar));
        assert_eq!(chosen(Some("avx512"), InstructionSet::Avx512), Ok(InstructionSet::Avx512));
        let missing = chosen(Some("avx512"), InstructionSet::Avx2).unwrap_err();
        assert!(missing.contains("scalar, avx2") && missing.contains("does not have"), "{missing}");
        let unknown = chosen(Some("mmx"), InstructionSet::Scalar).unwrap_err();
        assert!(unknown.contains("FOREBAY_ISA=mmx") && unknown.contains("scalar"), "{unknown}");
    }
}
