//! The compiled shaders, which `cargo xtask kernels` makes from the repository's `kernels/`.

use std::fmt;

/// A compiled shader.
#[derive(PartialEq, Eq)]
pub struct Shader {
    /// Its name, which is also that of its file.
    pub name: &'static str,
    /// SPIR-V, in little-endian words.
    pub code: &'static [u8],
    /// The device-address variant, for operands with more bytes than a binding can reach; `None` if this is that variant.
    pub by_address: Option<&'static Shader>,
    /// The same shader for devices whose shaders have neither float64 nor 16-bit elements; `None` if this is that shader, or if it needs
    /// neither and is short. If it does without float64, it sums in pairs of float32, so its bits are different.
    pub portable: Option<&'static Shader>,
}

impl fmt::Debug for Shader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl Shader {
    /// Returns whether the addresses of operands are bound instead of their bytes.
    pub fn is_by_address(&self) -> bool {
        self.by_address.is_none()
    }

    /// Returns whether the shader computes with float64, which a device may lack.
    pub fn needs_float64(&self) -> bool {
        self.needs(FLOAT64)
    }

    /// Returns whether the shader reads and writes individual 16-bit elements, which a device may not support.
    pub fn needs_storage16(&self) -> bool {
        self.needs(INT16)
    }

    /// Returns whether the shader uses cooperative matrices, which most devices do not support.
    pub fn needs_cooperative(&self) -> bool {
        self.needs(COOPERATIVE_MATRIX)
    }

    fn needs(&self, capability: u32) -> bool {
        // Capabilities come first, after a header of five words; each is an opcode word followed by its number.
        let is_it = |words: &[u8]| (words[..4] == CAPABILITY).then(|| words[4..] == capability.to_le_bytes());
        self.code.get(20..).unwrap_or_default().chunks_exact(8).map_while(is_it).any(|is_it| is_it)
    }
}

/// The first word of OpCapability, and the numbers of some capabilities. Shaders that load 16-bit elements have Int16.
const CAPABILITY: [u8; 4] = [17, 0, 2, 0];
const FLOAT64: u32 = 10;
const INT16: u32 = 22;
const COOPERATIVE_MATRIX: u32 = 6022;

/// The shader in the file with this name, which also has a variant for large operands.
macro_rules! shader {
    ($portable:expr, $($name:literal),+) => {
        shader!(file: Some(&shader!(file: None, None, $($name),+, "_far")), $portable, $($name),+)
    };
    (file: $by_address:expr, $portable:expr, $($name:literal),+) => {
        Shader {
            name: concat!($($name),+),
            code: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/spirv/", $($name),+, ".spv")),
            by_address: $by_address,
            portable: $portable,
        }
    };
}

/// A shader's form for devices that lack what it needs, if there is one.
macro_rules! portable {
    ($name:literal) => {
        None
    };
    ($name:literal portable) => {
        Some(&shader!(None, $name, "_portable"))
    };
}

/// Names a shader's constant and its files alike, and says whether it also has a portable form.
macro_rules! shaders {
    ($($constant:ident = $name:literal $($portable:ident)?),* $(,)?) => {
        $(
            #[doc = concat!("`spirv/", $name, ".spv`.")]
            pub(super) static $constant: Shader = shader!(portable!($name $($portable)?), $name);
        )*
        /// Every shader. Each has a device-address variant.
        pub static ALL: &[&Shader] = &[$(&$constant),*];
    };
}

