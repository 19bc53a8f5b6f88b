//! Products are compared with their definition, and how they are divided among tasks is checked.

use forebay_base::{DataType, SumTree, sum_tree};

use super::super::testing::{Random, Tensor, assert_close, desc, run};
use super::*;

fn naive(a: &[f64], b: &[f64], (m, n, k): (usize, usize, usize), (ta, tb): (bool, bool)) -> Vec<f64> {
    let at = |i: usize, l: usize| if ta { a[l * m + i] } else { a[i * k + l] };
    let bt = |l: usize, j: usize| if tb { b[j * k + l] } else { b[l * n + j] };
    (0..m * n).map(|e| (0..k).map(|l| at(e / n, l) * bt(l, e % n)).sum()).collect()
}

#[test]
fn all_transposes_and_a_broadcast_summand_match_the_naive_product() {
    let mut random = Random::new(1);
    for case in 0..24 {
        let (ta, tb) = (case & 1 == 1, case & 2 == 2);
        let (m, n, k) =
            (1 + random.below(150) as usize, 1 + random.below(300) as usize, 1 + random.below(600) as usize);
        let (av, bv, cv) = (random.values(m * k), random.values(k * n), random.values(n));
        let shape = |r: usize, c: usize, t: bool| if t { [c as u64, r as u64] } else { [r as u64, c as u64] };
        let a = Tensor::new(&desc(DataType::Float32, &shape(m, k, ta)), &av);
        let b = Tensor::new(&desc(DataType::Float32, &shape(k, n, tb)), &bv);
        let c = Tensor::new(&desc(DataType::Float32, &[n as u64]), &cv);
        let kernel = Kernel::MatMul {
            transpose_a: ta,
            transpose_b: tb,
            alpha: 0.5,
            beta: 2.0,
            activation: Activation::None,
            part: ProductPart::Whole,
        };
        let y = run(&kernel, &[&a, &b, &c], &[desc(DataType::Float32, &[m as u64, n as u64])]);
        let mut expected = naive(&a.values(), &b.values(), (m, n, k), (ta, tb));
        let c = c.values();
        expected.iter_mut().enumerate().for_each(|(i, v)| *v = 0.5 * *v + 2.0 * c[i % n]);
        assert_close(&y[0].values(), &expected, 2e-5, &format!("case {case}: {m} {n} {k}"));
    }
}

/// However few rows there are, although products of few rows are computed differently.
#[test]
fn rows_have_the_bits_that_they_have_among_others() {
    let mut random = Random::new(5);
    for case in 0..80 {
        let (tb, columns_max) = (case % 4 != 0, [60, 600][case % 2]);
        let (n, k) = (1 + random.below(columns_max), 1 + random.below(900));
        let (all, few) = (20 + random.below(9), 1 + case as u64 % 10);
        let (av, bv) = (random.values((all * k) as usize), random.values((k * n) as usize));
        let b_sizes = if tb { [n, k] } else { [k, n] };
        let b = Tensor::new(&desc(DataType::Float32, &b_sizes), &bv);
        let product = |rows: u64| {
            let a = Tensor::new(&desc(DataType::Float32, &[rows, k]), &av[..(rows * k) as usize]);
            run(&Kernel::product(false, tb), &[&a, &b], &[desc(DataType::Float32, &[rows, n])])[0].values()
        };
        let (whole, part) = (product(all), product(few));
        assert!(part[..] == whole[..part.len()], "case {case}: {few} rows, {n} columns, {k} terms");
    }
}

