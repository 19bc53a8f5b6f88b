//! Operators refuse operands when they are called, and a refusal leaves the context usable.

use std::sync::Arc;

use forebay_base::DataType;
use forebay_device::host::{HostDevice, HostOptions};
use forebay_model::Tensor;
use forebay_model::graph::Attribute;
use forebay_model::operators::FAMILIES;
use forebay_runtime::RuntimeError;
use forebay_runtime::eager::{Context, ContextOptions, DeviceTensor};

fn context() -> Context {
    let device = HostDevice::new(&HostOptions { threads: Some(1), ..HostOptions::default() }).unwrap();
    Context::new(Arc::new(device), &ContextOptions::default()).unwrap()
}

/// A tensor of ones.
fn ones(context: &Context, data_type: DataType, shape: &[u64]) -> DeviceTensor {
    let one = DeviceTensor::full(context, shape, &Tensor::from_f32(&[], &[1.0])).unwrap();
    let to = Attribute::Int(data_type.onnx_number().into());
    context.operation("Cast").input(&one).attribute("to", to).run_single().unwrap()
}

/// Every operator, with one to three tensors of every type, with and without elements.
#[test]
fn no_operator_breaks_the_context() {
    let names = FAMILIES.iter().copied().flatten().filter(|row| row.domain.is_empty()).map(|row| row.op_type);
    let mut names: Vec<&str> = names.collect();
    names.dedup();
    let mut broken = Vec::new();
    let (mut run, mut refused) = (0, 0);
    let mut now = context();
    for data_type in DataType::NOT_NARROW {
        for shape in [&[2, 3][..], &[1, 2, 4, 4], &[0, 3], &[2, 0, 4, 4]] {
            let mut tensor = ones(&now, data_type, shape);
            for name in &names {
                for count in 1..=3 {
                    let what = format!("{name} of {count} x {data_type}{shape:?}");
                    let operation = (0..count).fold(now.operation(name), |operation, _| operation.input(&tensor));
                    match operation.run_single() {
                        Ok(_) => run += 1,
                        Err(RuntimeError::Operation(_)) => refused += 1,
                        Err(error) => broken.push(format!("{what}: {error}")),
                    }
                    // An index out of range is found when the operator runs, and breaks nothing.
                    if let Err(error) = now.synchronize()
                        && !matches!(error, RuntimeError::Index { .. })
                    {
                        broken.push(format!("{what}: {error}"));
                        now = context();
                        tensor = ones(&now, data_type, shape);
                    }
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(run > 1000 && refused > 1000, "{run} ran, {refused} were refused");
}

#[test]
fn a_refused_type_is_an_error_of_the_call() {
    let context = context();
    let integers = DeviceTensor::from_host(&context, &Tensor::from_i64(&[2], &[1, 2])).unwrap();
    let error = context.operation("Softmax").input(&integers).run_single().unwrap_err();
    assert!(matches!(error, RuntimeError::Operation(_)), "{error:?}");
    assert!(error.to_string().contains("int64"), "{error}");
    context.synchronize().unwrap();
    assert_eq!(integers.to_host().unwrap().to_i64(), Some(vec![1, 2]));
}

/// Tensors can have no elements: they are created, computed with and copied like others.
#[test]
fn tensors_without_elements() {
    let context = context();
    let array = Tensor::from_f32(&[0, 3], &[]);
    let empty = DeviceTensor::from_host(&context, &array).unwrap();
    let zeros = DeviceTensor::zeros(&context, DataType::Float32, &[0, 3]).unwrap();
    zeros.copy_from(&empty).unwrap();
    zeros.fill(&Tensor::from_f32(&[], &[2.0])).unwrap();
    let row = ones(&context, DataType::Float32, &[1, 3]);
    for result in [&empty, &zeros, &empty.add(&row).unwrap(), &row.mul(&empty).unwrap(), &empty.relu().unwrap()] {
        assert_eq!(result.to_host().unwrap(), array);
    }
    assert_eq!(empty.sum().unwrap().to_host().unwrap().to_f32(), Some(vec![0.0]));
    let turned = empty.reshape(&[3, 0]).unwrap();
    assert_eq!(turned.matmul(&empty).unwrap().to_host().unwrap(), Tensor::from_f32(&[3, 3], &[0.0; 9]));
    let joined = context.operation("Concat").attribute("axis", Attribute::Int(0)).input(&empty).input(&row);
    assert_eq!(joined.run_single().unwrap().shape(), [1, 3]);
    assert!(row.reshape(&[0, 3]).is_err(), "it has three elements");
}
