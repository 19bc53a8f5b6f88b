//! Random eager programs as plain data.

/// A stream's number; 0 is the default stream. No number is used twice.
pub type StreamName = usize;
/// The number of a tensor handle. No number is used twice.
pub type TensorName = usize;
/// An event's number.
pub type EventName = usize;

/// How a tensor is created.
#[derive(Clone, Debug)]
pub enum Operator {
    FromHost { shape: Vec<u64>, values: Vec<f32> },
    Zeros { shape: Vec<u64> },
    Add,
    AddNumber(f32),
    Mul,
    MatMul,
    Relu,
    Sum,
}

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Step {
    NewStream { stream: StreamName, priority: i32 },
    DropStream { stream: StreamName },
    Compute { stream: StreamName, operator: Operator, inputs: Vec<TensorName>, output: TensorName },
    CopyFrom { stream: StreamName, to: TensorName, from: TensorName },
    Clone { of: TensorName, clone: TensorName },
    Drop { tensor: TensorName },
    ToHost { stream: StreamName, tensor: TensorName },
    Record { event: EventName, stream: StreamName, timing: bool },
    QueryStream { stream: StreamName },
    QueryEvent { event: EventName },
    Synchronize(Synchronization),
}

/// The ways for a program to ensure an order.
#[derive(Clone, Copy, Debug)]
pub enum Synchronization {
    /// Later work of a stream comes after all earlier work of another.
    WaitStream { stream: StreamName, on: StreamName },
    /// Later work of a stream comes after an event.
    WaitEvent { stream: StreamName, event: EventName },
    /// The host waits for a stream.
    Stream(StreamName),
    /// The host waits for an event.
    Event(EventName),
    /// The host waits for everything.
    All,
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub steps: Vec<Step>,
}

impl Program {
    /// Returns the positions of its synchronizations.
    pub fn synchronizations(&self) -> Vec<usize> {
        let is = |&index: &usize| matches!(self.steps[index], Step::Synchronize(_));
        (0..self.steps.len()).filter(is).collect()
    }

    /// Returns the program without one of its steps.
    pub fn without(&self, index: usize) -> Program {
        let mut program = self.clone();
        program.steps.remove(index);
        program
    }

    /// Returns the program as text for messages: how to generate it again, and one step per line.
    pub fn text(&self) -> String {
        let lines: Vec<String> = self.steps.iter().map(|step| format!("  {step:?}")).collect();
        format!("seed {}\n{}", self.seed, lines.join("\n"))
    }
}
