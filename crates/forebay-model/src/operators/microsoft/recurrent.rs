//! Recurrent networks with integer weights.

use forebay_base::DataType;
use forebay_base::kernel::{BinaryOp, RecurrentCell};

use super::super::decomposition::{Composer, Decomposition, Part, composed};
use super::super::integer::{Factor, product_of_integers};
use super::super::quantized::{centered, dynamically, real_input};
use super::super::recurrent::{Call, Sizes, recurrence};
use super::super::shapes::product;
use crate::error::ModelError;
use crate::graph::MICROSOFT;
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[composed!(MICROSOFT, "DynamicQuantizeLSTM", dynamic_quantize_lstm)];

/// The scales or zero points of weights \[directions, terms, columns], of which there is one for each direction or for each of its columns,
/// in a shape that broadcasts to the weights.
fn of_weights(c: &Composer, part: &Part, weights: &Part, what: &str) -> Result<Part, ModelError> {
    let (directions, columns) = (weights.ty.shape[0], weights.ty.shape[2]);
    match *part.ty.shape.as_slice() {
        [count] if count == directions => c.reshape(part, &[directions, 1, 1]),
        [count, own] if count == directions && own == columns => c.reshape(part, &[directions, 1, columns]),
        _ => {
            let forms = format!("[{directions}] or [{directions}, {columns}]");
            Err(c.view.error(format!("{what} must be {forms}, not {}", part.ty)))
        }
    }
}

/// Integer weights with their zero point, and their scale.
fn weights(c: &mut Composer, input: usize, scale: usize) -> Result<(Factor, Part), ModelError> {
    let w = c.input(input)?;
    let is_integer = matches!(w.ty.data_type, DataType::Int8 | DataType::UInt8);
    if !is_integer || w.ty.shape.len() != 3 {
        return Err(c.view.error(format!("expected three-dimensional weights of int8 or uint8, found {}", w.ty)));
    }
    let zero = match c.view.has_input(scale + 1) {
        false => None,
        true => {
            let zero = c.input(scale + 1)?;
            Some(of_weights(c, &zero, &w, "the zero points of the weights")?)
        }
    };
    let of_w = real_input(c, scale)?.ok_or_else(|| c.view.error(format!("input {scale} is missing")))?;
    let of_w = of_weights(c, &of_w, &w, "the scales of the weights")?;
    Ok((Factor::new(c, w, zero)?, of_w))
}

/// An LSTM whose weights are integers \[directions, terms, columns], with scales and zero points. The numbers that they are multiplied by
/// are quantized by their range: the whole sequence at once, and the state of each sequence separately at each step, as ONNX Runtime does
/// if each sequence has a thread.
fn dynamic_quantize_lstm(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut recurrence = recurrence(&view, RecurrentCell::Lstm { couples_forget: view.int("input_forget", 0)? != 0 })?;
    recurrence.quantizes_state = true;
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let ((w, of_w), (r, of_r)) = (weights(&mut c, 1, 8)?, weights(&mut c, 2, 10)?);
    let error = || {
        let reason = format!(
            "input {}, weights {} and recurrent weights {} do not match 4 gates and {} directions",
            x.ty,
            w.x.ty,
            r.x.ty,
            recurrence.directions.len()
        );
        view.error(reason)
    };
    let (&[steps, batch, elements], &[directions, units, columns]) = (x.ty.shape.as_slice(), r.x.ty.shape.as_slice())
    else {
        return Err(error());
    };
    let fits = w.x.ty.shape == [directions, elements, columns] && units.checked_mul(4) == Some(columns);
    if !fits || directions != recurrence.directions.len() as u64 {
        return Err(error());
    }
    let hidden = view.int("hidden_size", units as i64)?;
    if u64::try_from(hidden) != Ok(units) {
        return Err(view.error(format!("attribute hidden_size {hidden} does not match the recurrent weights' {units}")));
    }
    let sizes = Sizes { steps, batch, directions, columns, units };
    let call = Call { recurrence, sizes, by_batch: false };
    if steps == 0 {
        return call.without_steps(c, DataType::Float32);
    }
    let [quantized, of_x, zero] = dynamically(&mut c, &x)?;
    let quantized = c.reshape(&quantized, &[product(&view, &[steps, batch])?, elements])?;
    let quantized = Factor::new(&mut c, quantized, Some(zero))?;
    let sums = product_of_integers(&mut c, [&quantized, &w], false, None)?;
    let sums = c.cast(&sums, DataType::Float32);
    let of_both = c.binary(BinaryOp::Multiply, &of_w, &of_x)?;
    let mut gates = c.binary(BinaryOp::Multiply, &sums, &of_both)?;
    let (own, bias) = call.biases(&mut c)?;
    if let Some(own) = own {
        let own = c.reshape(&own, &[directions, 1, columns])?;
        gates = c.binary(BinaryOp::Add, &gates, &own)?;
    }
    // From [directions, steps batch, columns].
    let gates = c.transpose(&gates, &[1, 0, 2])?;
    let r = centered(&mut c, &r.x, Some(&r.zero))?;
    let r = c.binary(BinaryOp::Multiply, &r, &of_r)?;
    let r = c.transpose(&r, &[0, 2, 1])?;
    call.finish(c, &gates, &r, bias)
}
