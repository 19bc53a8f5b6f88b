//! Functions of single elements.

/// Function of one variable, elementwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnaryOp {
    /// max(x, 0). The gradient at 0 is 0.
    Relu,
    /// x for x >= 0, else alpha x.
    LeakyRelu {
        /// Slope below 0.
        alpha: f32,
    },
    /// x for x >= 0, else alpha (exp(x) - 1).
    Elu {
        /// Scale below 0.
        alpha: f32,
    },
    /// min(max(x, low), high). The gradient is 1 inside and on the limits, as in PyTorch's clamp.
    Clip {
        /// Lower limit.
        low: f32,
        /// Upper limit.
        high: f32,
    },
    /// scale x + shift. Also negation (-1, 0).
    Affine {
        /// Factor.
        scale: f32,
        /// Summand.
        shift: f32,
    },
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// max(0, min(1, alpha x + beta)).
    HardSigmoid {
        /// Factor.
        alpha: f32,
        /// Summand.
        beta: f32,
    },
    /// Hyperbolic tangent.
    Tanh,
    /// exp(x).
    Exp,
    /// ln(x).
    Log,
    /// Square root.
    Sqrt,
    /// 1 / x.
    Reciprocal,
    /// |x|.
    Abs,
    /// -1, 0 or 1.
    Sign,
    /// Largest integer not above x.
    Floor,
    /// Smallest integer not below x.
    Ceil,
    /// Error function.
    Erf,
    /// x / 2 (1 + erf(x / sqrt 2)).
    Gelu,
    /// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), an approximation of [`UnaryOp::Gelu`].
    TanhGelu,
    /// ln(1 + exp(x)).
    Softplus,
    /// x sigmoid(x).
    Silu,
    /// x min(max(x / 6 + 1 / 2, 0), 1).
    HardSwish,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Logical not (bool to bool).
    Not,
    /// The nearest integer; ties go to the even one.
    Round,
    /// Tangent.
    Tan,
    /// Inverse sine.
    Asin,
    /// Inverse cosine.
    Acos,
    /// Inverse tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
}

impl UnaryOp {
    /// Whether the gradient is computed from the output y (otherwise from the input x).
    pub fn gradient_uses_output(self) -> bool {
        matches!(
            self,
            UnaryOp::Relu
                | UnaryOp::Sigmoid
                | UnaryOp::Tanh
                | UnaryOp::Exp
                | UnaryOp::Sqrt
                | UnaryOp::Reciprocal
                | UnaryOp::Tan
        )
    }
}

/// Function of two variables, elementwise. Comparisons and logical functions return bool; the others keep the operands' type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOp {
    /// a + b.
    Add,
    /// a - b.
    Subtract,
    /// a x b.
    Multiply,
    /// a / b (integers truncate).
    Divide,
    /// a to the power b.
    Power,
    /// The smaller; NaN if either is.
    Minimum,
    /// The larger; NaN if either is.
    Maximum,
    /// a = b.
    Equal,
    /// a < b.
    Less,
    /// a <= b.
    LessOrEqual,
    /// a > b.
    Greater,
    /// a >= b.
    GreaterOrEqual,
    /// Both (bool).
    And,
    /// Either (bool).
    Or,
    /// Exactly one (bool).
    Xor,
    /// The remainder of a divided by b, with the sign of b (0 if b is an integer 0).
    Modulo,
    /// The remainder of a divided by b, with the sign of a (0 if b is an integer 0).
    Remainder,
    /// Bitwise and (integers).
    BitAnd,
    /// Bitwise or (integers).
    BitOr,
    /// Bitwise exclusive or (integers).
    BitXor,
    /// The bits of a shifted left by b (integers); 0 if b is at least the number of bits.
    ShiftLeft,
    /// The bits of a shifted right by b (integers); 0 if b is at least the number of bits.
    ShiftRight,
}

impl BinaryOp {
    /// Whether the result is boolean.
    pub fn is_comparison(self) -> bool {
        !matches!(
            self,
            BinaryOp::Add
                | BinaryOp::Subtract
                | BinaryOp::Multiply
                | BinaryOp::Divide
                | BinaryOp::Power
                | BinaryOp::Minimum
                | BinaryOp::Maximum
                | BinaryOp::Modulo
                | BinaryOp::Remainder
                | BinaryOp::BitAnd
                | BinaryOp::BitOr
                | BinaryOp::BitXor
                | BinaryOp::ShiftLeft
                | BinaryOp::ShiftRight
        )
    }
}
