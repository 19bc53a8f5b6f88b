//! Recurrences: the computation of recurrent networks at every step of a sequence.
//!
//! Gates are stored one after another, each with as many columns as the state: input, output, forget and cell for an LSTM; update, reset
//! and candidate for a GRU; a single one for a simple network. The contribution of the sequence's elements is computed beforehand, for all
//! steps at once; the kernel adds the contribution of the state.

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
    /// The number by which shaders know the function.
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

    /// The parameters, alpha first; 0 for those that the function does not have.
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

/// The computation of a step from the gates and the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentCell {
    /// c = f c + i g, h = o act(c), with peepholes from c to the gates.
    Lstm {
        /// The forget gate is 1 minus the input gate.
        couples_forget: bool,
    },
    /// h = (1 - z) candidate + z h.
    Gru {
        /// Whether the reset gate acts on the state's contribution to the candidate, rather than on the state from which it is computed.
        resets_after: bool,
    },
    /// h = act(gate).
    Simple,
}

impl RecurrentCell {
    /// Number of gates.
    pub const fn gates(self) -> u64 {
        match self {
            RecurrentCell::Lstm { .. } => 4,
            RecurrentCell::Gru { .. } => 3,
            RecurrentCell::Simple => 1,
        }
    }

    /// Whether the cell has a second state, c, with peepholes.
    pub const fn has_cell_state(self) -> bool {
        matches!(self, RecurrentCell::Lstm { .. })
    }

    /// Numbers of operands and results of `Recurrent`.
    ///
    /// ```
    /// use forebay_base::kernel::RecurrentCell;
    ///
    /// assert_eq!(RecurrentCell::Simple.counts(), (5, 2));
    /// ```
    pub const fn counts(self) -> (usize, usize) {
        if self.has_cell_state() { (7, 3) } else { (5, 2) }
    }

    /// How many operands of `RecurrentGradient` come before those of `Recurrent` (its output comes after them), and the number of
    /// results.
    ///
    /// ```
    /// use forebay_base::kernel::RecurrentCell;
    ///
    /// assert_eq!(RecurrentCell::Lstm { couples_forget: false }.gradient_counts(), (3, 5));
    /// ```
    pub const fn gradient_counts(self) -> (usize, usize) {
        match self {
            RecurrentCell::Lstm { .. } => (3, 5),
            RecurrentCell::Gru { .. } => (2, 4),
            RecurrentCell::Simple => (2, 3),
        }
    }
}

/// One direction in which a sequence is processed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentDirection {
    /// Whether it runs from the last element of a sequence to the first.
    pub reverse: bool,
    /// The functions applied to the gates, to the candidate (or the cell gate), and to c. Cells with fewer functions use the first ones.
    pub activations: [RecurrentActivation; 3],
}

/// A recurrence: the parameters of `Recurrent` and `RecurrentGradient`.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    /// The computation of a step.
    pub cell: RecurrentCell,
    /// One or two directions, each with separate weights and states.
    pub directions: Vec<RecurrentDirection>,
    /// If set, the arguments of the gates' functions are clipped to -clip..clip.
    pub clip: Option<f32>,
    /// Whether the state of each sequence is rounded to 256 steps over the range that its values and zero span ([`state_steps`]), as in
    /// `DynamicQuantizeLinear`, before it is multiplied by the weights. There is no gradient then.
    pub quantizes_state: bool,
}

/// The quantization parameters of a state with this least and largest element: the scale, and the zero point that is added before values
/// are clipped to 0..255.
pub fn state_steps(least: f32, largest: f32) -> (f32, f32) {
    let (least, largest) = (least.min(0.0), largest.max(0.0));
    let scale = if largest == least { 1.0 } else { (largest - least) / 255.0 };
    (scale, (-least / scale).clamp(0.0, 255.0).round_ties_even())
}
