//! Optimizers as formulas of kernels: the nodes of a parameter's update, which lowering puts into the update phase.
//!
//! The last node of each new value updates the old value in place (`lower/update.rs`). An average, old weight + new (1 - weight), is
//! therefore written as old + (new - old) (1 - weight), and a step as the parameter minus everything subtracted from it.

use forebay_base::Kernel;
use forebay_base::kernel::{BinaryOp, UnaryOp};

use super::formula::Formula;
use super::optimizer::Optimizer;
use crate::graph::{Graph, TensorType, Update, ValueId};
use crate::tensor::Contents;

/// The update of one parameter.
struct Rule<'f, 'g, 'h> {
    f: &'f mut Formula<'g>,
    parameter: ValueId,
    gradient: ValueId,
    /// The optimizer's hyperparameters, as scalars in order.
    numbers: &'h [ValueId],
    /// Whether the parameter decays.
    decays: bool,
    states: Vec<ValueId>,
}

/// Returns the hyperparameters as scalars.
pub(super) fn scalars(graph: &mut Graph, hyperparameters: ValueId) -> Vec<ValueId> {
    let mut f = Formula::new(graph, "update");
    let ty = f.ty(hyperparameters);
    let mut scalar = |i| {
        let kernel = Kernel::Slice { starts: vec![i], steps: vec![1] };
        let one = f.one(kernel, &[hyperparameters], TensorType::new(ty.data_type, &[1]));
        f.reshape(one, &[])
    };
    (0..ty.shape[0]).map(&mut scalar).collect()
}

/// Appends the update of a parameter. Returns its states.
pub(super) fn append(
    graph: &mut Graph,
    (parameter, gradient): (ValueId, ValueId),
    optimizer: &Optimizer,
    numbers: &[ValueId],
    decays: bool,
) -> Vec<ValueId> {
    let start = graph.nodes.len();
    let mut f = Formula::new(graph, "update");
    let mut rule = Rule { f: &mut f, parameter, gradient, numbers, decays, states: Vec::new() };
    match *optimizer {
        Optimizer::RmsProp { momentum, centered, .. } => rule.rms_prop(momentum != 0.0, centered),
        Optimizer::Adagrad { .. } => rule.adagrad(),
        Optimizer::Lion { .. } => rule.lion(),
        Optimizer::Lamb { .. } => rule.lamb(),
        Optimizer::Adafactor { .. } => rule.adafactor(),
        Optimizer::DampedSgd { .. } => rule.damped_sgd(),
        Optimizer::AmsGrad { decoupled, .. } => rule.ams_grad(decoupled),
        Optimizer::AdaMax { .. } => rule.ada_max(),
        Optimizer::NAdam { decoupled, .. } => rule.n_adam(decoupled),
        Optimizer::RAdam { decoupled, .. } => rule.r_adam(decoupled),
        Optimizer::Adadelta { .. } => rule.adadelta(),
        Optimizer::Sgd { .. } | Optimizer::Adam { .. } | Optimizer::Adam8Bit { .. } => {
            unreachable!("these are kernels")
        }
    }
    let states = rule.states;
    let name = graph.value(parameter).name.clone();
    for node in &mut graph.nodes[start..] {
        node.name.clone_from(&name);
    }
    states
}

