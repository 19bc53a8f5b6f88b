//! Matrix products: `kernels/matmul.slang`.

use forebay_base::kernel::{PRODUCT_TERMS, ProductPart};
use forebay_base::{Kernel, SumTree, TensorDesc};

use super::operand_type::{Builds, CooperativeBuilds, OperandType};
use super::operands::broadcast_strides;
use super::shaders::{
    MATMUL_32X32, MATMUL_32X32_BF16, MATMUL_32X32_F16, MATMUL_64X64, MATMUL_64X64_BF16, MATMUL_64X64_BF16_COOPERATIVE,
    MATMUL_64X64_BF16_COOPERATIVE_VECTORIZED, MATMUL_64X64_F16, MATMUL_64X64_F16_COOPERATIVE,
    MATMUL_64X64_F16_COOPERATIVE_VECTORIZED, MATMUL_128X128, MATMUL_128X128_BF16, MATMUL_128X128_BF16_COOPERATIVE,
    MATMUL_128X128_BF16_COOPERATIVE_VECTORIZED, MATMUL_128X128_F16, MATMUL_128X128_F16_COOPERATIVE,
    MATMUL_128X128_F16_COOPERATIVE_VECTORIZED, MATMUL_128X128_VECTORIZED,
};
use super::target::{GROUPS_MIN, LARGE_TILE_BYTES};
use super::{Dispatch, Lowered, Operand, Target, Unsupported, groups, unsupported};

/// Shaders with tiles of 32, 64 and 128 rows and columns.
const SMALL: Builds = [&MATMUL_32X32, &MATMUL_32X32_F16, &MATMUL_32X32_BF16];
const MEDIUM: Builds = [&MATMUL_64X64, &MATMUL_64X64_F16, &MATMUL_64X64_BF16];
/// For rows that can begin anywhere, and for rows that begin at multiples of 16 bytes, which are loaded 16 bytes at a time.
const LARGE: [Builds; 2] = [
    [&MATMUL_128X128, &MATMUL_128X128_F16, &MATMUL_128X128_BF16],
    [&MATMUL_128X128_VECTORIZED, &MATMUL_128X128_F16, &MATMUL_128X128_BF16],
];
const MEDIUM_COOPERATIVE: [CooperativeBuilds; 2] = [
    [&MATMUL_64X64_F16_COOPERATIVE, &MATMUL_64X64_BF16_COOPERATIVE],
    [&MATMUL_64X64_F16_COOPERATIVE_VECTORIZED, &MATMUL_64X64_BF16_COOPERATIVE_VECTORIZED],
];
const LARGE_COOPERATIVE: [CooperativeBuilds; 2] = [
    [&MATMUL_128X128_F16_COOPERATIVE, &MATMUL_128X128_BF16_COOPERATIVE],
    [&MATMUL_128X128_F16_COOPERATIVE_VECTORIZED, &MATMUL_128X128_BF16_COOPERATIVE_VECTORIZED],
];
/// Vectorized shaders require rows to begin at multiples of this number of elements: 16 bytes of the smallest type.
const VECTOR_ELEMENTS: u64 = 8;
/// The maximum number of levels of the sum tree above a product's blocks (`LEVELS_MAX` in `kernels/matmul.slang`): for the largest tiles,
/// for cooperative-matrix tiles of 64 rows and columns, and for all others.
const LARGE_LEVELS: u32 = 8;
const COOPERATIVE_LEVELS: u32 = 16;
const LEVELS: u32 = 24;
/// A block consists of whole groups of the terms that are in shared memory at once.
const _: () = assert!(PRODUCT_TERMS.is_multiple_of(32));

/// The sizes of one product, and the strides of the rows and columns of the summand's matrix.
struct Product {
    rows: u64,
    columns: u64,
    depth: u64,
    /// The dimensions of the batch, the last one first: size, and strides of a, b and c.
    outer: Vec<[u64; 4]>,
    summand_strides: [u64; 2],
    /// The distances between rows of a, b and y, as they are given.
    pitches: [u64; 3],
}

