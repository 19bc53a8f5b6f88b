//! Every kind of vector computes what numbers do.

use super::*;

fn numbers() -> Vec<f32> {
    (0..48).map(|i| ((i * 37 % 32) as f32) - 11.0).collect()
}

fn check<V: Vector>() {
    let numbers = numbers();
    // SAFETY: the addresses lie in the arrays, and callers checked the CPU.
    unsafe {
        let (a, b) = (V::load(numbers.as_ptr()), V::load(numbers.as_ptr().add(V::WIDTH)));
        let mut out = vec![0.0; V::WIDTH];
        let [zero, six] = [0.0, 6.0].map(|value| V::splat(value));
        a.add_product(b, V::splat(2.0)).limited(zero, six).store(out.as_mut_ptr());
        let expected: Vec<f32> =
            (0..V::WIDTH).map(|i| (numbers[i] + 2.0 * numbers[V::WIDTH + i]).clamp(0.0, 6.0)).collect();
        assert_eq!(out[..], expected);
        V::load_even(numbers.as_ptr()).store(out.as_mut_ptr());
        assert!((0..V::WIDTH).all(|i| out[i] == numbers[2 * i]), "{out:?}");
        let mut both = vec![0.0; 2 * V::WIDTH];
        let [first, second] = a.interleaved(b);
        first.store(both.as_mut_ptr());
        second.store(both.as_mut_ptr().add(V::WIDTH));
        assert!((0..2 * V::WIDTH).all(|i| both[i] == numbers[i % 2 * V::WIDTH + i / 2]), "{both:?}");
        for (first, third) in V::load_thirds(numbers.as_ptr()).into_iter().enumerate() {
            third.store(out.as_mut_ptr());
            assert!((0..V::WIDTH).all(|i| out[i] == numbers[first + 3 * i]), "{out:?}");
        }
        let sums = V::add_multiples([a, b], &3.0, [b, a]);
        sums[1].store(out.as_mut_ptr());
        let expected: Vec<f32> = (0..V::WIDTH).map(|i| numbers[V::WIDTH + i] + 3.0 * numbers[i]).collect();
        assert_eq!(out[..], expected);
        V::splat(f32::NAN).limited(zero, six).store(out.as_mut_ptr());
        assert!(out.iter().all(|value| value.is_nan()));
        V::splat(-0.0).limited(zero, V::splat(f32::INFINITY)).store(out.as_mut_ptr());
        assert!(out.iter().all(|value| value.to_bits() == f32::to_bits(-0.0)));
        for (one, other, largest) in [(1.0, 2.0, 2.0), (2.0, 1.0, 2.0), (0.0, -0.0, 0.0), (-0.0, 0.0, -0.0)] {
            V::splat(one).larger(V::splat(other)).store(out.as_mut_ptr());
            assert!(out.iter().all(|value| value.to_bits() == f32::to_bits(largest)), "{one} and {other}: {out:?}");
        }
        for (one, other) in [(1.0, f32::NAN), (f32::NAN, 1.0)] {
            V::splat(one).larger(V::splat(other)).store(out.as_mut_ptr());
            assert!(out.iter().all(|value| value.is_nan()), "{one} and {other}: {out:?}");
        }
        let (table, mut turned) = ((0..80).map(|i| i as f32).collect::<Vec<_>>(), [0.0; 96]);
        V::transpose(table.as_ptr(), 10, turned.as_mut_ptr(), 12);
        assert!((0..64).all(|i| turned[i / 8 * 12 + i % 8] == table[i % 8 * 10 + i / 8]));
    }
}

fn check_columns<V: SummedVector>() {
    let table: Vec<f32> = (0..80).map(|i| i as f32).collect();
    // SAFETY: eight lines of ten numbers.
    for (column, seen) in unsafe { V::columns(table.as_ptr(), 10) }.into_iter().enumerate() {
        let mut out = [0.0; LANES];
        // SAFETY: the array has as many numbers as the vector.
        unsafe { seen.store(out.as_mut_ptr()) };
        assert!((0..LANES).all(|line| out[line] == table[10 * line + column]), "{out:?}");
    }
}

fn check_sums<V: SummedVector>() {
    check_columns::<V>();
    let numbers = numbers();
    check::<V>();
    // SAFETY: as above.
    unsafe {
        let vectors: [V; 4] = std::array::from_fn(|i| V::load(numbers.as_ptr().add(i * LANES)));
        let sums: [f32; 4] = std::array::from_fn(|i| numbers[i * LANES..][..LANES].iter().sum());
        assert_eq!(V::sums(vectors), sums);
    }
}

#[test]
fn vectors_compute_what_numbers_do() {
    check_sums::<Plain<true>>();
    check_sums::<Plain<false>>();
    #[cfg(target_arch = "aarch64")]
    check_sums::<Neon>();
    #[cfg(target_arch = "x86_64")]
    {
        if has_avx2() {
            check_sums::<Avx2>();
        }
        if has_avx512() {
            check::<Avx512>();
        }
    }
}
