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
    // Products, convolutions, pooling.
    // Reductions, losses, normalizations, sums.
}