/// Transposed factors are read in different ways, as are results of few columns.
#[test]
fn transposed_factors_have_the_bits_of_others() {
    let mut random = Random::new(6);
    for case in 0..60 {
        let rows_max = [8, 40, 300][case % 3];
        let (m, n) = (1 + random.below(rows_max), 1 + random.below([8, 50, 300][case / 3 % 3]));
        let k = 1 + random.below(700);
        let (av, bv) = (random.values((m * k) as usize), random.values((k * n) as usize));
        let product = |ta: bool, tb: bool| {
            let stored = |values: &[f64], [rows, columns]: [u64; 2], is_transposed: bool| {
                let at = |i: u64| match is_transposed {
                    true => i % rows * columns + i / rows,
                    false => i,
                };
                let values: Vec<f64> = (0..rows * columns).map(|i| values[at(i) as usize]).collect();
                let sizes = if is_transposed { [columns, rows] } else { [rows, columns] };
                Tensor::new(&desc(DataType::Float32, &sizes), &values)
            };
            let (a, b) = (stored(&av, [m, k], ta), stored(&bv, [k, n], tb));
            run(&Kernel::product(ta, tb), &[&a, &b], &[desc(DataType::Float32, &[m, n])])[0].values()
        };
        let expected = product(false, false);
        for (ta, tb) in [(true, false), (false, true), (true, true)] {
            assert!(product(ta, tb) == expected, "case {case}: {m} x {k} x {n}, {ta} {tb}");
        }
    }
}

#[test]
fn batches_broadcast() {
    let mut random = Random::new(2);
    let a = Tensor::new(&desc(DataType::Float32, &[2, 1, 3, 4]), &random.values(24));
    let b = Tensor::new(&desc(DataType::Float32, &[5, 4, 6]), &random.values(120));
    let kernel = Kernel::MatMul {
        transpose_a: false,
        transpose_b: false,
        alpha: 1.0,
        beta: 0.0,
        activation: Activation::Clip { low: 0.0, high: 0.5 },
        part: ProductPart::Whole,
    };
    let y = run(&kernel, &[&a, &b], &[desc(DataType::Float32, &[2, 5, 3, 6])]);
    let (av, bv) = (a.values(), b.values());
    let expected: Vec<f64> = (0..10)
        .flat_map(|i| naive(&av[i / 5 * 12..][..12], &bv[i % 5 * 24..][..24], (3, 6, 4), (false, false)))
        .map(|value| value.clamp(0.0, 0.5))
        .collect();
    assert_close(&y[0].values(), &expected, 1e-5, "batches");
}

/// An activation that a product applies to its result gives the same bits as a separate kernel.
#[test]
fn activations_give_the_bits_of_a_kernel_behind() {
    let mut random = Random::new(3);
    for op in [UnaryOp::Clip { low: -0.5, high: 0.5 }, UnaryOp::Gelu, UnaryOp::Tanh, UnaryOp::Elu { alpha: 0.5 }] {
        for [m, n, k] in [[1, 7, 5], [3, 300, 40], [2, 300, 600], [70, 150, 600]] {
            let mut tensor = |sizes: &[u64]| {
                let count = sizes.iter().product::<u64>() as usize;
                Tensor::new(&desc(DataType::Float32, sizes), &random.values(count))
            };
            let (a, b, c) = (tensor(&[2, m, k]), tensor(&[k, n]), tensor(&[n]));
            let product = |activation: Activation| {
                let (transpose_a, transpose_b, part) = (false, false, ProductPart::Whole);
                let kernel = Kernel::MatMul { transpose_a, transpose_b, alpha: 1.0, beta: 1.0, activation, part };
                run(&kernel, &[&a, &b, &c], &[desc(DataType::Float32, &[2, m, n])]).remove(0)
            };
            let apart = product(Activation::None);
            let behind = run(&Kernel::Unary(op), &[&apart], std::slice::from_ref(&apart.desc));
            assert!(behind[0].values() == product(Activation::of(op)).values(), "{op:?} of {m} x {n}");
        }
    }
}