/// Lowers a kernel of this family.
pub(super) fn lower(
    kernel: &Kernel,
    reads: &[TensorDesc],
    writes: &[TensorDesc],
    gpu: &Target,
) -> Result<Lowered, Unsupported> {
    let refuse = |reason: String| unsupported(kernel, reason);
    let &Kernel::MatMul { transpose_a, transpose_b, alpha, beta, activation, part } = kernel else {
        return Err(unsupported(kernel, "not a matrix product"));
    };
    // The columns of a result that are there already are read as it is written.
    let continued = kernel.facts().continues;
    let own_reads = reads.iter().enumerate().filter(|(number, _)| Some(*number) != continued);
    let own_reads: Vec<TensorDesc> = own_reads.map(|(_, desc)| desc.clone()).collect();
    let (operand_type, stays_wide) = OperandType::with_sums(&own_reads, writes).map_err(refuse)?;
    let (a, b, y) = (&reads[0], &reads[1], &writes[0]);
    let first_column = match part {
        ProductPart::Whole => None,
        ProductPart::Columns { first } => Some(first),
    };
    // The operand that is added to the product. If only some columns are computed, y is bound only as the result.
    let summand = 2 + usize::from(part.reads_result());
    let product =
        Product::new((a, transpose_a), (b, transpose_b), reads.get(summand), y, first_column).map_err(refuse)?;
    let batches = product.outer.iter().map(|dimension| dimension[0]).product::<u64>();
    let tiles = |side: u64| [product.rows.div_ceil(side), product.columns.div_ceil(side)];
    let count = |side: u64| batches * tiles(side).iter().product::<u64>();
    let blocks = product.depth.div_ceil(PRODUCT_TERMS).max(1);
    let fits = |levels: u32| SumTree::flat(blocks).depth() <= levels;
    let is_large = count(128) >= GROUPS_MIN && gpu.shared_bytes >= LARGE_TILE_BYTES && fits(LARGE_LEVELS);
    let vectorized = usize::from(product.is_vectorizable());
    let (shader, side) = match operand_type.cooperative(gpu) {
        Some(number) if is_large => (LARGE_COOPERATIVE[vectorized][number], 128),
        Some(number) if fits(COOPERATIVE_LEVELS) => (MEDIUM_COOPERATIVE[vectorized][number], 64),
        // With more blocks than 32 bits can count, operands are too large for the device.
        _ if !fits(LEVELS) => return Err(refuse(format!("sums of {} terms are too long", product.depth))),
        _ if is_large => (operand_type.build(LARGE[vectorized]), 128),
        _ if count(64) >= GROUPS_MIN && product.rows.min(product.columns) > 32 => (operand_type.build(MEDIUM), 64),
        _ => (operand_type.build(SMALL), 32),
    };
    let groups = groups(count(side), gpu);
    let [row_tiles, column_tiles] = tiles(side).map(|tiles| tiles as u32);
    let [row_stride, column_stride] = product.summand_strides.map(|stride| stride as u32);
    let [low, high] = activation.limits().map(f32::to_bits);
    let mut parameters = vec![
        groups[0],
        u32::from(reads.len() > summand),
        low,
        high,
        row_tiles,
        column_tiles,
        batches as u32,
        product.rows as u32,
        product.columns as u32,
        product.depth as u32,
        row_stride,
        column_stride,
        alpha.to_bits(),
        beta.to_bits(),
    ];
    parameters.extend(product.pitches.map(|pitch| pitch as u32));
    parameters.extend([first_column.unwrap_or(0) as u32, PRODUCT_TERMS as u32, product.outer.len() as u32]);
    parameters.extend(product.outer.iter().flatten().map(|&word| word as u32));
    let summand = if reads.len() > summand { Operand::Read(summand) } else { Operand::Read(0) };
    // 16-bit builds have the result bound twice, once for each type in which it can be stored.
    let count = if operand_type == OperandType::Float32 { 4 } else { 5 };
    let operands = [Operand::Read(0), Operand::Read(1), summand, Operand::Write(0), Operand::Write(0)];
    Ok(Dispatch {
        shader,
        constants: [transpose_a, transpose_b, blocks > 1, stays_wide].map(u32::from)[..count - 1].to_vec(),
        bindings: operands[..count].iter().map(|&operand| operand.into()).collect(),
        parameters,
        groups,
    }
    .into())
}

