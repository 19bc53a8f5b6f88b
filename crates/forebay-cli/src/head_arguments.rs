//! The flags for replacing the head, for transfer learning.

use clap::Args;
use forebay::Model;

use crate::device_arguments::positive_count;
use crate::failure::Failure;

/// The layer that gets a different number of classes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Head replacement")]
pub struct HeadArguments {
    /// Change the number of classes of a layer and initialize its weights at random: a MatMul, a Gemm, or a Conv or ConvTranspose without
    /// groups, named by its node, output or weight
    #[arg(long, value_name = "LAYER", requires = "classes")]
    pub replace: Option<String>,
    /// The number of classes of that layer
    #[arg(long, value_name = "N", value_parser = positive_count, requires = "replace")]
    pub classes: Option<u64>,
    /// The seed of that layer's weights
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "replace")]
    pub replace_seed: u64,
}

impl HeadArguments {
    /// Returns the model with the head that the flags specify, or unchanged without these flags.
    ///
    /// # Errors
    /// Returns the errors of [`Model::with_head`].
    pub fn replace(&self, model: Model) -> Result<Model, Failure> {
        let (Some(layer), Some(classes)) = (&self.replace, self.classes) else { return Ok(model) };
        model
            .with_head(layer, classes, self.replace_seed)
            .map_err(|error| Failure::Usage(format!("--replace: {error}")))
    }
}
