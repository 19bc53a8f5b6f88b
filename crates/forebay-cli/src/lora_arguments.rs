//! The flags of low-rank adapters.

use clap::Args;
use forebay::Model;
use forebay::training::LoraOptions;

use crate::device_arguments::positive_count;
use crate::failure::Failure;

/// Which weights get adapters.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Adapters (LoRA)")]
pub struct LoraArguments {
    /// Train low-rank adapters of the weights whose names match (* and ? are wildcards), and leave all other parameters unchanged;
    /// for weights of MatMul, Gemm, ungrouped Conv, and Gather; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub lora: Vec<String>,
    /// The rank of adapters, from 1 to 65536 [default: 8]
    #[arg(long, value_name = "R", value_parser = positive_count, requires = "lora")]
    pub rank: Option<u64>,
    /// Multiply the output of adapters by A / R [default: R]
    #[arg(long, value_name = "A", requires = "lora")]
    pub alpha: Option<f32>,
    /// Fully train parameters whose names match, alongside the adapters; can be repeated
    #[arg(long, value_name = "PATTERN", requires = "lora")]
    pub lora_also: Vec<String>,
    /// The seed for initializing the adapters
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "lora")]
    pub lora_seed: u64,
}

impl LoraArguments {
    /// Returns the model with the adapters that the flags specify, or unchanged without these flags.
    ///
    /// # Errors
    /// Returns the errors of [`Model::with_adapters`].
    pub fn adapt(&self, model: Model) -> Result<Model, Failure> {
        let Some((first, more)) = self.lora.split_first() else { return Ok(model) };
        let mut options = LoraOptions::new(first);
        options.patterns.extend(more.iter().cloned());
        options.rank = self.rank.unwrap_or(options.rank);
        options.alpha = self.alpha.unwrap_or(options.rank as f32);
        options.seed = self.lora_seed;
        options.also.clone_from(&self.lora_also);
        model.with_adapters(&options).map_err(|error| Failure::Usage(format!("--lora: {error}")))
    }
}
