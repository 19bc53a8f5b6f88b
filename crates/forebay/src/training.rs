//! What to train towards, and how.
//!
//! ```
//! use forebay::training::{Loss, Optimizer, TrainingOptions};
//!
//! let optimizer = Optimizer::Sgd { learning_rate: 0.05, momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
//! let options = TrainingOptions::new(Loss::default(), optimizer);
//! assert!(options.freeze.is_empty());
//! ```

pub use forebay_model::training::{DecayRule, Loss, Optimizer, Region, Shares, TrainingOptions};