/// Blocks of terms that are multiplied separately and added along the sum tree give the product, and so do the halves of the tree.
#[test]
fn blocks_of_terms_are_added_in_the_tree() {
    let mut random = Random::new(3);
    for case in 0..60 {
        let (ta, tb, blocks) = (case & 1 == 1, case & 2 == 2, 1 + case % 9);
        // Vectors, a tile's single columns, and few terms in the last block are multiplied in different ways.
        let [m, n] = match case % 5 {
            0 => [1, 1 + random.below(270)],
            1 => [1 + random.below(140), 1],
            2 => [1 + random.below(140), 257],
            _ => [140, 270].map(|limit| 1 + random.below(limit)),
        };
        let k = (blocks - 1) * PRODUCT_TERMS + 1 + random.below(if case % 3 == 0 { 3 } else { PRODUCT_TERMS });
        let (av, bv) = (random.values((m * k) as usize), random.values((k * n) as usize));
        // The product of some of the terms, from packed copies of these terms in the factors.
        let product = |terms: std::ops::Range<u64>| {
            let of = |values: &[f64], others: u64, terms_last: bool| {
                let count = terms.end - terms.start;
                let at = |i: u64| match terms_last {
                    true => i / count * k + terms.start + i % count,
                    false => (terms.start + i / others) * others + i % others,
                };
                let sizes = if terms_last { [others, count] } else { [count, others] };
                let values: Vec<f64> = (0..others * count).map(|i| values[at(i) as usize]).collect();
                Tensor::new(&desc(DataType::Float32, &sizes), &values)
            };
            let (a, b) = (of(&av, m, !ta), of(&bv, n, tb));
            run(&Kernel::product(ta, tb), &[&a, &b], &[desc(DataType::Float32, &[m, n])]).remove(0).values()
        };
        let add = |a: Vec<f64>, b: Vec<f64>| -> Vec<f64> {
            a.into_iter().zip(b).map(|(a, b)| f64::from(a as f32 + b as f32)).collect()
        };
        let of_leaves =
            |leaves: std::ops::Range<u64>| product(leaves.start * PRODUCT_TERMS..k.min(leaves.end * PRODUCT_TERMS));
        let whole = product(0..k);
        let leaves = (0..blocks).map(|leaf| of_leaves(leaf..leaf + 1));
        let sum = SumTree::flat(blocks).sum(leaves, add).unwrap();
        assert!(sum == whole, "case {case}: {m} {n} {k}");
        if let Some(middle) = sum_tree::middle(&(0..blocks)) {
            assert!(add(of_leaves(0..middle), of_leaves(middle..blocks)) == whole, "case {case}: {m} {n} {k}");
        }
    }
}

#[test]
fn tiles_have_fewer_columns_where_there_would_be_few_tasks() {
    assert_eq!(tile_columns(1, (128, 4096, 768), 2), 5 * PANEL);
    assert_eq!(tile_columns(1, (128, 768, 768), 2), 2 * PANEL);
    assert_eq!(tile_columns(1, (128, 768, 768), 4), PANEL);
    assert_eq!(tile_columns(1, (128, 768, 768), 1), 4 * PANEL);
    assert_eq!(tile_columns(2, (128, 256, 768), 2), 2 * PANEL);
    assert_eq!(tile_columns(8, (128, 256, 768), 2), 3 * PANEL);
    assert_eq!(tile_columns(8, (128, 240, 768), 2), 5 * PANEL);
    assert_eq!(tile_columns(1, (1, 4096, 768), 2), 11 * PANEL);
    assert_eq!(tile_columns(1, (1, 40960, 768), 1), 21 * PANEL);
    assert_eq!(tile_columns(0, (1, 1, 768), 1), PANEL);
}

#[test]
fn tiles_have_fewer_rows_where_columns_alone_leave_threads_idle() {
    let rows = |sizes, threads| even_rows(sizes, TILE_ROWS, 1, threads);
    assert_eq!(rows((64, 3 * PANEL), 2), 32);
    assert_eq!(rows((64, 3 * PANEL), 1), 64);
    assert_eq!(rows((64, 4 * PANEL), 2), 64);
    assert_eq!(rows((64, PANEL), 4), 16);
    assert_eq!(rows((24, PANEL), 4), 24);
    assert_eq!(rows((500, 9 * PANEL), 2), 250);
    assert_eq!((rows((1, 1), 2), rows((0, 5), 2)), (1, 1));
}

