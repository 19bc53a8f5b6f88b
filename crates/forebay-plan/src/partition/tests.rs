use forebay_base::kernel::ReduceOp;

use super::*;
use crate::check::check_parts;

/// A launch of packed float32 operands, each a buffer of its own by its number.
fn launch(kernel: Kernel, reads: &[(u32, &[u64])], writes: &[(u32, &[u64])]) -> ProgramLaunch {
    let operand = |&(buffer, sizes): &(u32, &[u64])| {
        let desc = TensorDesc::packed(DataType::Float32, sizes).unwrap();
        Operand { buffer: BufferId(buffer), offset_bytes: 0, desc }
    };
    let (reads, writes) = (reads.iter().map(operand).collect(), writes.iter().map(operand).collect());
    ProgramLaunch { name: kernel.name().to_owned(), kernel, reads, writes, workspace_bytes: 0 }
}

/// Other sums of what a loss reads are not the loss's: its gradient in parts needs the number of all its positions.
#[test]
fn the_gradient_of_a_loss_reads_the_sums_of_that_loss() {
    let (rows, one): (&[u64], &[u64]) = (&[4096, 64], &[1]);
    let launches = vec![
        launch(Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0] }, &[(0, rows)], &[(2, &[64])]),
        launch(Kernel::MeanSquaredError, &[(0, rows), (1, rows)], &[(3, one)]),
        launch(Kernel::MeanSquaredErrorGradient, &[(3, one), (0, rows), (1, rows)], &[(4, rows)]),
    ];
    let buffer = |(number, size_bytes)| Buffer { name: format!("b{number}"), size_bytes, role: Role::Temporary };
    let sizes_bytes = [4096 * 64 * 4, 4096 * 64 * 4, 64 * 4, 4, 4096 * 64 * 4];
    let buffers = sizes_bytes.into_iter().enumerate().map(buffer).collect();
    let program = Program { buffers, update_start: launches.len(), launches, ..Program::default() };
    let partition = partition(&program, 256 << 10).unwrap();
    let sums_of = |wanted: Summing| {
        let is_wanted = |part: &&ProgramLaunch| matches!(part.kernel, Kernel::Sums { of, .. } if of == wanted);
        partition.program.launches.iter().find(is_wanted).map(|part| part.writes[0].clone())
    };
    let sums = sums_of(Summing::SquaredError).unwrap();
    let is_gradient = |part: &&ProgramLaunch| part.kernel == Kernel::MeanSquaredErrorGradient;
    let gradients: Vec<_> = partition.program.launches.iter().filter(is_gradient).collect();
    assert!(gradients.len() > 1 && gradients.iter().all(|part| part.reads.last() == Some(&sums)));
    let reductions = partition.sources.iter().filter(|&&source| source == 0).count();
    assert!(reductions > 2, "the other sum is in parts, too");
    check_parts(&program, &partition).unwrap();
}
