//! The compiled shaders: `cargo xtask kernels` makes them from the repository's `kernels/`.

/// A compiled shader.
#[derive(Debug, PartialEq, Eq)]
pub struct Shader {
    /// Its name: that of its file.
    pub name: &'static str,
    /// SPIR-V, in little-endian words.
    pub code: &'static [u8],
}

/// Names a shader's constant and its file alike.
macro_rules! shaders {
    ($($constant:ident = $name:literal),* $(,)?) => {
        $(
            #[doc = concat!("`kernels/spirv/", $name, ".spv`.")]
            pub(super) static $constant: Shader = Shader {
                name: $name,
                code: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/spirv/", $name, ".spv")),
            };
        )*
        /// Every shader.
        pub static ALL: &[&Shader] = &[$(&$constant),*];
    };
}

shaders! {
    // Elementwise, movement, optimizers.
    ELEMENTWISE_UNARY = "elementwise_unary",
    ELEMENTWISE_UNARY_GRADIENT = "elementwise_unary_gradient",
    ELEMENTWISE_BINARY = "elementwise_binary",
    ELEMENTWISE_SELECT = "elementwise_select",
    ELEMENTWISE_FILL = "elementwise_fill",
    ELEMENTWISE_DROPOUT = "elementwise_dropout",
    ELEMENTWISE_DROPOUT_MASK = "elementwise_dropout_mask",
    MOVEMENT_COPY = "movement_copy",
    MOVEMENT_PAD = "movement_pad",
    MOVEMENT_GATHER = "movement_gather",
    MOVEMENT_GATHER_GRADIENT = "movement_gather_gradient",
    OPTIMIZER_SGD = "optimizer_sgd",
    OPTIMIZER_MOMENTUM = "optimizer_momentum",
    OPTIMIZER_ADAM = "optimizer_adam",
    // Products, convolutions, pooling.
    CORRELATION_128X128 = "correlation_128x128",
    CORRELATION_128X16 = "correlation_128x16",
    CORRELATION_128X32 = "correlation_128x32",
    CORRELATION_64X64 = "correlation_64x64",
    LOCAL_RESPONSE = "local_response",
    MATMUL_128X128 = "matmul_128x128",
    MATMUL_32X32 = "matmul_32x32",
    MATMUL_64X64 = "matmul_64x64",
    POOLING = "pooling",
    WEIGHT_GRADIENT_16X128 = "weight_gradient_16x128",
    WEIGHT_GRADIENT_32X128 = "weight_gradient_32x128",
    WEIGHT_GRADIENT_64X64 = "weight_gradient_64x64",
    // Reductions, losses, normalizations, sums.
}
