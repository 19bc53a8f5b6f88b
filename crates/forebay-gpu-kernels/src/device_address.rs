//! Operands larger than a binding: those that cannot be processed in [`super::parts`] are accessed through their addresses.
//!
//! Every shader has a device-address variant, compiled from the same source (`kernels/operands.slang`): the arithmetic and its order are
//! the same, and so are the bits of the results. Every device that can be used here has addresses (Vulkan 1.3 requires them), whatever its
//! limits on bindings, and they cost nothing if bindings hold all operands. Parts are preferred nevertheless: the validation layer sees
//! what is bound, but not what is accessed through an address.

use forebay_base::TensorDesc;

use super::operands::COUNT_MAX;
use super::{Dispatch, Operand, Target};

/// Makes a dispatch access its operands through their addresses if a binding cannot hold one of them.
///
/// # Errors
/// If an operand has more words than shaders can count.
pub(super) fn device_address(
    dispatch: &mut Dispatch,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<(), String> {
    let mut most_bytes = 0;
    for bound in &dispatch.bindings {
        let desc = match bound.operand {
            Operand::Read(number) => reads.get(number),
            Operand::Write(number) => writes.get(number),
            Operand::Workspace | Operand::Between | Operand::Counter | Operand::Fault => None,
        };
        let Some(desc) = desc else { continue };
        let rest = desc.total_size_bytes().saturating_sub(bound.offset_bytes);
        let size_bytes = bound.size_bytes.unwrap_or(rest);
        if size_bytes / 4 > COUNT_MAX {
            return Err(format!(
                "{size_bytes} bytes of {desc} are needed at once, but a shader supports at most {COUNT_MAX} words"
            ));
        }
        most_bytes = most_bytes.max(size_bytes);
    }
    if let Some(by_address) = dispatch.shader.by_address.filter(|_| most_bytes > gpu.binding_bytes_max) {
        dispatch.shader = by_address;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_base::kernel::ReduceOp;
    use forebay_base::{DataType, Kernel};

    use super::super::{Lowered, lower};
    use super::*;

    fn packed(sizes: &[u64]) -> TensorDesc {
        TensorDesc::packed(DataType::Float32, sizes).unwrap()
    }

    fn sum_of_rows(rows: u64, columns: u64, gpu: &Target) -> Result<Lowered, String> {
        let kernel = Kernel::Reduce { op: ReduceOp::Sum, axes: vec![1] };
        lower(&kernel, &[packed(&[rows, columns])], &[packed(&[rows])], gpu).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_are_for_operands_that_bindings_do_not_hold() {
        for (operand_bytes, binding_bytes_max) in [(4096, 4096), (4096, 4095), (4096, 0), (1 << 30, 128 << 20)] {
            let columns = operand_bytes / 4 / 16;
            let gpu = Target { binding_bytes_max, ..Target::LEAST };
            let [sum, product] = [sum_of_rows(16, columns, &gpu).unwrap(), {
                let kernel = Kernel::product(false, true);
                let (a, b, y) = (packed(&[1, columns]), packed(&[16, columns]), packed(&[1, 16]));
                lower(&kernel, &[a, b], &[y], &gpu).unwrap()
            }];
            for dispatch in sum.dispatches.iter().chain(&product.dispatches) {
                assert_eq!(
                    dispatch.shader.is_by_address(),
                    operand_bytes > binding_bytes_max,
                    "{operand_bytes} {dispatch:?}"
                );
                assert!(dispatch.bindings.iter().all(|bound| bound.size_bytes.is_none()), "nothing is cut");
            }
        }
    }

    #[test]
    fn what_shaders_cannot_count_is_refused_with_numbers() {
        let error = sum_of_rows(1 << 16, 1 << 16, &Target::LEAST).unwrap_err();
        assert!(error.contains("4294967296 elements"), "{error}");
        let error = sum_of_rows(16, 1 << 20, &Target { workspace_bytes_max: 1000, ..Target::LEAST }).unwrap_err();
        assert!(error.contains("65536 bytes of workspace") && error.contains("1000"), "{error}");
        let kernel = Kernel::Reduce { op: ReduceOp::Max, axes: vec![1] };
        let (x, y) = ([1 << 15, 1 << 16], [1 << 15]);
        let [x, y] = [&x[..], &y].map(|sizes| TensorDesc::packed(DataType::Float64, sizes).unwrap());
        let error = lower(&kernel, &[x], &[y], &Target::LEAST).unwrap_err().to_string();
        assert!(error.contains("17179869184 bytes"), "{error}");
    }
}
