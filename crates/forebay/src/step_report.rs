//! Reports of training steps, and results of evaluations.

use forebay_model::Tensor;
use forebay_runtime::StepMoves;

use crate::forecast::Replan;
use crate::session::RunTimes;

/// The report of a training step.
///
/// ```
/// use forebay::{Model, Tensor, Trainer};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut trainer = Trainer::builder(&model).build()?;
/// # let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
/// # let batch = std::collections::BTreeMap::from([("x".to_string(), x)]);
/// let report = trainer.step(batch, labels)?;
/// assert_eq!(report.step, 1);
/// println!("loss {} in {} s", report.loss, report.seconds);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// The number of the step, from 1.
    pub step: u64,
    /// The loss before the step's update.
    pub loss: f32,
    /// The learning rate of the step.
    pub learning_rate: f32,
    /// The norm of all gradients before clipping, if the options request or need it.
    pub gradient_norm: Option<f32>,
    /// Whether the update was skipped because the loss or a gradient is not finite.
    pub skipped: bool,
    /// The factor by which gradients were scaled, if they are float16.
    pub loss_scale: Option<f32>,
    /// The number of seconds from the first command to the last.
    pub seconds: f64,
    /// The part of `seconds` during which no kernel ran.
    pub stall_seconds: f64,
    /// The part of `stall_seconds` during which an exchange with other processes was in progress.
    pub exchange_stall_seconds: f64,
    /// The number of copies to the device that kernels had to wait for.
    pub late_copies: usize,
    /// The part of `stall_seconds` that these copies caused.
    pub late_seconds: f64,
    /// What managed memory did; `None` if a plan determines every move.
    pub moves: Option<StepMoves>,
    /// The plan that takes over at the next step, if there is a better one for what was measured.
    pub replan: Option<Replan>,
}

impl StepReport {
    /// Returns the timing of the step.
    pub fn times(&self) -> RunTimes {
        let StepReport { seconds, stall_seconds, exchange_stall_seconds, late_copies, late_seconds, moves, .. } = *self;
        RunTimes { seconds, stall_seconds, exchange_stall_seconds, late_copies, late_seconds, moves }
    }
}

/// The results of a model on a batch, in evaluation mode.
///
/// ```
/// use forebay::{Model, Tensor, Trainer};
///
/// # fn main() -> Result<(), forebay::Error> {
/// let model = Model::from_file("../../testdata/golden/digits-cnn/model.onnx")?;
/// let mut trainer = Trainer::builder(&model).build()?;
/// # let (x, labels) = (Tensor::from_f32(&[50, 1, 8, 8], &[0.5; 3200]), Tensor::from_i64(&[50], &[7; 50]));
/// # let batch = std::collections::BTreeMap::from([("x".to_string(), x)]);
/// let evaluation = trainer.evaluate(batch, labels)?;
/// assert_eq!(evaluation.logits.shape(), [50, 10]);
/// assert_eq!(trainer.step_count(), 0, "nothing was trained");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// The loss.
    pub loss: f32,
    /// The model's output, from which the loss is computed.
    pub logits: Tensor,
}

/// Returns the only element of a loss.
pub(crate) fn scalar(tensor: &Tensor) -> f32 {
    tensor.to_f32().and_then(|values| values.first().copied()).unwrap_or(f32::NAN)
}
