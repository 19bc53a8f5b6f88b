//! Generates random programs whose synchronizations suffice for their hazards on tensors. It does not synchronize for the reuse of memory:
//! that is the runtime's task.

use crate::order::{Access, Order};
use crate::program::{EventName, Operator, Program, Step, StreamName, Synchronization, TensorName};
use crate::reference::{Array, Reference, evaluate};
use forebay_testing::Random;

/// The properties of generated programs.
pub struct Recipe {
    /// The minimum and maximum work of a program: operations and copies.
    pub work: (usize, usize),
    /// The maximum number of streams that exist at once.
    pub streams: usize,
    /// The maximum number of tensor handles that exist at once.
    pub tensors: usize,
    /// Shapes of new tensors.
    pub shapes: &'static [&'static [u64]],
    /// The maximum number of events that measure time.
    pub timing_events: usize,
    /// The percentage of steps that do something other than work: queries, more synchronization, ...
    pub idle_percent: u64,
}

struct Generator<'a> {
    recipe: &'a Recipe,
    random: Random,
    steps: Vec<Step>,
    tensors: Reference,
    order: Order,
    /// The existing streams.
    streams: Vec<StreamName>,
    stream_count: usize,
    tensor_count: usize,
    event_count: usize,
    timing_count: usize,
    work_count: usize,
}

/// Generates the program of a seed.
pub fn generate(seed: u64, recipe: &Recipe) -> Program {
    let mut generator = Generator {
        recipe,
        random: Random::new(seed),
        steps: Vec::new(),
        tensors: Reference::default(),
        order: Order::default(),
        streams: vec![0],
        stream_count: 1,
        tensor_count: 0,
        event_count: 0,
        timing_count: 0,
        work_count: 0,
    };
    let work = generator.random.between(recipe.work.0, recipe.work.1);
    let streams = generator.random.between(1, recipe.streams);
    (1..streams).for_each(|_| generator.new_stream());
    while generator.work_count < work {
        if generator.random.percent(recipe.idle_percent) {
            generator.idle();
        } else {
            generator.work();
        }
    }
    Program { seed, steps: generator.steps }
}