shaders! {
    // Elementwise, movement, optimizers.
    ELEMENTWISE_UNARY = "elementwise_unary",
    ELEMENTWISE_UNARY_GRADIENT = "elementwise_unary_gradient",
    ELEMENTWISE_BINARY = "elementwise_binary",
    ELEMENTWISE_CAST = "elementwise_cast",
    ELEMENTWISE_CAST_WIDE = "elementwise_cast_wide",
    ELEMENTWISE_SELECT = "elementwise_select",
    ELEMENTWISE_FILL = "elementwise_fill",
    ELEMENTWISE_DROPOUT = "elementwise_dropout",
    ELEMENTWISE_DROPOUT_MASK = "elementwise_dropout_mask",
    ELEMENTWISE_RANDOM = "elementwise_random",
    ELEMENTWISE_WIDE_UNARY = "elementwise_wide_unary",
    ELEMENTWISE_WIDE_BINARY = "elementwise_wide_binary",
    ELEMENTWISE_WIDE_COMPARISON = "elementwise_wide_comparison",
    ELEMENTWISE_DOUBLE_UNARY = "elementwise_double_unary",
    ELEMENTWISE_DOUBLE_BINARY = "elementwise_double_binary",
    MOVEMENT_COPY = "movement_copy",
    MOVEMENT_PAD = "movement_pad",
    MOVEMENT_GATHER = "movement_gather",
    MOVEMENT_GATHER_GRADIENT = "movement_gather_gradient",
    MOVEMENT_SCATTER = "movement_scatter",
    SCAN_F32 = "scan_f32",
    SCAN_F64 = "scan_f64",
    SCAN_U32 = "scan_u32",
    SCAN_U64 = "scan_u64",
    TOP_K = "top_k",
    SORT = "sort",
    OPTIMIZER_SGD = "optimizer_sgd",
    OPTIMIZER_MOMENTUM = "optimizer_momentum",
    OPTIMIZER_ADAM = "optimizer_adam",
    OPTIMIZER_ADAM_8_BIT = "optimizer_adam_8_bit",
    // Products, convolutions, pooling.
    CORRELATION_128X128 = "correlation_128x128" portable,
    CORRELATION_128X128_BF16 = "correlation_128x128_bf16" portable,
    CORRELATION_128X128_BF16_COOPERATIVE = "correlation_128x128_bf16_cooperative",
    CORRELATION_128X128_F16 = "correlation_128x128_f16" portable,
    CORRELATION_128X128_F16_COOPERATIVE = "correlation_128x128_f16_cooperative",
    CORRELATION_128X16 = "correlation_128x16" portable,
    CORRELATION_128X16_BF16 = "correlation_128x16_bf16" portable,
    CORRELATION_128X16_BF16_COOPERATIVE = "correlation_128x16_bf16_cooperative",
    CORRELATION_128X16_F16 = "correlation_128x16_f16" portable,
    CORRELATION_128X16_F16_COOPERATIVE = "correlation_128x16_f16_cooperative",
    CORRELATION_128X32 = "correlation_128x32" portable,
    CORRELATION_128X32_BF16 = "correlation_128x32_bf16" portable,
    CORRELATION_128X32_BF16_COOPERATIVE = "correlation_128x32_bf16_cooperative",
    CORRELATION_128X32_F16 = "correlation_128x32_f16" portable,
    CORRELATION_128X32_F16_COOPERATIVE = "correlation_128x32_f16_cooperative",
    CORRELATION_64X64 = "correlation_64x64" portable,
    CORRELATION_64X64_BF16 = "correlation_64x64_bf16" portable,
    CORRELATION_64X64_BF16_COOPERATIVE = "correlation_64x64_bf16_cooperative",
    CORRELATION_64X64_F16 = "correlation_64x64_f16" portable,
    CORRELATION_64X64_F16_COOPERATIVE = "correlation_64x64_f16_cooperative",
    CORRELATION_DIRECT = "correlation_direct",
    CORRELATION_DIRECT_BF16 = "correlation_direct_bf16" portable,
    CORRELATION_DIRECT_F16 = "correlation_direct_f16" portable,
    INTEGER_CONVOLUTION = "integer_convolution",
    INTEGER_PRODUCT = "integer_product",
    LOCAL_RESPONSE = "local_response",
    ATTENTION_64 = "attention_64",
    ATTENTION_128 = "attention_128",
    ATTENTION_256 = "attention_256",
    ATTENTION_QUERY_GRADIENT_64 = "attention_query_gradient_64",
    ATTENTION_QUERY_GRADIENT_128 = "attention_query_gradient_128",
    ATTENTION_QUERY_GRADIENT_256 = "attention_query_gradient_256",
    ATTENTION_KEY_GRADIENT_64 = "attention_key_gradient_64",
    ATTENTION_KEY_GRADIENT_128 = "attention_key_gradient_128",
    ATTENTION_KEY_GRADIENT_256 = "attention_key_gradient_256",
    MATMUL_128X128 = "matmul_128x128" portable,
    MATMUL_128X128_VECTORIZED = "matmul_128x128_vectorized" portable,
    MATMUL_128X128_BF16 = "matmul_128x128_bf16" portable,
    MATMUL_128X128_BF16_COOPERATIVE = "matmul_128x128_bf16_cooperative",
    MATMUL_128X128_BF16_COOPERATIVE_VECTORIZED = "matmul_128x128_bf16_cooperative_vectorized",
    MATMUL_128X128_F16 = "matmul_128x128_f16" portable,
    MATMUL_128X128_F16_COOPERATIVE = "matmul_128x128_f16_cooperative",
    MATMUL_128X128_F16_COOPERATIVE_VECTORIZED = "matmul_128x128_f16_cooperative_vectorized",
    MATMUL_32X32 = "matmul_32x32" portable,
    MATMUL_32X32_BF16 = "matmul_32x32_bf16" portable,
    MATMUL_32X32_F16 = "matmul_32x32_f16" portable,
    MATMUL_64X64 = "matmul_64x64" portable,
    MATMUL_64X64_BF16 = "matmul_64x64_bf16" portable,
    MATMUL_64X64_BF16_COOPERATIVE = "matmul_64x64_bf16_cooperative",
    MATMUL_64X64_BF16_COOPERATIVE_VECTORIZED = "matmul_64x64_bf16_cooperative_vectorized",
    MATMUL_64X64_F16 = "matmul_64x64_f16" portable,
    MATMUL_64X64_F16_COOPERATIVE = "matmul_64x64_f16_cooperative",
    MATMUL_64X64_F16_COOPERATIVE_VECTORIZED = "matmul_64x64_f16_cooperative_vectorized",
    POOLING = "pooling",
    POOLING_INDICES = "pooling_indices",
    POOLING_TO_BF16 = "pooling_to_bf16" portable,
    POOLING_TO_F16 = "pooling_to_f16" portable,
    RECURRENT = "recurrent",
    RECURRENT_GRADIENT = "recurrent_gradient",
    WEIGHT_GRADIENT_16X64_NARROW = "weight_gradient_16x64_narrow" portable,
    WEIGHT_GRADIENT_32X64_NARROW = "weight_gradient_32x64_narrow" portable,
    WEIGHT_GRADIENT_64X32_NARROW = "weight_gradient_64x32_narrow" portable,
    WEIGHT_GRADIENT_16X128 = "weight_gradient_16x128" portable,
    WEIGHT_GRADIENT_16X128_BF16 = "weight_gradient_16x128_bf16" portable,
    WEIGHT_GRADIENT_16X128_F16 = "weight_gradient_16x128_f16" portable,
    WEIGHT_GRADIENT_32X128 = "weight_gradient_32x128" portable,
    WEIGHT_GRADIENT_32X128_BF16 = "weight_gradient_32x128_bf16" portable,
    WEIGHT_GRADIENT_32X128_F16 = "weight_gradient_32x128_f16" portable,
    WEIGHT_GRADIENT_128X128_BF16_COOPERATIVE = "weight_gradient_128x128_bf16_cooperative",
    WEIGHT_GRADIENT_128X128_F16_COOPERATIVE = "weight_gradient_128x128_f16_cooperative",
    WEIGHT_GRADIENT_64X64 = "weight_gradient_64x64" portable,
    WEIGHT_GRADIENT_64X64_BF16 = "weight_gradient_64x64_bf16" portable,
    WEIGHT_GRADIENT_64X64_BF16_COOPERATIVE = "weight_gradient_64x64_bf16_cooperative",
    WEIGHT_GRADIENT_64X64_F16 = "weight_gradient_64x64_f16" portable,
    WEIGHT_GRADIENT_64X64_F16_COOPERATIVE = "weight_gradient_64x64_f16_cooperative",
    WEIGHT_GRADIENT_DIRECT = "weight_gradient_direct",
    WEIGHT_GRADIENT_DIRECT_BF16 = "weight_gradient_direct_bf16" portable,
    WEIGHT_GRADIENT_DIRECT_F16 = "weight_gradient_direct_f16" portable,
    WEIGHT_GRADIENT_SUMS = "weight_gradient_sums",
    WEIGHT_GRADIENT_SUMS_BF16 = "weight_gradient_sums_bf16" portable,
    WEIGHT_GRADIENT_SUMS_F16 = "weight_gradient_sums_f16" portable,
    // Reductions, losses, normalizations, sums.
    REDUCE_F32 = "reduce_f32",
    REDUCE_F64 = "reduce_f64",
    REDUCE_I32 = "reduce_i32",
    REDUCE_U32 = "reduce_u32",
    REDUCE_ROWS_F32 = "reduce_rows_f32",
    SOFTMAX_F32 = "softmax_f32",
    SOFTMAX_GRADIENT_F32 = "softmax_gradient_f32",
    CROSS_ENTROPY_F32 = "cross_entropy_f32" portable,
    CROSS_ENTROPY_SUMS_F32 = "cross_entropy_sums_f32" portable,
    CROSS_ENTROPY_GRADIENT_F32 = "cross_entropy_gradient_f32" portable,
    CROSS_ENTROPY_GRADIENT_WITH_SUMS_F32 = "cross_entropy_gradient_with_sums_f32" portable,
    SQUARED_ERROR_GRADIENT_F32 = "squared_error_gradient_f32",
    SQUARED_ERROR_GRADIENT_WITH_SUMS_F32 = "squared_error_gradient_with_sums_f32" portable,
    BATCH_NORMALIZATION_F32 = "batch_normalization_f32",
    BATCH_TRAINING_F32 = "batch_training_f32" portable,
    BATCH_GRADIENT_F32 = "batch_gradient_f32" portable,
    BATCH_TRAINING_WIDE_F32 = "batch_training_wide_f32" portable,
    BATCH_GRADIENT_WIDE_F32 = "batch_gradient_wide_f32" portable,
    BATCH_GRADIENT_WITH_SUMS_F32 = "batch_gradient_with_sums_f32" portable,
    BATCH_NORMALIZATION_TO_F16 = "batch_normalization_to_f16" portable,
    BATCH_GRADIENT_WITH_SUMS_TO_F16 = "batch_gradient_with_sums_to_f16" portable,
    BATCH_NORMALIZATION_TO_BF16 = "batch_normalization_to_bf16" portable,
    BATCH_GRADIENT_WITH_SUMS_TO_BF16 = "batch_gradient_with_sums_to_bf16" portable,
    BATCH_NORMALIZATION_F64 = "batch_normalization_f64",
    BATCH_TRAINING_F64 = "batch_training_f64",
    BATCH_GRADIENT_F64 = "batch_gradient_f64",
    BATCH_GRADIENT_WITH_SUMS_F64 = "batch_gradient_with_sums_f64",
    GROUP_SUMS_F32 = "group_sums_f32" portable,
    GROUP_SUMS_F64 = "group_sums_f64",
    RUNNING_STATISTICS_F32 = "running_statistics_f32",
    RUNNING_STATISTICS_F64 = "running_statistics_f64",
    LAYER_NORMALIZATION_F32 = "layer_normalization_f32",
    LAYER_GRADIENT_F32 = "layer_gradient_f32",
    LAYER_SUMS_F32 = "layer_sums_f32" portable,
    SUMS_STATISTICS_F32 = "sums_statistics_f32" portable,
    SUMS_GRADIENT_F32 = "sums_gradient_f32" portable,
    SUMS_CHANNELS_F32 = "sums_channels_f32" portable,
    REDUCE_CHANNELS_F32 = "reduce_channels_f32" portable,
    SUMS_ROWS_F32 = "sums_rows_f32" portable,
    SUMS_SQUARES_F32 = "sums_squares_f32" portable,
    MEAN_SQUARES_F32 = "mean_squares_f32" portable,
    SUMS_STATISTICS_F64 = "sums_statistics_f64",
    SUMS_GRADIENT_F64 = "sums_gradient_f64",
    SUMS_CHANNELS_F64 = "sums_channels_f64",
    REDUCE_CHANNELS_F64 = "reduce_channels_f64",
    ADD_SUMS = "add_sums" portable,
    ADD_SUMS_STATISTICS = "add_sums_statistics" portable,
    ADD_SUMS_ROWS = "add_sums_rows" portable,
    ADD_SUMS_LAYER = "add_sums_layer" portable,
    FROM_SUMS_STATISTICS_F32 = "from_sums_statistics_f32" portable,
    FROM_SUMS_GRADIENT_F32 = "from_sums_gradient_f32" portable,
    FROM_SUMS_CHANNELS_F32 = "from_sums_channels_f32" portable,
    FROM_SUMS_MEAN_F32 = "from_sums_mean_f32" portable,
    FROM_SUMS_ROWS_F32 = "from_sums_rows_f32" portable,
    FROM_SUMS_LAYER_F32 = "from_sums_layer_f32" portable,
    FROM_SUMS_STATISTICS_F64 = "from_sums_statistics_f64",
    FROM_SUMS_GRADIENT_F64 = "from_sums_gradient_f64",
    FROM_SUMS_CHANNELS_F64 = "from_sums_channels_f64",
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::optimizer::ADAM_8_BIT_BINDINGS;
    use super::super::recurrent::RECURRENT_BINDINGS;
    use super::super::{BINDINGS, WORKGROUP_INVOCATIONS};
    use super::*;

    /// Returns the instructions of a shader that have this opcode, without their first words.
    fn instructions(shader: &Shader, opcode: u32) -> Vec<Vec<u32>> {
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let words: Vec<u32> = shader.code.chunks_exact(4).map(word).collect();
        let (mut found, mut rest) = (Vec::new(), &words[5..]);
        while let Some(first) = rest.first() {
            let (instruction, behind) = rest.split_at((first >> 16) as usize);
            if first & 0xffff == opcode {
                found.push(instruction[1..].to_vec());
            }
            rest = behind;
        }
        found
    }

    /// Returns a shader and its portable form, and the device-address variants of both.
    fn forms(shader: &'static Shader) -> impl Iterator<Item = &'static Shader> {
        [shader].into_iter().chain(shader.portable).flat_map(|form| [form, form.by_address.unwrap()])
    }

    #[test]
    fn shaders_ask_for_no_more_than_devices_have_to_offer() {
        // OpExecutionMode with LocalSize; OpDecorate with Binding.
        let [execution_mode, local_size, decorate, binding] = [16, 17, 71, 33];
        let (mut most_bindings, mut most_of_recurrent, mut most_of_adam_8_bit) = (0, 0, 0);
        for shader in ALL {
            for form in forms(shader) {
                let modes = instructions(form, execution_mode);
                let size = modes.iter().find(|mode| mode[1] == local_size).expect("it has a workgroup");
                let invocations = size[2] * size[3] * size[4];
                assert!(invocations <= WORKGROUP_INVOCATIONS || form.name.contains("_wide_"), "{}", form.name);
                let bindings = instructions(form, decorate).into_iter().filter(|words| words[1] == binding);
                let bindings = bindings.map(|words| words[2] + 1).max().unwrap_or(0);
                let most = match form.name {
                    name if name.starts_with("recurrent") => &mut most_of_recurrent,
                    name if name.starts_with("optimizer_adam_8_bit") => &mut most_of_adam_8_bit,
                    _ => &mut most_bindings,
                };
                *most = bindings.max(*most);
            }
        }
        assert_eq!((most_bindings, most_of_recurrent), (BINDINGS, RECURRENT_BINDINGS));
        assert_eq!(most_of_adam_8_bit, ADAM_8_BIT_BINDINGS);
    }

    /// Counts how often a shader indexes a local vector with a non-constant number. GPUs may keep such vectors in memory instead of
    /// registers.
    fn indexed_vectors(shader: &Shader) -> usize {
        // OpTypeVector, OpTypePointer, OpConstant and OpSpecConstant, OpVariable, OpAccessChain, OpVectorExtractDynamic and
        // OpVectorInsertDynamic; the storage class Function.
        let [vector, pointer, constant, spec_constant, variable, access, extract, insert] =
            [23, 32, 43, 50, 59, 65, 77, 78];
        let function = 7;
        let of = |opcode: u32| instructions(shader, opcode);
        let ids = |opcode: u32, place: usize| of(opcode).into_iter().map(move |words| words[place]);
        let vectors: HashSet<u32> = ids(vector, 0).collect();
        let constants: HashSet<u32> = ids(constant, 1).chain(ids(spec_constant, 1)).collect();
        let to_vector = of(pointer).into_iter().filter(|words| words[1] == function && vectors.contains(&words[2]));
        let to_vector: HashSet<u32> = to_vector.map(|words| words[0]).collect();
        let held = of(variable).into_iter().filter(|words| to_vector.contains(&words[0]));
        let held: HashSet<u32> = held.map(|words| words[1]).collect();
        let is_indexed =
            |words: &&Vec<u32>| held.contains(&words[2]) && !words[3..].iter().all(|index| constants.contains(index));
        of(access).iter().filter(is_indexed).count() + of(extract).len() + of(insert).len()
    }

    #[test]
    fn local_vectors_are_indexed_by_constants() {
        for form in ALL.iter().flat_map(|shader| forms(shader)) {
            assert_eq!(indexed_vectors(form), 0, "{}: index shared memory, or select a component", form.name);
        }
    }

    #[test]
    fn shaders_are_spirv_and_tell_what_they_need() {
        for shader in ALL {
            let by_address = shader.by_address.unwrap();
            assert!(
                by_address.is_by_address()
                    && !shader.is_by_address()
                    && by_address.name == format!("{}_far", shader.name)
            );
            for form in [shader, by_address] {
                assert_eq!(form.code[..4], 0x0723_0203_u32.to_le_bytes(), "{}", form.name);
                assert_eq!(form.needs_float64(), shader.needs_float64(), "{}", form.name);
            }
            assert!(!shader.name.ends_with("_f64") || shader.needs_float64(), "{}", shader.name);
            // Only float64 tensors and matrix units have no replacement.
            let is_double = shader.name.contains("_f64") || shader.name.contains("_double");
            let needs =
                !is_double && !shader.needs_cooperative() && (shader.needs_float64() || shader.needs_storage16());
            let is_tiled =
                ["matmul_", "correlation_", "weight_gradient_"].iter().any(|name| shader.name.starts_with(name))
                    && !["_direct", "_sums"].iter().any(|part| shader.name.contains(part));
            let is_long = is_tiled && !shader.needs_cooperative();
            assert_eq!(shader.portable.is_some(), needs || is_long, "{}", shader.name);
            for form in shader.portable.into_iter().flat_map(|portable| [portable, portable.by_address.unwrap()]) {
                assert!(!form.needs_float64() && !form.needs_storage16(), "{}", form.name);
                assert!(form.name.starts_with(&format!("{}_portable", shader.name)) && form.portable.is_none());
            }
        }
        assert!(SUMS_STATISTICS_F32.needs_float64());
        let brain = &MATMUL_32X32_BF16;
        assert!(brain.needs_storage16() && brain.by_address.is_some_and(Shader::needs_storage16));
        for shader in ALL.iter().flat_map(|shader| [*shader, shader.by_address.unwrap()]) {
            assert_eq!(shader.needs_cooperative(), shader.name.contains("_cooperative"), "{}", shader.name);
        }
        for shader in [&BATCH_NORMALIZATION_F32, &REDUCE_F32, &SOFTMAX_F32, &LAYER_GRADIENT_F32] {
            assert!(!shader.needs_float64() && !shader.needs_storage16(), "{}", shader.name);
        }
    }
}
