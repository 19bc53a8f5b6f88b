//! Forward pass, losses, gradients, parameters and running statistics of the golden models, compared with PyTorch.

use forebay_golden::reference::{forward, gradients, training};
use forebay_golden::{Case, host};

macro_rules! cases {
    ($($module:ident: $name:literal,)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn forward_pass() {
                forward(&Case::read($name), host(2));
            }

            #[test]
            fn gradients_of_the_first_step() {
                gradients(&Case::read($name), host(2));
            }

            #[test]
            fn training_steps() {
                training(&Case::read($name), host(2));
            }
        }
    )*};
}

cases! {
    digits_cnn: "digits-cnn",
    resnet20: "resnet20",
    tiny_gpt: "tiny-gpt",
    unet3d: "unet3d",
}