#[test]
fn few_rows_are_multiplied_in_parts_that_keep_all_threads_busy() {
    let parts = |sizes, threads| Parts::of(sizes, threads).map(|parts| (parts.subtrees.count(), parts.columns));
    assert_eq!(parts((1, 512, 512), 2), Some((2, 512)));
    assert_eq!(parts((1, 512, 2048), 2), Some((8, 512)));
    assert_eq!(parts((1, 512, 2048), 16), Some((8, 256)));
    assert_eq!(parts((1, 512, 768), 2), Some((3, 256)));
    assert_eq!(parts((1, 512, 512), 16), Some((2, 128)));
    assert_eq!(parts((1, 8000, 512), 2), Some((2, 4000)));
    assert_eq!(parts((8, 4096, 8192), 2), Some((2, 4096)));
    assert_eq!(parts((1, 512, 512), 1), Some((1, 512)));
    assert_eq!(parts((3, 8000, 100), 1), Some((1, 4000)));
    assert_eq!(parts((1, 512, 0), 1), Some((1, 512)));
    for one in [((1, 512, 256), 2), ((9, 512, 512), 2), ((1, 100, 512), 2), ((0, 512, 0), 2)] {
        assert_eq!(parts(one.0, one.1), None);
    }
    // The sums of parts would take too much memory.
    assert_eq!(parts((8, 1 << 20, 512), 2), None);
}

/// In parts, as several threads compute it, a product has the bits that it has in one piece. Sums may also be -0.
#[test]
fn products_in_parts_have_the_bits_of_others() {
    let mut random = Random::new(7);
    for case in 0..40 {
        let (m, n) = (1 + case % FEW_ROWS as u64, 128 + random.below(500));
        let k = PRODUCT_TERMS * (1 + case % 12) + 1 + random.below(PRODUCT_TERMS);
        let mut tensor = |sizes: &[u64], small: bool| {
            let values = random.values(sizes.iter().product::<u64>() as usize);
            // Products of small numbers vanish, with their sign.
            let values: Vec<f64> = values.iter().map(|value| if small { value * 1e-30 } else { *value }).collect();
            Tensor::new(&desc(DataType::Float32, sizes), &values)
        };
        let small = case % 5 == 4;
        let (a, b) = (tensor(&[m, k], small), tensor(&[k, n], small));
        let zeros = Tensor::new(&desc(DataType::Float32, &[m, n]), &vec![-0.0; (m * n) as usize]);
        let c = if small { zeros } else { tensor(&[m, n], false) };
        let y = [desc(DataType::Float32, &[m, n])];
        run(&Kernel::product(false, false), &[&a, &b], &y);
        let (activation, part) = (Activation::Clip { low: -20.0, high: 20.0 }, ProductPart::Whole);
        let (transpose_a, transpose_b, alpha, beta) = (false, false, 1.0, 0.5);
        run(&Kernel::MatMul { transpose_a, transpose_b, alpha, beta, activation, part }, &[&a, &b, &c], &y);
    }
}

#[test]
fn tiles_have_fewer_rows_where_more_sums_wait_than_there_is_room_for() {
    let [own, half] = [DataType::Float32, DataType::Float16].map(|data_type| {
        let desc = desc(data_type, &[1]);
        Stored::of(&View { desc: &desc, pointer: std::ptr::NonNull::dangling().as_ptr() })
    });
    let rows = |k: usize, stored: Stored<f32>| tile_rows(k, [StoredMatrix::rows(stored, k); 2].into(), stored);
    assert_eq!(rows(1 << 15, own), TILE_ROWS);
    assert_eq!(rows((1 << 15) + 1, own), TILE_ROWS / 2);
    assert!(rows(usize::MAX, own) >= TILE_ROWS / 8);
    assert_eq!(rows(1 << 11, half), TILE_ROWS);
    assert!(rows(usize::MAX, half) >= TILE_ROWS / 16);
}
