//! Recurrences: what the kernels of recurrent networks compute at every step of a sequence.
//!
//! Gates stand one after the other, each with as many columns as the state has: input, output, forget and cell of an LSTM, update,
//! reset and candidate of a GRU, one of a simple network. What the sequence's elements add to them is computed before, for all steps
//! at once; the kernel adds what the state adds.

/// A function that a recurrence applies to its gates or its state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RecurrentActivation {
    /// Hyperbolic tangent.
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// max(x, 0).
    Relu,
    /// alpha x + beta.
    Affine {
        /// Factor.
        alpha: f32,
        /// Summand.
        beta: f32,
    },
    /// x for x >= 0, else alpha x.
    LeakyRelu {
        /// Slope below 0.
        alpha: f32,
    },
    /// x for x > alpha, else 0.
    ThresholdedRelu {
        /// The threshold.
        alpha: f32,
    },
    /// alpha tanh(beta x).
    ScaledTanh {
        /// Factor of the result.
        alpha: f32,
        /// Factor of the argument.
        beta: f32,
    },
    /// max(0, min(1, alpha x + beta)).
    HardSigmoid {
        /// Factor.
        alpha: f32,
        /// Summand.
        beta: f32,
    },
    /// x for x >= 0, else alpha (exp(x) - 1).
    Elu {
        /// Scale below 0.
        alpha: f32,
    },
    /// x / (1 + |x|).
    Softsign,
    /// ln(1 + exp(x)).
    Softplus,
}

impl RecurrentActivation {
    /// The number by which shaders know it.
    pub const fn opcode(self) -> u32 {
        match self {
            RecurrentActivation::Tanh => 0,
            RecurrentActivation::Sigmoid => 1,
            RecurrentActivation::Relu => 2,
            RecurrentActivation::Affine { .. } => 3,
            RecurrentActivation::LeakyRelu { .. } => 4,
            RecurrentActivation::ThresholdedRelu { .. } => 5,
            RecurrentActivation::ScaledTanh { .. } => 6,
            RecurrentActivation::HardSigmoid { .. } => 7,
            RecurrentActivation::Elu { .. } => 8,
            RecurrentActivation::Softsign => 9,
            RecurrentActivation::Softplus => 10,
        }
    }

    /// Its numbers, alpha first; 0 for those that it does not have.
    pub const fn arguments(self) -> [f32; 2] {
        match self {
            RecurrentActivation::Affine { alpha, beta }
            | RecurrentActivation::ScaledTanh { alpha, beta }
            | RecurrentActivation::HardSigmoid { alpha, beta } => [alpha, beta],
            RecurrentActivation::LeakyRelu { alpha }
            | RecurrentActivation::ThresholdedRelu { alpha }
            | RecurrentActivation::Elu { alpha } => [alpha, 0.0],
            RecurrentActivation::Tanh
            | RecurrentActivation::Sigmoid
            | RecurrentActivation::Relu
            | RecurrentActivation::Softsign
            | RecurrentActivation::Softplus => [0.0; 2],
        }
    }
}

/// What a step computes of gates and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentCell {
    /// c = f c + i g, h = o act(c), with peepholes from c to the gates.
    Lstm {
        /// The forget gate is 1 minus the input gate.
        couples_forget: bool,
    },
    /// h = (1 - z) candidate + z h.
    Gru {
        /// The reset gate acts on what the state adds to the candidate, else on the state before that is computed.
        resets_after: bool,
    },
    /// h = act(gate).
    Simple,
}

impl RecurrentCell {
    /// How many gates it has.
    pub const fn gates(self) -> u64 {
        match self {
            RecurrentCell::Lstm { .. } => 4,
            RecurrentCell::Gru { .. } => 3,
            RecurrentCell::Simple => 1,
        }
    }

    /// Whether it has a second state, c, with peepholes.
    pub const fn has_cell_state(self) -> bool {
        matches!(self, RecurrentCell::Lstm { .. })
    }
}

/// One direction in which a sequence is gone through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentDirection {
    /// From a sequence's last element to its first.
    pub reverse: bool,
    /// What is applied to the gates, to the candidate (or the cell gate), and to c. Cells with fewer use the first ones.
    pub activations: [RecurrentActivation; 3],
}

/// A recurrence: the parameters of `Recurrent` and `RecurrentGradient`.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    /// What a step computes.
    pub cell: RecurrentCell,
    /// One or two directions, each with weights and states of its own.
    pub directions: Vec<RecurrentDirection>,
    /// The arguments of the gates' functions are cut to -clip..clip.
    pub clip: Option<f32>,
    /// Before a state is multiplied by the weights, each sequence's own is rounded to 256 steps of its range and zero
    /// ([`state_steps`]), as `DynamicQuantizeLinear` does. There is no gradient then.
    pub quantizes_state: bool,
}

/// How the elements of a state become multiples of a scale: the scale, and the zero point that is added before they are cut to 0..255.
/// The state's least and largest element are given.
pub fn state_steps(least: f32, largest: f32) -> (f32, f32) {
    let (least, largest) = (least.min(0.0), largest.max(0.0));
    let scale = if largest == least { 1.0 } else { (largest - least) / 255.0 };
    (scale, (-least / scale).clamp(0.0, 255.0).round_ties_even())
}
