//! The vector instructions that kernels use: the widest that the processor has, or those that `FOREBAY_ISA` names.

use std::sync::OnceLock;

use InstructionSet::{Avx2, Avx512, Neon, Scalar, Sse2};

use crate::device::DeviceError;

/// The environment variable that selects the instructions.
const VARIABLE: &str = "FOREBAY_ISA";

/// Vector instructions, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InstructionSet {
    /// The instructions that the program was compiled for. Results have the bits of wider instructions: if there is no instruction for a
    /// fused multiply-add, several others compute it.
    Scalar,
    /// The instructions that every x86-64 processor has. They have no fused multiply-add, so products are rounded before they are added, and
    /// results have other bits.
    Sse2,
    /// The vector instructions that every aarch64 processor has.
    Neon,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512.
    Avx512,
}

/// All instruction sets, by name.
const NAMES: [(&str, InstructionSet); 5] =
    [("scalar", Scalar), ("sse2", Sse2), ("neon", Neon), ("avx2", Avx2), ("avx512", Avx512)];

/// Returns the instruction sets of this processor.
fn available() -> Vec<InstructionSet> {
    let mut sets = vec![Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        sets.push(Sse2);
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            sets.push(Avx2);
            if std::arch::is_x86_feature_detected!("avx512f") {
                sets.push(Avx512);
            }
        }
    }
    #[cfg(target_arch = "aarch64")]
    sets.push(Neon);
    sets
}

/// Returns the instructions that the variable's value selects on a processor with these instructions: the widest if it selects none.
fn chosen(value: Option<&str>, available: &[InstructionSet]) -> Result<InstructionSet, String> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(available.iter().copied().max().unwrap_or(Scalar));
    };
    let here: Vec<&str> = NAMES.iter().filter(|(_, set)| available.contains(set)).map(|(name, _)| *name).collect();
    let here = here.join(", ");
    match NAMES.iter().find(|(name, _)| *name == value) {
        Some((_, set)) if available.contains(set) => Ok(*set),
        Some(_) => Err(format!("{VARIABLE}={value}: this processor does not have these instructions (it has {here})")),
        None => Err(format!("{VARIABLE}={value} is not an instruction set; this processor has {here}")),
    }
}

fn setting() -> &'static Result<InstructionSet, String> {
    static SETTING: OnceLock<Result<InstructionSet, String>> = OnceLock::new();
    SETTING.get_or_init(|| {
        let value = std::env::var_os(VARIABLE);
        chosen(value.map(|value| value.to_string_lossy().into_owned()).as_deref(), &available())
    })
}

/// Returns whether kernels may use instructions as wide as these, which is the same for the whole process.
pub(crate) fn has(set: InstructionSet) -> bool {
    setting().as_ref().is_ok_and(|chosen| set <= *chosen)
}

/// Returns whether these are the widest instructions that kernels may use.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_chosen(set: InstructionSet) -> bool {
    setting().as_ref().is_ok_and(|chosen| set == *chosen)
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
        let narrow = [Scalar, Sse2, Avx2];
        let wide = [Scalar, Sse2, Avx2, Avx512];
        assert_eq!(chosen(None, &narrow), Ok(Avx2));
        assert_eq!(chosen(None, &[Scalar, Sse2]), Ok(Sse2));
        assert_eq!(chosen(None, &[Scalar, Neon]), Ok(Neon));
        assert_eq!(chosen(Some(""), &wide), Ok(Avx512));
        assert_eq!(chosen(Some("scalar"), &wide), Ok(Scalar));
        assert_eq!(chosen(Some("sse2"), &wide), Ok(Sse2));
        assert_eq!(chosen(Some("avx512"), &wide), Ok(Avx512));
        let missing = chosen(Some("avx512"), &narrow).unwrap_err();
        assert!(missing.contains("scalar, sse2, avx2") && missing.contains("does not have"), "{missing}");
        let missing = chosen(Some("avx2"), &[Scalar, Neon]).unwrap_err();
        assert!(missing.contains("scalar, neon") && missing.contains("does not have"), "{missing}");
        let unknown = chosen(Some("mmx"), &[Scalar]).unwrap_err();
        assert!(unknown.contains("FOREBAY_ISA=mmx") && unknown.contains("scalar"), "{unknown}");
    }
}
