//! Movement kernels against naive models that go element by element.

use forebay_base::kernel::PadMode;
use forebay_base::{DataType, Kernel};

use super::super::testing::{Random, Tensor, assert_close, desc, refusal, run, strided};

const TYPES: [DataType; 5] = [DataType::Float32, DataType::Float64, DataType::Float16, DataType::Int8, DataType::Int64];

/// A packed tensor with small whole numbers, which every type can represent.
fn counting(random: &mut Random, data_type: DataType, sizes: &[u64]) -> Tensor {
    let shape = desc(data_type, sizes);
    let values: Vec<f64> = (0..shape.element_count()).map(|_| random.below(100) as f64).collect();
    Tensor::new(&shape, &values)
}

/// All indices of a tensor in row-major order.
fn indices(sizes: &[u64]) -> Vec<Vec<u64>> {
    let count: u64 = sizes.iter().product();
    (0..count)
        .map(|mut element| {
            let mut index = vec![0; sizes.len()];
            for dimension in (0..sizes.len()).rev() {
                index[dimension] = element % sizes[dimension];
                element /= sizes[dimension];
            }
            index
        })
        .collect()
}

fn at(tensor: &Tensor, index: &[u64]) -> f64 {
    let element = index.iter().zip(tensor.desc.sizes()).fold(0, |element, (&i, &size)| element * size + i);
    tensor.values()[element as usize]
}

/// Returns strides that lay out the dimensions in a random order with gaps.
fn random_strides(random: &mut Random, sizes: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut strides = vec![0; sizes.len()];
    let mut next = 1;
    for dimension in order {
        strides[dimension] = next;
        next *= sizes[dimension] + random.below(2);
    }
    strides
}

#[test]
fn copies_keep_elements_between_any_layouts() {
    for seed in 0..80 {
        let mut random = Random::new(seed);
        let sizes = random.sizes(5, 7);
        let data_type = TYPES[random.below(5) as usize];
        let x_desc = strided(data_type, &sizes, &random_strides(&mut random, &sizes));
        let y_desc = strided(data_type, &sizes, &random_strides(&mut random, &sizes));
        let count = x_desc.total_size_bytes() / data_type.size_bytes();
        let x = Tensor::new(&x_desc, &(0..count).map(|i| (i % 101) as f64).collect::<Vec<_>>());
        let y = run(&Kernel::Copy, &[&x], std::slice::from_ref(&y_desc));
        assert_eq!(y[0].values(), x.values(), "seed {seed}: {x_desc} to {y_desc}");
    }
}

#[test]
fn large_transposes_and_broadcasts() {
    let mut random = Random::new(4);
    let x = Tensor::new(&strided(DataType::Float32, &[3, 130, 70], &[9100, 1, 130]), &random.values(27300));
    let packed = desc(DataType::Float32, &[3, 130, 70]);
    assert_eq!(run(&Kernel::Copy, &[&x], std::slice::from_ref(&packed))[0].values(), x.values());
    let x = Tensor::new(&strided(DataType::Float32, &[3, 130, 70], &[0, 1, 0]), &random.values(130));
    assert_eq!(run(&Kernel::Copy, &[&x], &[packed])[0].values(), x.values());
}

#[test]
fn slices_and_their_gradients() {
    for seed in 0..80 {
        let mut random = Random::new(seed);
        let x_sizes = random.sizes(4, 9);
        let data_type = TYPES[random.below(5) as usize];
        let x = counting(&mut random, data_type, &x_sizes);
        let (mut starts, mut steps, mut sizes) = (vec![], vec![], vec![]);
        for &size in &x_sizes {
            let start = random.below(size);
            let step = 1 + random.below(3);
            let backward = random.below(2) == 0;
            let room = if backward { start } else { size - 1 - start };
            starts.push(start);
            steps.push(if backward { -(step as i64) } else { step as i64 });
            sizes.push(1 + random.below(room / step + 1));
        }
        let what = format!("seed {seed}: {x_sizes:?} {starts:?} {steps:?} {sizes:?}");
        let source = |index: &[u64]| -> Vec<u64> {
            (0..index.len()).map(|d| (starts[d] as i64 + index[d] as i64 * steps[d]) as u64).collect()
        };
        let kernel = Kernel::Slice { starts: starts.clone(), steps: steps.clone() };
        let y = run(&kernel, &[&x], &[desc(data_type, &sizes)]);
        let expected: Vec<f64> = indices(&sizes).iter().map(|index| at(&x, &source(index))).collect();
        assert_eq!(y[0].values(), expected, "{what}");

        let kernel = Kernel::SliceGradient { starts: starts.clone(), steps: steps.clone() };
        let dx = run(&kernel, &[&y[0]], &[desc(data_type, &x_sizes)]);
        let taken: Vec<Vec<u64>> = indices(&sizes).iter().map(|index| source(index)).collect();
        let expected: Vec<f64> =
            indices(&x_sizes).iter().map(|index| if taken.contains(index) { at(&x, index) } else { 0.0 }).collect();
        assert_eq!(dx[0].values(), expected, "{what}");
    }
    let x = Tensor::new(&desc(DataType::Float32, &[4]), &[0.0; 4]);
    let kernel = Kernel::Slice { starts: vec![2], steps: vec![1] };
    assert!(refusal(&kernel, &[&x], &[desc(DataType::Float32, &[3])]).contains("exceeds dimension 0"));
}