impl Product {
    fn new(
        (a, transpose_a): (&TensorDesc, bool),
        (b, transpose_b): (&TensorDesc, bool),
        c: Option<&TensorDesc>,
        y: &TensorDesc,
        first_column: Option<u64>,
    ) -> Result<Product, String> {
        let matrix = |desc: &TensorDesc, transpose: bool| match (desc.sizes(), transpose) {
            ([size], false) => [1, *size],
            ([size], true) => [*size, 1],
            ([.., rows, columns], false) => [*rows, *columns],
            ([.., rows, columns], true) => [*columns, *rows],
            ([], _) => [0, 0],
        };
        let ([rows, depth], [inner, columns]) = (matrix(a, transpose_a), matrix(b, transpose_b));
        let [y_rows, y_columns] = matrix(y, false);
        let columns_fit = first_column.map_or(columns == y_columns, |first| first + columns <= y_columns);
        if depth != inner || y_rows != rows || !columns_fit {
            return Err(format!("the sizes of {a}, {b} and {y} do not match"));
        }
        // The part of y that is computed.
        let mut sizes = y.sizes().to_vec();
        if let Some(last) = sizes.last_mut() {
            *last = columns;
        }
        let sizes = &sizes[..];
        let outer = sizes.len().saturating_sub(2);
        let batch = |desc: &TensorDesc| {
            let own = desc.sizes().len().saturating_sub(2);
            broadcast_strides(&desc.sizes()[..own], &desc.effective_strides()[..own], &sizes[..outer])
        };
        let (a_strides, b_strides) = (batch(a)?, batch(b)?);
        let c_strides = match c {
            Some(c) => broadcast_strides(c.sizes(), &c.effective_strides(), sizes)?,
            None => vec![0; sizes.len()],
        };
        let row_stride = if sizes.len() > 1 { c_strides[outer] } else { 0 };
        let dimensions = (0..outer).rev();
        Ok(Product {
            rows,
            columns,
            depth,
            outer: dimensions.map(|d| [sizes[d], a_strides[d], b_strides[d], c_strides[d]]).collect(),
            summand_strides: [row_stride, c_strides[sizes.len() - 1]],
            pitches: [row_pitch(a)?, row_pitch(b)?, row_pitch(y)?],
        })
    }

    /// Returns whether the rows of both factors, and those of their transposes, begin and end at multiples of [`VECTOR_ELEMENTS`].
    fn is_vectorizable(&self) -> bool {
        let strides = self.outer.iter().flat_map(|[_, a, b, _]| [*a, *b]);
        let sizes = [self.rows, self.columns, self.depth, self.pitches[0], self.pitches[1]];
        sizes.into_iter().chain(strides).all(|size| size.is_multiple_of(VECTOR_ELEMENTS))
    }
}