impl Generator<'_> {
    fn emit(&mut self, step: Step) {
        self.order.apply(&step, &self.tensors);
        self.tensors.apply(&step);
        self.steps.push(step);
    }

    fn stream(&mut self) -> StreamName {
        self.streams[self.random.index(self.streams.len())]
    }

    fn tensor(&mut self) -> Option<TensorName> {
        let tensors = self.tensors.tensors();
        self.random.pick(&tensors)
    }

    fn new_stream(&mut self) {
        let priority = if self.random.percent(20) { -1 } else { 0 };
        self.emit(Step::NewStream { stream: self.stream_count, priority });
        self.streams.push(self.stream_count);
        self.stream_count += 1;
    }

    /// Emits one step that uses tensors.
    fn work(&mut self) {
        let stream = self.stream();
        let full = self.tensors.tensors().len() >= self.recipe.tensors;
        match self.random.below(100) {
            _ if full => self.drop_tensor(),
            0..=17 => self.new_tensor(stream),
            18..=29 => self.drop_tensor(),
            30..=37 => self.copy_from(stream),
            38..=40 => self.clone_tensor(),
            41..=47 => self.read(stream),
            _ => self.operate(stream),
        }
    }

    fn idle(&mut self) {
        match self.random.below(10) {
            0 if self.streams.len() < self.recipe.streams => self.new_stream(),
            1 if self.streams.len() > 1 => {
                let place = self.random.between(1, self.streams.len() - 1);
                let stream = self.streams.remove(place);
                self.emit(Step::DropStream { stream });
            }
            2 => {
                let stream = self.stream();
                self.emit(Step::QueryStream { stream });
            }
            3 if self.event_count > 0 => {
                let event = self.random.index(self.event_count);
                self.emit(Step::QueryEvent { event });
            }
            4 | 5 => {
                let stream = self.stream();
                let again = self.event_count > 0 && self.random.percent(30);
                let event = if again { Some(self.random.index(self.event_count)) } else { None };
                self.record(stream, event);
            }
            _ => {
                let (stream, other) = (self.stream(), self.stream());
                let synchronization = match self.random.below(8) {
                    0 => Synchronization::Stream(other),
                    1 if self.event_count > 0 => Synchronization::Event(self.random.index(self.event_count)),
                    2 | 3 if self.event_count > 0 => {
                        Synchronization::WaitEvent { stream, event: self.random.index(self.event_count) }
                    }
                    4 if self.random.percent(20) => Synchronization::All,
                    _ => Synchronization::WaitStream { stream, on: other },
                };
                self.emit(Step::Synchronize(synchronization));
            }
        }
    }

    /// Records an event: the given one again, or a new one.
    fn record(&mut self, stream: StreamName, event: Option<EventName>) -> EventName {
        let event = event.unwrap_or(self.event_count);
        let new = event == self.event_count;
        let timing = new && self.timing_count < self.recipe.timing_events && self.random.percent(20);
        self.event_count += usize::from(new);
        self.timing_count += usize::from(timing);
        self.emit(Step::Record { event, stream, timing });
        event
    }

    /// Synchronizes until work on a stream that uses these storages may be submitted.
    fn come_after(&mut self, stream: StreamName, reads: &[usize], writes: &[usize]) {
        while let Some(access) = self.order.missing(stream, reads, writes) {
            self.synchronize(stream, access);
        }
    }

    /// Orders a stream's later work after an access, in one of many ways.
    fn synchronize(&mut self, stream: StreamName, access: Access) {
        let on = access.0;
        let recorded = self.order.events_behind(access);
        let recorded = self.random.pick(&recorded);
        let lives = self.streams.contains(&on);
        let synchronization = match (self.random.below(8), recorded) {
            (0 | 1, Some(event)) => Synchronization::WaitEvent { stream, event },
            (2, Some(event)) => Synchronization::Event(event),
            (_, Some(event)) if !lives => Synchronization::WaitEvent { stream, event },
            (_, None) if !lives => Synchronization::All,
            (3 | 4, _) => Synchronization::WaitEvent { stream, event: self.record(on, None) },
            (5, _) if self.random.percent(50) => Synchronization::Stream(on),
            (5, _) => Synchronization::Event(self.record(on, None)),
            (6, _) => {
                // Through a third stream, or once more if there is none.
                let third = self.stream();
                self.emit(Step::Synchronize(Synchronization::WaitStream { stream: third, on }));
                Synchronization::WaitStream { stream, on: third }
            }
            _ => Synchronization::WaitStream { stream, on },
        };
        self.emit(Step::Synchronize(synchronization));
    }

    /// Emits an operation, if its arithmetic is exact, after whatever must precede it.
    fn compute(&mut self, stream: StreamName, operator: Operator, inputs: Vec<TensorName>) {
        let arrays: Vec<&Array> = inputs.iter().map(|&input| self.tensors.array(input)).collect();
        if evaluate(&operator, &arrays).is_none() {
            return;
        }
        let reads: Vec<usize> = inputs.iter().map(|&input| self.tensors.storage(input)).collect();
        self.come_after(stream, &reads, &[]);
        let output = self.tensor_count;
        self.tensor_count += 1;
        // A number is uploaded first.
        self.work_count += if matches!(operator, Operator::AddNumber(_)) { 2 } else { 1 };
        self.emit(Step::Compute { stream, operator, inputs, output });
    }

    fn new_tensor(&mut self, stream: StreamName) {
        let shape = self.recipe.shapes[self.random.index(self.recipe.shapes.len())].to_vec();
        if self.random.percent(20) {
            return self.compute(stream, Operator::Zeros { shape }, Vec::new());
        }
        let count = shape.iter().product::<u64>();
        let values = (0..count).map(|_| self.random.below(7) as f32 - 3.0).collect();
        self.compute(stream, Operator::FromHost { shape, values }, Vec::new());
    }

    fn operate(&mut self, stream: StreamName) {
        let Some(tensor) = self.tensor() else { return self.new_tensor(stream) };
        let shape = self.tensors.array(tensor).shape.clone();
        let fits = |other: &TensorName| self.tensors.array(*other).shape == shape;
        let alike: Vec<TensorName> = self.tensors.tensors().into_iter().filter(fits).collect();
        let other = self.random.pick(&alike).unwrap_or(tensor);
        let square = shape.len() == 2 && shape[0] == shape[1] && shape[0] <= 8;
        match self.random.below(10) {
            0 | 1 if square => self.compute(stream, Operator::MatMul, vec![tensor, other]),
            0..=3 => self.compute(stream, Operator::Add, vec![tensor, other]),
            4 | 5 => self.compute(stream, Operator::Mul, vec![tensor, other]),
            6 => {
                let number = self.random.below(3) as f32 + 1.0;
                self.compute(stream, Operator::AddNumber(number), vec![tensor]);
            }
            7 if !shape.is_empty() => self.compute(stream, Operator::Sum, vec![tensor]),
            _ => self.compute(stream, Operator::Relu, vec![tensor]),
        }
    }

    fn copy_from(&mut self, stream: StreamName) {
        let Some(from) = self.tensor() else { return };
        let fits = |&to: &TensorName| {
            self.tensors.storage(to) != self.tensors.storage(from)
                && self.tensors.array(to).shape == self.tensors.array(from).shape
        };
        let targets: Vec<TensorName> = self.tensors.tensors().into_iter().filter(fits).collect();
        let Some(to) = self.random.pick(&targets) else { return };
        self.come_after(stream, &[self.tensors.storage(from)], &[self.tensors.storage(to)]);
        self.work_count += 1;
        self.emit(Step::CopyFrom { stream, to, from });
    }

    fn clone_tensor(&mut self) {
        let Some(of) = self.tensor() else { return };
        self.emit(Step::Clone { of, clone: self.tensor_count });
        self.tensor_count += 1;
    }

    fn drop_tensor(&mut self) {
        let Some(tensor) = self.tensor() else { return };
        self.emit(Step::Drop { tensor });
    }

    fn read(&mut self, stream: StreamName) {
        let Some(tensor) = self.tensor() else { return };
        self.come_after(stream, &[self.tensors.storage(tensor)], &[]);
        self.work_count += 1;
        self.emit(Step::ToHost { stream, tensor });
    }
}
