//! Recurrent networks: LSTM, GRU and RNN. One product computes the contribution of all elements of a sequence to the gates; the kernel
//! computes that of the state.

use forebay_base::kernel::{
    Activation, ProductPart, Recurrence, RecurrentActivation, RecurrentCell, RecurrentDirection,
};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::shapes::{product, require_few};
use crate::error::ModelError;
use crate::graph::{Attribute, TensorType};
use crate::operator::{NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[
    composed!("GRU", |view| {
        recurrent(view, RecurrentCell::Gru { resets_after: view.int("linear_before_reset", 0)? != 0 })
    }),
    composed!("LSTM", |view| {
        recurrent(view, RecurrentCell::Lstm { couples_forget: view.int("input_forget", 0)? != 0 })
    }),
    composed!("RNN", |view| recurrent(view, RecurrentCell::Simple)),
];

/// An activation function by its ONNX name. It takes its parameters from the numbers that remain in the attributes.
fn activation(
    view: &NodeView,
    name: &str,
    alphas: &mut impl Iterator<Item = f32>,
    betas: &mut impl Iterator<Item = f32>,
) -> Result<RecurrentActivation, ModelError> {
    let mut alpha = |default: f32| alphas.next().unwrap_or(default);
    let mut beta = |default: f32| betas.next().unwrap_or(default);
    Ok(match name.to_ascii_lowercase().as_str() {
        "tanh" => RecurrentActivation::Tanh,
        "sigmoid" => RecurrentActivation::Sigmoid,
        "relu" => RecurrentActivation::Relu,
        "affine" => RecurrentActivation::Affine { alpha: alpha(1.0), beta: beta(0.0) },
        "leakyrelu" => RecurrentActivation::LeakyRelu { alpha: alpha(0.01) },
        "thresholdedrelu" => RecurrentActivation::ThresholdedRelu { alpha: alpha(1.0) },
        "scaledtanh" => RecurrentActivation::ScaledTanh { alpha: alpha(1.0), beta: beta(1.0) },
        "hardsigmoid" => RecurrentActivation::HardSigmoid { alpha: alpha(0.2), beta: beta(0.5) },
        "elu" => RecurrentActivation::Elu { alpha: alpha(1.0) },
        "softsign" => RecurrentActivation::Softsign,
        "softplus" => RecurrentActivation::Softplus,
        _ => return Err(view.error(format!("attribute activations names '{name}', which is not a function of ONNX"))),
    })
}

fn numbers(view: &NodeView, name: &str) -> Result<Vec<f32>, ModelError> {
    match view.attribute(name) {
        None => Ok(Vec::new()),
        Some(Attribute::Floats(values)) => Ok(values.clone()),
        Some(_) => Err(view.error(format!("attribute {name} must be a list of floats"))),
    }
}

/// The directions with their activation functions, and the clipping of their arguments.
pub(super) fn recurrence(view: &NodeView, cell: RecurrentCell) -> Result<Recurrence, ModelError> {
    let reverses: &[bool] = match view.string("direction", "forward")?.to_ascii_lowercase().as_str() {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => {
            let choices = "forward, reverse or bidirectional";
            return Err(view.error(format!("attribute direction must be {choices}, not '{other}'")));
        }
    };
    let defaults: &[&str] = match cell {
        RecurrentCell::Lstm { .. } => &["Sigmoid", "Tanh", "Tanh"],
        RecurrentCell::Gru { .. } => &["Sigmoid", "Tanh"],
        RecurrentCell::Simple => &["Tanh"],
    };
    let wanted = defaults.len() * reverses.len();
    let names: Vec<&str> = match view.attribute("activations") {
        None => defaults.repeat(reverses.len()),
        Some(Attribute::Strings(names)) if names.len() == wanted => names.iter().map(String::as_str).collect(),
        // Models may name the functions of both directions for a network with only one.
        Some(Attribute::Strings(names)) if names.len() == 2 * wanted && reverses.len() == 1 => {
            names[..wanted].iter().map(String::as_str).collect()
        }
        Some(_) => return Err(view.error(format!("attribute activations must contain {wanted} names"))),
    };
    let (mut alphas, mut betas) =
        (numbers(view, "activation_alpha")?.into_iter(), numbers(view, "activation_beta")?.into_iter());
    let mut directions = Vec::new();
    for (names, &reverse) in names.chunks(defaults.len()).zip(reverses) {
        let mut activations = [RecurrentActivation::Tanh; 3];
        for (activation, name) in activations.iter_mut().zip(names) {
            *activation = self::activation(view, name, &mut alphas, &mut betas)?;
        }
        directions.push(RecurrentDirection { reverse, activations });
    }
    let clip = view.attribute("clip").map(|_| view.float("clip", 0.0)).transpose()?.filter(|&clip| clip > 0.0);
    Ok(Recurrence { cell, directions, clip, quantizes_state: false })
}

/// Sizes of a recurrent node.
pub(super) struct Sizes {
    pub steps: u64,
    pub batch: u64,
    pub directions: u64,
    /// Number of columns of all gates.
    pub columns: u64,
    pub units: u64,
}

impl Sizes {
    /// Checks that an input has a shape.
    pub(super) fn check(&self, view: &NodeView, what: &str, part: &Part, shape: &[u64]) -> Result<(), ModelError> {
        if part.ty.shape != shape {
            return Err(view.error(format!("{what} {} must have the sizes {shape:?}", part.ty)));
        }
        Ok(())
    }
}

fn zeros(c: &mut Composer, shape: &[u64]) -> Result<Part, ModelError> {
    let count = require_few(&c.view, shape)?;
    c.floats(DataType::Float32, shape, &vec![0.0; count])
}

/// A recurrent node. Its products with the sequence can be computed in different ways.
pub(super) struct Call {
    pub recurrence: Recurrence,
    pub sizes: Sizes,
    /// Whether the batch is the first dimension instead of the second.
    pub by_batch: bool,
}

impl Call {
    /// The biases added to the products with the sequence, if any, and to those with the state: \[directions, columns].
    pub(super) fn biases(&self, c: &mut Composer) -> Result<(Option<Part>, Part), ModelError> {
        let Sizes { directions, columns: count, .. } = self.sizes;
        if !c.view.has_input(3) {
            return Ok((None, zeros(c, &[directions, count])?));
        }
        let both = c.input(3)?;
        self.sizes.check(&c.view, "the bias", &both, &[directions, 2 * count])?;
        Ok((Some(c.slice(&both, 1, 0, count)?), c.slice(&both, 1, count, count)?))
    }

    /// The node's outputs for sequences without steps, in this type: no y, and the initial states.
    pub(super) fn without_steps(self, mut c: Composer, data_type: DataType) -> Result<Decomposition, ModelError> {
        let Sizes { batch, directions, units, .. } = self.sizes;
        let (y, state) = match self.by_batch {
            true => ([batch, 0, directions, units], [batch, directions, units]),
            false => ([0, directions, batch, units], [directions, batch, units]),
        };
        let zeros = |c: &mut Composer, shape: &[u64]| {
            c.kernel(Kernel::Fill { value: 0.0 }, &[], TensorType::new(data_type, shape))
        };
        let mut outputs = vec![zeros(&mut c, &y)];
        for input in [5, 6].into_iter().take(if self.recurrence.cell.has_cell_state() { 2 } else { 1 }) {
            if !c.view.has_input(input) {
                outputs.push(zeros(&mut c, &state));
                continue;
            }
            let given = c.input(input)?;
            self.sizes.check(&c.view, "an initial state", &given, &state)?;
            outputs.push(given);
        }
        c.finish_all(outputs)
    }

    /// Computes the node's outputs; `gates` is the contribution of the sequence, \[steps, batch, directions, columns].
    pub(super) fn finish(self, c: Composer, gates: &Part, r: &Part, bias: Part) -> Result<Decomposition, ModelError> {
        let Call { recurrence, sizes, by_batch } = self;
        let Sizes { steps, batch, directions, units, columns: count } = sizes;
        let (mut c, cell) = (c, recurrence.cell);
        let gates = c.reshape(gates, &[steps, batch, directions, count])?;
        let lengths = lengths(&mut c, &sizes)?;
        let first_h = state(&mut c, &sizes, 5, by_batch)?;
        let mut inputs = vec![gates, r.clone(), bias, lengths, first_h];
        if cell.has_cell_state() {
            inputs.push(state(&mut c, &sizes, 6, by_batch)?);
            inputs.push(peepholes(&mut c, &sizes)?);
        }
        let ty = |shape: &[u64]| TensorType::new(r.ty.data_type, shape);
        let of_state = ty(&[directions, batch, units]);
        let mut types = vec![ty(&[steps, directions, batch, units]), of_state.clone()];
        types.extend(cell.has_cell_state().then_some(of_state));
        let inputs: Vec<&Part> = inputs.iter().collect();
        let mut outputs = c.kernels(Kernel::Recurrent(recurrence), &inputs, &types);
        if by_batch {
            outputs[0] = c.transpose(&outputs[0], &[2, 0, 1, 3])?;
            for output in &mut outputs[1..] {
                *output = c.transpose(output, &[1, 0, 2])?;
            }
        }
        c.finish_all(outputs)
    }
}

fn recurrent(view: NodeView, cell: RecurrentCell) -> Result<Decomposition, ModelError> {
    let recurrence = recurrence(&view, cell)?;
    let mut c = Composer::new(view);
    let by_batch = view.int("layout", 0)? != 0;
    let (mut x, w, r) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let error = || {
        let reason = format!(
            "input {}, weights {} and recurrent weights {} do not match {} gates and {} directions",
            x.ty,
            w.ty,
            r.ty,
            cell.gates(),
            recurrence.directions.len()
        );
        view.error(reason)
    };
    let (&[first, second, elements], &[w_directions, w_columns, w_elements], &[directions, columns_, units]) =
        (x.ty.shape.as_slice(), w.ty.shape.as_slice(), r.ty.shape.as_slice())
    else {
        return Err(error());
    };
    let fits = elements == w_elements
        && [w_directions, w_columns] == [directions, columns_]
        && directions == recurrence.directions.len() as u64
        && Some(columns_) == units.checked_mul(cell.gates());
    if !fits || w.ty.data_type != x.ty.data_type || r.ty.data_type != x.ty.data_type {
        return Err(error());
    }
    let hidden = view.int("hidden_size", units as i64)?;
    if u64::try_from(hidden) != Ok(units) {
        return Err(
            view.error(format!("attribute hidden_size is {hidden}, but the recurrent weights have {units} units"))
        );
    }
    let (steps, batch) = if by_batch { (second, first) } else { (first, second) };
    let sizes = Sizes { steps, batch, directions, columns: columns_, units };
    let call = Call { recurrence, sizes, by_batch };
    if steps == 0 {
        return call.without_steps(c, x.ty.data_type);
    }
    if by_batch {
        x = c.transpose(&x, &[1, 0, 2])?;
    }
    let rows = product(&view, &[steps, batch])?;
    let all_columns = product(&view, &[directions, columns_])?;
    let (x, w) = (c.reshape(&x, &[rows, elements])?, c.reshape(&w, &[all_columns, elements])?);
    let multiply = Kernel::MatMul {
        transpose_a: false,
        transpose_b: true,
        alpha: 1.0,
        beta: 1.0,
        activation: Activation::None,
        part: ProductPart::Whole,
    };
    let gates = TensorType::new(x.ty.data_type, &[rows, all_columns]);
    let (own, bias) = call.biases(&mut c)?;
    let gates = match own {
        Some(own) => {
            let own = c.reshape(&own, &[all_columns])?;
            c.kernel(multiply, &[&x, &w, &own], gates)
        }
        None => c.kernel(multiply, &[&x, &w], gates),
    };
    call.finish(c, &gates, &r, bias)
}

/// The length of each sequence.
fn lengths(c: &mut Composer, sizes: &Sizes) -> Result<Part, ModelError> {
    if c.view.has_input(4) {
        let lengths = c.input(4)?;
        sizes.check(&c.view, "sequence_lens", &lengths, &[sizes.batch])?;
        return Ok(c.cast(&lengths, DataType::Int32));
    }
    let all = i32::try_from(sizes.steps).map_err(|_| c.view.error(format!("{} steps are too many", sizes.steps)))?;
    let count = require_few(&c.view, &[sizes.batch])?;
    c.integers(DataType::Int32, &[sizes.batch], &vec![i64::from(all); count])
}

/// An initial state: an input, or zeros.
fn state(c: &mut Composer, sizes: &Sizes, i: usize, by_batch: bool) -> Result<Part, ModelError> {
    let (directions, batch, units) = (sizes.directions, sizes.batch, sizes.units);
    if !c.view.has_input(i) {
        return zeros(c, &[directions, batch, units]);
    }
    let state = c.input(i)?;
    if by_batch {
        sizes.check(&c.view, "an initial state", &state, &[batch, directions, units])?;
        return c.transpose(&state, &[1, 0, 2]);
    }
    sizes.check(&c.view, "an initial state", &state, &[directions, batch, units])?;
    Ok(state)
}

fn peepholes(c: &mut Composer, sizes: &Sizes) -> Result<Part, ModelError> {
    let shape = [sizes.directions, 3 * sizes.units];
    if !c.view.has_input(7) {
        return zeros(c, &shape);
    }
    let peepholes = c.input(7)?;
    sizes.check(&c.view, "the peepholes", &peepholes, &shape)?;
    Ok(peepholes)
}
