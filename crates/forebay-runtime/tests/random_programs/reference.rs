//! Computes a program step by step in the host's arrays: the correct results.

use std::collections::BTreeMap;

use crate::program::{Operator, Step, TensorName};

/// Integers up to this are exact in f32, and so are sums whose parts stay below it, in any order.
const EXACT_MAX: f32 = (1 << 24) as f32;
/// The largest element that a program may contain.
const ELEMENT_MAX: f32 = (1 << 16) as f32;

/// An array of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<u64>,
    pub values: Vec<f32>,
}

impl Array {
    fn max(&self) -> f32 {
        self.values.iter().fold(0.0, |max, value| max.max(value.abs()))
    }
}

/// All tensors at one point of a program.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    storages: Vec<Array>,
    /// The storage that each handle refers to.
    handles: BTreeMap<TensorName, usize>,
}

/// Returns the result of an operator, or `None` if its arithmetic might round or numbers become large.
pub fn evaluate(operator: &Operator, inputs: &[&Array]) -> Option<Array> {
    let same = |values: Vec<f32>| Array { shape: inputs[0].shape.clone(), values };
    let array = match operator {
        Operator::FromHost { shape, values } => Array { shape: shape.clone(), values: values.clone() },
        Operator::Zeros { shape } => {
            Array { shape: shape.clone(), values: vec![0.0; shape.iter().product::<u64>() as usize] }
        }
        Operator::Add => broadcast(inputs[0], inputs[1], |a, b| a + b),
        Operator::Mul => broadcast(inputs[0], inputs[1], |a, b| a * b),
        Operator::AddNumber(number) => same(inputs[0].values.iter().map(|value| value + number).collect()),
        Operator::Relu => same(inputs[0].values.iter().map(|value| value.max(0.0)).collect()),
        Operator::Sum => {
            if inputs[0].max() * inputs[0].values.len() as f32 > EXACT_MAX {
                return None;
            }
            Array { shape: Vec::new(), values: vec![inputs[0].values.iter().sum()] }
        }
        Operator::MatMul => {
            let size = inputs[0].shape[0] as usize;
            if inputs[0].max() * inputs[1].max() * size as f32 > EXACT_MAX {
                return None;
            }
            same(product(&inputs[0].values, &inputs[1].values, size))
        }
    };
    (array.max() <= ELEMENT_MAX).then_some(array)
}

/// Applies an operation element by element; the second array may be a scalar.
fn broadcast(a: &Array, b: &Array, operation: fn(f32, f32) -> f32) -> Array {
    let element = |i: usize| b.values[if b.values.len() == 1 { 0 } else { i }];
    let values = a.values.iter().enumerate().map(|(i, &value)| operation(value, element(i))).collect();
    Array { shape: a.shape.clone(), values }
}

/// The product of two square matrices.
fn product(a: &[f32], b: &[f32], size: usize) -> Vec<f32> {
    let element = |place: usize| {
        let (row, column) = (place / size, place % size);
        (0..size).map(|k| a[row * size + k] * b[k * size + column]).sum()
    };
    (0..size * size).map(element).collect()
}

impl Reference {
    /// Applies a step to the tensors.
    pub fn apply(&mut self, step: &Step) {
        match step {
            Step::Compute { operator, inputs, output, .. } => {
                let arrays: Vec<&Array> = inputs.iter().map(|&input| self.array(input)).collect();
                let array = evaluate(operator, &arrays).expect("the generator keeps arithmetic exact");
                self.handles.insert(*output, self.storages.len());
                self.storages.push(array);
            }
            Step::CopyFrom { to, from, .. } => {
                let array = self.array(*from).clone();
                let to = self.storage(*to);
                self.storages[to] = array;
            }
            Step::Clone { of, clone } => {
                self.handles.insert(*clone, self.storage(*of));
            }
            Step::Drop { tensor } => {
                self.handles.remove(tensor);
            }
            _ => {}
        }
    }

    /// Returns the storage of a handle, by number in the order of creation.
    pub fn storage(&self, tensor: TensorName) -> usize {
        self.handles[&tensor]
    }

    /// Returns the number of storages created so far.
    pub fn storage_count(&self) -> usize {
        self.storages.len()
    }

    /// Returns a tensor's elements.
    pub fn array(&self, tensor: TensorName) -> &Array {
        &self.storages[self.storage(tensor)]
    }

    /// Returns the live handles.
    pub fn tensors(&self) -> Vec<TensorName> {
        self.handles.keys().copied().collect()
    }

    /// Returns the bytes that live tensors take in blocks of a multiple of `unit_bytes`.
    pub fn live_bytes(&self, unit_bytes: u64) -> u64 {
        let mut storages: Vec<usize> = self.handles.values().copied().collect();
        storages.sort_unstable();
        storages.dedup();
        let bytes = |storage: &usize| (self.storages[*storage].values.len() as u64 * 4).next_multiple_of(unit_bytes);
        storages.iter().map(bytes).sum()
    }
}