#[test]
fn padding_in_every_mode() {
    for seed in 0..80 {
        let mut random = Random::new(seed);
        let x_sizes = random.sizes(4, 6);
        let data_type = TYPES[random.below(5) as usize];
        let x = counting(&mut random, data_type, &x_sizes);
        let begins: Vec<u64> = x_sizes.iter().map(|_| random.below(9)).collect();
        let y_sizes: Vec<u64> = (0..x_sizes.len()).map(|d| begins[d] + x_sizes[d] + random.below(4)).collect();
        for mode in [PadMode::Constant(7.0), PadMode::Reflect, PadMode::Edge] {
            let y = run(&Kernel::Pad { begins: begins.clone(), mode }, &[&x], &[desc(data_type, &y_sizes)]);
            let reflect = |mut index: i64, size: i64| {
                while size > 1 && !(0..size).contains(&index) {
                    index = if index < 0 { -index } else { 2 * (size - 1) - index };
                }
                if size == 1 { 0 } else { index }
            };
            let value = |index: &Vec<u64>| {
                let mut source = Vec::new();
                for d in 0..index.len() {
                    let (inner, size) = (index[d] as i64 - begins[d] as i64, x_sizes[d] as i64);
                    source.push(match mode {
                        PadMode::Constant(_) if !(0..size).contains(&inner) => return 7.0,
                        PadMode::Constant(_) => inner,
                        PadMode::Edge => inner.clamp(0, size - 1),
                        PadMode::Reflect => reflect(inner, size),
                    } as u64);
                }
                at(&x, &source)
            };
            let expected: Vec<f64> = indices(&y_sizes).iter().map(value).collect();
            assert_eq!(y[0].values(), expected, "seed {seed}: {mode:?} {x_sizes:?} {begins:?} {y_sizes:?}");
        }
    }
}

#[test]
fn gathers_take_slices_and_their_gradients_sum_them() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let sizes = random.sizes(4, 6);
        let axis = random.below(sizes.len() as u64) as usize;
        let size = sizes[axis] as i64;
        let index_type = [DataType::Int64, DataType::Int32][random.below(2) as usize];
        let index_sizes = random.sizes(2, 5);
        let count: u64 = index_sizes.iter().product();
        let positions: Vec<i64> = (0..count).map(|_| random.below(2 * size as u64 + 2) as i64 - size - 1).collect();
        let index = Tensor::new(
            &desc(index_type, &index_sizes),
            &positions.iter().map(|&position| position as f64).collect::<Vec<_>>(),
        );
        let y_sizes = [&sizes[..axis], &index_sizes, &sizes[axis + 1..]].concat();
        let (outer, inner): (u64, u64) = (sizes[..axis].iter().product(), sizes[axis + 1..].iter().product());
        let resolve = |position: i64| if position < 0 { position + size } else { position };
        // (element of y, element of data) for every index in range.
        let mut pairs = Vec::new();
        for o in 0..outer {
            for (place, &position) in positions.iter().enumerate() {
                let position = resolve(position);
                if (0..size).contains(&position) {
                    for i in 0..inner {
                        let y = (o * count + place as u64) * inner + i;
                        pairs.push((y as usize, ((o * size as u64 + position as u64) * inner + i) as usize));
                    }
                }
            }
        }
        let data_type = TYPES[random.below(5) as usize];
        let data = counting(&mut random, data_type, &sizes);
        let y = run(&Kernel::Gather { axis }, &[&data, &index], &[desc(data_type, &y_sizes)]);
        let mut expected = vec![0.0; (outer * count * inner) as usize];
        let values = data.values();
        pairs.iter().for_each(|&(y, data)| expected[y] = values[data]);
        assert_eq!(y[0].values(), expected, "seed {seed}");

        let dy_desc = desc(DataType::Float32, &y_sizes);
        let dy = Tensor::new(&dy_desc, &random.values(dy_desc.element_count() as usize));
        let ddata = run(&Kernel::GatherGradient { axis }, &[&dy, &index], &[desc(DataType::Float32, &sizes)]);
        let mut expected = vec![0.0; values.len()];
        let values = dy.values();
        pairs.iter().for_each(|&(y, data)| expected[data] += values[y]);
        assert_close(&ddata[0].values(), &expected, 1e-6, &format!("seed {seed}"));
    }
}

