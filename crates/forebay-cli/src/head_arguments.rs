//! The flags of another head, for transfer learning.

use clap::Args;
use forebay::Model;

use crate::device_arguments::positive_count;
use crate::failure::Failure;

/// Which layer gets another number of classes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Another head")]
pub struct HeadArguments {
    /// Give a layer another number of classes, with weights that begin at random: a MatMul, Gemm or Conv without groups, named by its node, its
    /// output or its weight
    #[arg(long, value_name = "LAYER", requires = "classes")]
    pub replace: Option<String>,
    /// The number of classes of that layer
    #[arg(long, value_name = "N", value_parser = positive_count, requires = "replace")]
    pub classes: Option<u64>,
    /// The seed of its weights
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "replace")]
    pub replace_seed: u64,
}

impl HeadArguments {
    /// The model with the head that the flags ask for; as it is without.
    ///
    /// # Errors
    /// Those of [`Model::with_head`].
    pub fn replace(&self, model: Model) -> Result<Model, Failure> {
        let (Some(layer), Some(classes)) = (&self.replace, self.classes) else { return Ok(model) };
        model
            .with_head(layer, classes, self.replace_seed)
            .map_err(|error| Failure::Usage(format!("--replace: {error}")))
    }
}