/// Returns the number of elements from one row to the next. The rows of a single matrix can be apart; batches are packed.
fn row_pitch(desc: &TensorDesc) -> Result<u64, String> {
    let (sizes, strides) = (desc.sizes(), desc.effective_strides());
    match (sizes, &strides[..]) {
        ([outer @ .., _, columns], [.., pitch, 1]) if outer.iter().all(|&size| size == 1) && pitch >= columns => {
            Ok(*pitch)
        }
        _ if desc.is_packed() => Ok(sizes.last().copied().unwrap_or(1)),
        _ => Err(format!("{desc} must be packed")),
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::DataType;

    use super::*;

    fn lowered(a: &[u64], b: &[u64], y: &[u64], gpu: &Target) -> Result<Lowered, Unsupported> {
        lowered_in(DataType::Float32, [a, b, y], gpu)
    }

    fn lowered_in(data_type: DataType, sizes: [&[u64]; 3], gpu: &Target) -> Result<Lowered, Unsupported> {
        let [a, b, y] = sizes.map(|sizes| TensorDesc::packed(data_type, sizes).unwrap());
        let kernel = Kernel::product(false, false);
        lower(&kernel, &[a, b], &[y], gpu)
    }

    #[test]
    fn large_tiles_are_for_large_products_on_devices_that_share_enough() {
        let much = Target { shared_bytes: 48 << 10, ..Target::LEAST };
        let shader = |side: u64, gpu: &Target| {
            lowered(&[side, 70], &[70, side], &[side, side], gpu).unwrap().dispatches[0].shader
        };
        assert_eq!(shader(100, &Target::LEAST), &MATMUL_32X32);
        assert_eq!(shader(1000, &Target::LEAST), &MATMUL_64X64);
        assert_eq!(shader(2000, &much), &MATMUL_128X128);
        assert_eq!(shader(2000, &Target::LEAST), &MATMUL_64X64);
    }

    #[test]
    fn rows_of_sixteen_bytes_are_loaded_at_once() {
        let target = Target { shared_bytes: 48 << 10, ..Target::COOPERATIVE };
        let shader = |data_type: DataType, rows: u64, depth: u64, columns: u64| {
            let sizes: [&[u64]; 3] = [&[rows, depth], &[depth, columns], &[rows, columns]];
            lowered_in(data_type, sizes, &target).unwrap().dispatches[0].shader
        };
        assert_eq!(shader(DataType::Float16, 2000, 72, 1600), &MATMUL_128X128_F16_COOPERATIVE_VECTORIZED);
        assert_eq!(shader(DataType::Float16, 80, 72, 160), &MATMUL_64X64_F16_COOPERATIVE_VECTORIZED);
        assert_eq!(shader(DataType::Float32, 2000, 72, 1600), &MATMUL_128X128_VECTORIZED);
        for (rows, depth, columns) in [(2001, 72, 1600), (2000, 70, 1600), (2000, 72, 1604)] {
            assert_eq!(shader(DataType::Float16, rows, depth, columns), &MATMUL_128X128_F16_COOPERATIVE);
            assert_eq!(shader(DataType::Float32, rows, depth, columns), &MATMUL_128X128);
        }
    }

    #[test]
    fn matrices_are_multiplied_together_where_a_device_offers_it_for_their_type() {
        let shader = |data_type: DataType, side: u64, gpu: &Target| {
            let sizes: [&[u64]; 3] = [&[side, 70], &[70, side], &[side, side]];
            lowered_in(data_type, sizes, gpu).unwrap().dispatches[0].shader
        };
        let (half, brain) = (DataType::Float16, DataType::BFloat16);
        assert_eq!(shader(half, 100, &Target::COOPERATIVE), &MATMUL_64X64_F16_COOPERATIVE);
        assert_eq!(shader(half, 2000, &Target::COOPERATIVE), &MATMUL_128X128_F16_COOPERATIVE);
        assert_eq!(shader(half, 100, &Target::LEAST), &MATMUL_32X32_F16);
        assert_eq!(shader(brain, 2000, &Target::COOPERATIVE), &MATMUL_128X128_BF16);
        assert_eq!(shader(DataType::Float32, 2000, &Target::COOPERATIVE), &MATMUL_128X128);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for (b, words) in [([2, 5, 6], " not "), ([3, 4, 6], "cannot be broadcast to [2]")] {
            let error = lowered(&[2, 3, 4], &b, &[2, 3, 6], &Target::LEAST).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