#[test]
fn an_embedding_of_many_columns() {
    let mut random = Random::new(3);
    let table = Tensor::new(&desc(DataType::Float32, &[40, 150]), &random.values(6000));
    let index = Tensor::new(&desc(DataType::Int64, &[300]), &(0..300).map(|i| (i * 7 % 40) as f64).collect::<Vec<_>>());
    let y = run(&Kernel::Gather { axis: 0 }, &[&table, &index], &[desc(DataType::Float32, &[300, 150])]);
    let ddata = run(&Kernel::GatherGradient { axis: 0 }, &[&y[0], &index], &[desc(DataType::Float32, &[40, 150])]);
    let mut counts = [0.0; 40];
    (0..300).for_each(|i| counts[i * 7 % 40] += 1.0);
    let expected: Vec<f64> = table.values().iter().enumerate().map(|(i, x)| x * counts[i / 150]).collect();
    assert_close(&ddata[0].values(), &expected, 2e-6, "embedding");
}

/// Rows get updates by index, one after the other; indices out of range are skipped.
#[test]
fn scatters_take_updates_in_order() {
    use forebay_base::kernel::ScatterOp::{Add, Maximum, Minimum, Multiply, Replace};
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let op = [Replace, Add, Multiply, Minimum, Maximum][seed as usize % 5];
        let sizes = if seed % 10 < 5 { vec![1 + random.below(3000), 1] } else { random.sizes(3, 90) };
        let (size, inner) = (sizes[0], sizes[1..].iter().product::<u64>());
        let count = 1 + random.below(2 * size.min(40));
        let index_type = [DataType::Int64, DataType::Int32][random.below(2) as usize];
        let positions: Vec<i64> = (0..count).map(|_| random.below(2 * size + 2) as i64 - size as i64 - 1).collect();
        let index = Tensor::new(&desc(index_type, &[count]), &positions.iter().map(|&i| i as f64).collect::<Vec<_>>());
        let of_replace = TYPES[random.below(5) as usize];
        let of_others = [DataType::Float64, DataType::Float32, DataType::Int64][random.below(3) as usize];
        let data_type = if op == Replace { of_replace } else { of_others };
        let data = counting(&mut random, data_type, &sizes);
        // Products of few small numbers are exact.
        let updates = desc(data_type, &[&[count], &sizes[1..]].concat());
        let limit = if op == Multiply { 3 } else { 100 };
        let values: Vec<f64> = (0..updates.element_count()).map(|_| random.below(limit) as f64).collect();
        let updates = Tensor::new(&updates, &values);
        let y = run(&Kernel::Scatter { op }, &[&data, &index, &updates], &[desc(data_type, &sizes)]);
        let mut expected = data.values();
        for (place, &position) in positions.iter().enumerate() {
            let row = if position < 0 { position + size as i64 } else { position };
            for column in (0..inner).filter(|_| (0..size as i64).contains(&row)) {
                let update = values[place * inner as usize + column as usize];
                let element = &mut expected[(row as u64 * inner + column) as usize];
                *element = match op {
                    Replace => update,
                    Add => *element + update,
                    Multiply => *element * update,
                    Minimum => element.min(update),
                    Maximum => element.max(update),
                };
            }
        }
        assert_close(&y[0].values(), &expected, 1e-6, &format!("seed {seed}: {op:?} of {data_type} {sizes:?}"));
    }
    let (data, index) = (counting(&mut Random::new(1), DataType::Float32, &[3, 2]), desc(DataType::Int64, &[2]));
    let (index, updates) =
        (Tensor::new(&index, &[0.0, 1.0]), counting(&mut Random::new(2), DataType::Float32, &[2, 3]));
    let kernel = Kernel::Scatter { op: Add };
    let reason = refusal(&kernel, &[&data, &index, &updates], &[desc(DataType::Float32, &[3, 2])]);
    assert!(reason.contains("does not result in"), "{reason}");
}

#[test]
fn extremes_of_scatters_are_nan_where_any_element_is() {
    use forebay_base::kernel::ScatterOp::{Maximum, Minimum};
    let row = desc(DataType::Float32, &[3]);
    let data = Tensor::new(&row, &[f64::NAN, 1.0, 2.0]);
    let (index, updates) = (desc(DataType::Int32, &[3]), Tensor::new(&row, &[1.0, f64::NAN, 5.0]));
    let index = Tensor::new(&index, &[0.0, 1.0, 2.0]);
    for (op, last) in [(Minimum, 2.0), (Maximum, 5.0)] {
        let y = run(&Kernel::Scatter { op }, &[&data, &index, &updates], std::slice::from_ref(&row));
        assert_close(&y[0].values(), &[f64::NAN, f64::NAN, last], 0.0, &format!("{op:?}"));
    }
}
