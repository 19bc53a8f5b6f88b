use forebay_base::Kernel;
use forebay_base::kernel::ReduceOp;

use super::*;
use crate::check::check_parts;

/// Returns a launch with packed float32 operands, each in a separate buffer with the given number.
fn launch(kernel: Kernel, reads: &[(u32, &[u64])], writes: &[(u32, &[u64])]) -> ProgramLaunch {
    let operand = |&(buffer, sizes): &(u32, &[u64])| {
        let desc = TensorDesc::packed(DataType::Float32, sizes).unwrap();
        Operand { buffer: BufferId(buffer), offset_bytes: 0, desc }
    };
    let (reads, writes) = (reads.iter().map(operand).collect(), writes.iter().map(operand).collect());
    ProgramLaunch::new(kernel.name(), kernel, reads, writes)
}

/// Other sums of what a loss reads are not the loss's sums: its gradient in parts needs the number of all positions of the loss.
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

/// A part's random numbers are those that the whole launch has in its place, whatever the sizes of what it reads.
#[test]
fn parts_of_random_numbers_begin_where_their_rows_do() {
    for (sizes, row_elements) in [(&[64, 4096][..], 4096), (&[1, 64, 4096], 4096), (&[1, 1, 64, 32, 128], 4096)] {
        let mut whole = launch(Kernel::Random { node: 2, first: 0 }, &[(0, &[2])], &[(1, sizes)]);
        whole.reads[0].desc = TensorDesc::packed(DataType::Int64, &[2]).unwrap();
        let buffer = |name: &str, size_bytes| Buffer { name: name.to_owned(), size_bytes, role: Role::Temporary };
        let buffers = vec![buffer("step", 16), buffer("y", 64 * 4096 * 4)];
        let program = Program { buffers, launches: vec![whole], update_start: 1, ..Program::default() };
        let partition = partition(&program, 256 << 10).unwrap();
        let parts = &partition.program.launches;
        assert!(parts.len() > 1, "{sizes:?}");
        for part in parts {
            let elements = part.writes[0].offset_bytes / 4;
            assert!(elements.is_multiple_of(row_elements));
            assert_eq!(part.kernel, Kernel::Random { node: 2, first: elements }, "{sizes:?}");
        }
        check_parts(&program, &partition).unwrap();
    }
}

/// Checks the sums of four images as parts that are nodes of their tree, added in some order. Takes the images of each part, and the pairs
/// of sums to add; sums are numbered like parts, and the sum of two has the number of the first.
fn sums_of_images(parts: &[(u64, u64)], additions: &[(u32, u32)]) -> Result<(), String> {
    let (x, y): (&[u64], &[u64]) = (&[4, 3, 32, 32], &[3]);
    let whole = launch(Kernel::Reduce { op: ReduceOp::Sum, axes: vec![0, 2, 3] }, &[(0, x)], &[(1, y)]);
    let buffer = |name: &str, size_bytes| Buffer { name: name.to_owned(), size_bytes, role: Role::Temporary };
    let buffers = vec![buffer("x", 4 * 3 * 1024 * 4), buffer("y", 12)];
    let program = Program { buffers, update_start: 1, launches: vec![whole.clone()], ..Program::default() };
    let of = Summing::Channels;
    let table = TensorDesc::packed(DataType::Float64, &[1, 3]).unwrap();
    let sums = |number: u32| Operand { buffer: BufferId(2 + number), offset_bytes: 0, desc: table.clone() };
    let mut launches = Vec::new();
    for (number, &(start, end)) in (0..).zip(parts) {
        let read = rows::rows_of(&whole.reads[0], 0, Rows { start, end }).unwrap();
        let writes = vec![sums(number)];
        launches.push(ProgramLaunch { kernel: Kernel::Sums { of }, reads: vec![read], writes, ..whole.clone() });
    }
    for &(earlier, later) in additions {
        let reads = vec![sums(earlier), sums(later)];
        launches.push(ProgramLaunch {
            kernel: Kernel::AddSums { of },
            reads,
            writes: vec![sums(earlier)],
            ..whole.clone()
        });
    }
    launches.push(ProgramLaunch { kernel: Kernel::FromSums { of }, reads: vec![sums(0)], ..whole });
    let mut buffers = program.buffers.clone();
    buffers.extend(parts.iter().map(|_| buffer("sums", 24)));
    let sources = vec![0; launches.len()];
    let parts = Program { buffers, update_start: launches.len(), launches, ..Program::default() };
    check_parts(&program, &Partition { program: parts, sources, earlier: None }).map_err(|error| error.to_string())
}

#[test]
fn sums_of_parts_are_added_in_the_order_of_the_tree() {
    let each = [(0, 1), (1, 2), (2, 3), (3, 4)];
    sums_of_images(&each, &[(0, 1), (2, 3), (0, 2)]).unwrap();
    sums_of_images(&each, &[(2, 3), (0, 1), (0, 2)]).unwrap();
    sums_of_images(&[(0, 2), (2, 3), (3, 4)], &[(1, 2), (0, 1)]).unwrap();
    sums_of_images(&[(0, 2), (2, 4)], &[(0, 1)]).unwrap();
    let objects = |parts: &[(u64, u64)], additions: &[(u32, u32)], reason: &str| {
        let error = sums_of_images(parts, additions).unwrap_err();
        assert!(error.contains(reason), "{parts:?}, {additions:?}: {error}");
    };
    objects(&each, &[(0, 1), (0, 2), (0, 3)], "not the halves of a node");
    objects(&each, &[(2, 3), (1, 2), (0, 1)], "not the halves of a node");
    objects(&each, &[(0, 1), (3, 2), (0, 3)], "not the halves of a node");
    objects(&each, &[(0, 1), (2, 3)], "not the sum of all parts");
    objects(&each, &[(0, 1), (2, 3), (0, 2), (0, 2)], "do not exist");
    objects(&[(0, 1), (1, 3), (3, 4)], &[(1, 2), (0, 1)], "is not a node");
    objects(&[(0, 3), (3, 4)], &[(0, 1)], "is not a node");
    objects(&[(0, 2), (2, 3)], &[(0, 1)], "not the halves of a node");
    objects(&each, &[], "is not the same operand");
}
