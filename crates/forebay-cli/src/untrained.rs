//! Parts of a model that are not trained, or are trained differently from the module that it was exported from.

use forebay::Model;

use crate::arguments::TrainingArguments;
use crate::failure::Failure;
use crate::loss_arguments::LossKind;
use crate::output;

/// Reports which initializers are treated as constants, and which parameters of a PyTorch module are trained differently from there.
///
/// # Errors
/// Returns the errors of the model.
pub fn tell_of_untrained(model: &Model) -> Result<(), Failure> {
    let names = model.untrained_initializers()?;
    let (shown, more) = (names.iter().take(3).map(|name| format!("'{name}'")).collect::<Vec<_>>(), names.len() > 3);
    if let Some(count) = std::num::NonZeroUsize::new(names.len()) {
        output::complain(&format!(
            "note: {count} of the model's floating-point initializers are not trained, because they are buffers or constants of \
             formulas, or are followed by QuantizeLinear, which passes no gradient on: {}{}",
            shown.join(", "),
            if more { ", ..." } else { "" }
        ));
    }
    let altered = model.altered_parameters();
    if !altered.is_empty() {
        let (shown, more) = (altered.iter().take(3).map(|name| format!("'{name}'")), altered.len() > 3);
        output::complain(&format!(
            "note: PyTorch's exporter computed with {} of the module's parameters, or left them out: {}{}; they train differently than \
             in the module; torch.onnx.export(..., optimize=False) writes them unchanged",
            altered.len(),
            shown.collect::<Vec<_>>().join(", "),
            if more { ", ..." } else { "" }
        ));
    }
    Ok(())
}

/// Warns if a loss would convert to probabilities what already is probabilities.
pub fn tell_of_probabilities(model: &Model, arguments: &TrainingArguments) {
    let takes_logits = matches!(
        arguments.loss,
        LossKind::SoftmaxCrossEntropy | LossKind::Focal | LossKind::Bce | LossKind::BinaryFocal
    );
    if let Some((output, logits)) = model.logits_behind(arguments.loss_output.as_deref()).filter(|_| takes_logits) {
        output::complain(&format!(
            "note: output '{output}' contains probabilities, which the loss converts to probabilities again, so the network learns \
             slowly; use --loss-output '{logits}' to pass it the logits instead"
        ));
    }
}