impl Rule<'_, '_, '_> {
    /// Adds a state that is initialized with zeros.
    fn state(&mut self, suffix: &str, shape: &[u64]) -> ValueId {
        let parameter = self.f.graph.value(self.parameter).name.clone();
        let contents = Contents::zeros(TensorType::new(self.f.ty(self.parameter).data_type, shape));
        let state = self.f.graph.add_initializer(&format!("{parameter}.{suffix}"), contents);
        self.states.push(state);
        state
    }

    fn shape(&self) -> Vec<u64> {
        self.f.ty(self.parameter).shape
    }

    /// Updates a state with a value.
    fn take(&mut self, state: ValueId, value: ValueId) {
        self.f.graph.updates.push(Update { state, value });
    }

    /// Updates a state with old weight + new (1 - weight), given 1 - weight.
    fn average(&mut self, old: ValueId, new: ValueId, rest: ValueId) -> ValueId {
        let value = self.moved(old, new, rest);
        self.take(old, value);
        value
    }

    /// Returns old weight + new (1 - weight), given 1 - weight, without updating a state.
    fn moved(&mut self, old: ValueId, new: ValueId, rest: ValueId) -> ValueId {
        let distance = self.f.subtract(new, old);
        let distance = self.f.multiply(distance, rest);
        self.f.add(old, distance)
    }

    /// Returns the gradient plus that of the L2 penalty.
    fn penalized(&mut self, decay: ValueId) -> ValueId {
        match self.decays {
            true => {
                let penalty = self.f.multiply(self.parameter, decay);
                self.f.add(self.gradient, penalty)
            }
            false => self.gradient,
        }
    }

    /// Moves the parameter against a direction.
    fn step(&mut self, direction: ValueId, size: ValueId) {
        let step = self.f.multiply(direction, size);
        self.leave(step);
    }

    fn leave(&mut self, step: ValueId) {
        let value = self.f.subtract(self.parameter, step);
        self.take(self.parameter, value);
    }

    /// Returns x / (sqrt(squares) + epsilon).
    fn by_root(&mut self, x: ValueId, squares: ValueId, epsilon: ValueId) -> ValueId {
        let root = self.f.unary(UnaryOp::Sqrt, squares);
        let divisor = self.f.add(root, epsilon);
        self.f.divide(x, divisor)
    }

    /// Returns the square root of the sum of squares.
    fn norm(&mut self, x: ValueId) -> ValueId {
        let squares = self.f.multiply(x, x);
        let sum = self.f.total(squares);
        self.f.unary(UnaryOp::Sqrt, sum)
    }

    fn rms_prop(&mut self, has_momentum: bool, centered: bool) {
        let &[rate, rest, epsilon, decay, momentum_rest] = self.numbers else { unreachable!("five numbers") };
        let shape = self.shape();
        let squares = self.state("square_average", &shape);
        let mean = centered.then(|| self.state("gradient_average", &shape));
        let velocity = has_momentum.then(|| self.state("velocity", &shape));
        let gradient = self.penalized(decay);
        let square = self.f.multiply(gradient, gradient);
        let mut squares = self.average(squares, square, rest);
        if let Some(mean) = mean {
            let mean = self.average(mean, gradient, rest);
            let square = self.f.multiply(mean, mean);
            squares = self.f.subtract(squares, square);
        }
        let mut direction = self.by_root(gradient, squares, epsilon);
        if let Some(velocity) = velocity {
            direction = self.kept(velocity, direction, momentum_rest);
        }
        self.step(direction, rate);
    }

    /// Updates a state with old weight + new, given 1 - weight.
    fn kept(&mut self, old: ValueId, new: ValueId, rest: ValueId) -> ValueId {
        let lost = self.f.multiply(old, rest);
        let change = self.f.subtract(new, lost);
        let value = self.f.add(old, change);
        self.take(old, value);
        value
    }

    fn damped_sgd(&mut self) {
        let &[rate, momentum_rest, taken, decay] = self.numbers else { unreachable!("four numbers") };
        let shape = self.shape();
        let velocity = self.state("velocity", &shape);
        let gradient = self.penalized(decay);
        let gradient = self.f.multiply(gradient, taken);
        let direction = self.kept(velocity, gradient, momentum_rest);
        self.step(direction, rate);
    }

    /// Returns the gradient, with the L2 penalty unless decay is decoupled, and updates both moments with it.
    fn moments(&mut self, [rest1, rest2, decay]: [ValueId; 3], decoupled: bool) -> [ValueId; 3] {
        let shape = self.shape();
        let (first, second) = (self.state("first_moment", &shape), self.state("second_moment", &shape));
        let gradient = if decoupled { self.gradient } else { self.penalized(decay) };
        let first = self.average(first, gradient, rest1);
        let square = self.f.multiply(gradient, gradient);
        let second = self.average(second, square, rest2);
        [gradient, first, second]
    }

    /// Moves the parameter against a direction and, if decay is decoupled, lets it decay.
    fn step_with_decay(&mut self, direction: ValueId, [rate, decay]: [ValueId; 2], decoupled: bool) {
        let direction = if decoupled { self.decayed(direction, decay) } else { direction };
        self.step(direction, rate);
    }

    fn ams_grad(&mut self, decoupled: bool) {
        let &[rate, rest1, rest2, epsilon, decay, correction1, correction2] = self.numbers else {
            unreachable!("seven numbers")
        };
        let [_, first, second] = self.moments([rest1, rest2, decay], decoupled);
        let shape = self.shape();
        let largest = self.state("largest_second_moment", &shape);
        let second = self.f.binary(BinaryOp::Maximum, largest, second);
        self.take(largest, second);
        let (first, second) = (self.f.multiply(first, correction1), self.f.multiply(second, correction2));
        let direction = self.by_root(first, second, epsilon);
        self.step_with_decay(direction, [rate, decay], decoupled);
    }

    fn ada_max(&mut self) {
        let &[rate, rest1, rest2, epsilon, decay] = self.numbers else { unreachable!("five numbers") };
        let shape = self.shape();
        let (first, largest) = (self.state("first_moment", &shape), self.state("largest_gradient", &shape));
        let gradient = self.penalized(decay);
        let first = self.average(first, gradient, rest1);
        let size = self.f.unary(UnaryOp::Abs, gradient);
        let size = self.f.add(size, epsilon);
        // The larger of the size and what remains of the old one, as a change of the old one.
        let lost = self.f.multiply(largest, rest2);
        let lost = self.f.scaled(lost, -1.0);
        let gained = self.f.subtract(size, largest);
        let change = self.f.binary(BinaryOp::Maximum, gained, lost);
        let value = self.f.add(largest, change);
        self.take(largest, value);
        let direction = self.f.divide(first, value);
        self.step(direction, rate);
    }

    fn n_adam(&mut self, decoupled: bool) {
        let &[rate, rest1, rest2, epsilon, decay, correction2, of_gradient, of_moment] = self.numbers else {
            unreachable!("eight numbers")
        };
        let [gradient, first, second] = self.moments([rest1, rest2, decay], decoupled);
        let second = self.f.multiply(second, correction2);
        let (gradient, first) = (self.f.multiply(gradient, of_gradient), self.f.multiply(first, of_moment));
        let sum = self.f.add(gradient, first);
        let direction = self.by_root(sum, second, epsilon);
        self.step_with_decay(direction, [rate, decay], decoupled);
    }

    fn r_adam(&mut self, decoupled: bool) {
        let &[rate, rest1, rest2, epsilon, decay, by_root, by_one] = self.numbers else {
            unreachable!("seven numbers")
        };
        let [_, first, second] = self.moments([rest1, rest2, decay], decoupled);
        let divided = self.by_root(first, second, epsilon);
        let (divided, whole) = (self.f.multiply(divided, by_root), self.f.multiply(first, by_one));
        let direction = self.f.add(divided, whole);
        self.step_with_decay(direction, [rate, decay], decoupled);
    }

    fn adadelta(&mut self) {
        let &[rate, rest, epsilon, decay] = self.numbers else { unreachable!("four numbers") };
        let shape = self.shape();
        let (squares, steps) = (self.state("square_average", &shape), self.state("step_square_average", &shape));
        let gradient = self.penalized(decay);
        let square = self.f.multiply(gradient, gradient);
        let squares = self.average(squares, square, rest);
        let mut root = |squares: ValueId| {
            let shifted = self.f.add(squares, epsilon);
            self.f.unary(UnaryOp::Sqrt, shifted)
        };
        let (of_gradients, of_steps) = (root(squares), root(steps));
        let ratio = self.f.divide(of_steps, of_gradients);
        let direction = self.f.multiply(ratio, gradient);
        let square = self.f.multiply(direction, direction);
        self.average(steps, square, rest);
        self.step(direction, rate);
    }

    fn adagrad(&mut self) {
        let &[rate, epsilon, decay] = self.numbers else { unreachable!("three numbers") };
        let shape = self.shape();
        let squares = self.state("square_sum", &shape);
        let gradient = self.penalized(decay);
        let square = self.f.multiply(gradient, gradient);
        let sum = self.f.add(squares, square);
        self.take(squares, sum);
        let direction = self.by_root(gradient, sum, epsilon);
        self.step(direction, rate);
    }

    /// Returns a direction plus the parameter's decay at the same rate.
    fn decayed(&mut self, direction: ValueId, decay: ValueId) -> ValueId {
        match self.decays {
            true => {
                let lost = self.f.multiply(self.parameter, decay);
                self.f.add(direction, lost)
            }
            false => direction,
        }
    }

    fn lion(&mut self) {
        let &[rate, rest1, rest2, decay] = self.numbers else { unreachable!("four numbers") };
        let shape = self.shape();
        let moment = self.state("first_moment", &shape);
        let ahead = self.moved(moment, self.gradient, rest1);
        let sign = self.f.unary(UnaryOp::Sign, ahead);
        let direction = self.decayed(sign, decay);
        self.average(moment, self.gradient, rest2);
        self.step(direction, rate);
    }

    fn lamb(&mut self) {
        let &[rate, rest1, rest2, epsilon, decay, correction1, correction2] = self.numbers else {
            unreachable!("seven numbers")
        };
        let [_, first, second] = self.moments([rest1, rest2, decay], true);
        let (first, second) = (self.f.multiply(first, correction1), self.f.multiply(second, correction2));
        let direction = self.by_root(first, second, epsilon);
        let direction = self.decayed(direction, decay);
        let (size, length) = (self.norm(self.parameter), self.norm(direction));
        // If either is 0, the rate is not scaled.
        let product = self.f.multiply(size, length);
        let (zero, one) = (self.f.number(0.0), self.f.number(1.0));
        let is_known = self.f.binary(BinaryOp::Greater, product, zero);
        let trust = self.f.divide(size, length);
        let trust = self.f.select(is_known, trust, one);
        let size = self.f.multiply(trust, rate);
        self.step(direction, size);
    }

    /// Returns the mean along an axis, which is kept.
    fn mean_along(&mut self, x: ValueId, axis: usize) -> ValueId {
        let size = self.f.ty(x).shape[axis];
        let sum = self.f.sum(x, &[axis]);
        self.f.scaled(sum, (1.0 / size as f64) as f32)
    }

    fn root_mean_square(&mut self, x: ValueId) -> ValueId {
        let count = self.f.ty(x).count();
        let norm = self.norm(x);
        self.f.scaled(norm, (1.0 / (count as f64).sqrt()) as f32)
    }

    fn adafactor(&mut self) {
        let &[rate, rest, epsilon, epsilon_squared, least, lost, threshold_rest] = self.numbers else {
            unreachable!("seven numbers")
        };
        let shape = self.shape();
        let square = self.f.multiply(self.gradient, self.gradient);
        let squares = if let [.., rows, columns] = *shape.as_slice() {
            let outer = &shape[..shape.len() - 2];
            let rows_state = self.state("row_squares", &[outer, &[rows, 1]].concat());
            let columns_state = self.state("column_squares", &[outer, &[1, columns]].concat());
            let (of_rows, of_columns) =
                (self.mean_along(square, shape.len() - 1), self.mean_along(square, shape.len() - 2));
            let of_rows = self.average(rows_state, of_rows, rest);
            let of_columns = self.average(columns_state, of_columns, rest);
            let product = self.f.multiply(of_rows, of_columns);
            let mean = self.mean_along(of_rows, shape.len() - 2);
            let mean = self.f.binary(BinaryOp::Maximum, mean, epsilon);
            self.f.divide(product, mean)
        } else {
            let state = self.state("squares", &shape);
            self.average(state, square, rest)
        };
        let squares = self.f.binary(BinaryOp::Maximum, squares, epsilon_squared);
        let root = self.f.unary(UnaryOp::Sqrt, squares);
        let direction = self.f.divide(self.gradient, root);
        let (size, length) = (self.root_mean_square(self.parameter), self.root_mean_square(direction));
        let size = self.f.binary(BinaryOp::Maximum, size, least);
        let size = self.f.multiply(size, rate);
        let over = self.f.multiply(length, threshold_rest);
        let one = self.f.number(1.0);
        let over = self.f.binary(BinaryOp::Maximum, over, one);
        let size = self.f.divide(size, over);
        let mut step = self.f.multiply(direction, size);
        if self.decays {
            let decay = self.f.multiply(self.parameter, lost);
            step = self.f.add(step, decay);
        }
        self.leave(step);
    }
}
