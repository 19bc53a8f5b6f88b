//! Cropping, padding and normalising volumes, so that volumes of any size meet a model of one size.

/// Where a row of `n` lands in a row of `m`: (first source index, first target index, count).
fn fitted_axis(n: usize, m: usize) -> (usize, usize, usize) {
    if n >= m {
        ((n - m) / 2, 0, m)
    } else {
        (0, (m - n) / 2, n)
    }
}

/// Crops or pads each axis to the wanted size: where n >= m from (n - m) div 2 on; where n < m with zeros, (m - n) div 2
/// before and the rest after. Both are row-major and have the same number of axes.
pub fn fit<T: Copy + Default>(values: &[T], from: &[u64], to: &[u64]) -> Vec<T> {
    assert_eq!(from.len(), to.len(), "the same number of axes");
    let mut result = vec![T::default(); to.iter().product::<u64>() as usize];
    let axes: Vec<_> = from.iter().zip(to).map(|(&n, &m)| fitted_axis(n as usize, m as usize)).collect();
    fit_axes(values, from, &mut result, to, &axes);
    result
}

fn fit_axes<T: Copy>(values: &[T], from: &[u64], result: &mut [T], to: &[u64], axes: &[(usize, usize, usize)]) {
    let Some((&(source, target, count), inner)) = axes.split_first() else {
        result.copy_from_slice(values);
        return;
    };
    if inner.is_empty() {
        result[target..target + count].copy_from_slice(&values[source..source + count]);
        return;
    }
    let source_row = values.len() / from[0] as usize;
    let target_row = result.len() / to[0] as usize;
    for index in 0..count {
        let values = &values[(source + index) * source_row..][..source_row];
        let result = &mut result[(target + index) * target_row..][..target_row];
        fit_axes(values, &from[1..], result, &to[1..], inner);
    }
}

/// (x - mean) / standard deviation, of the whole population, in float64, rounded to float32. All zeros where every value
/// is the same.
pub fn normalise(values: &[f64]) -> Vec<f32> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
    let deviation = variance.sqrt();
    if deviation == 0.0 {
        return vec![0.0; values.len()];
    }
    values.iter().map(|value| ((value - mean) / deviation) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_axis_by_hand() {
        assert_eq!(fit(&[1, 2, 3, 4, 5], &[5], &[2]), [2, 3]);
        assert_eq!(fit(&[1, 2], &[2], &[5]), [0, 1, 2, 0, 0]);
        assert_eq!(fit(&[1, 2, 3], &[3], &[3]), [1, 2, 3]);
    }

    #[test]
    fn several_axes_match_a_naive_model() {
        for (from, to) in [([3, 4, 5], [5, 2, 5]), ([1, 6, 2], [4, 6, 3]), ([7, 1, 4], [2, 2, 2])] {
            let values: Vec<u32> = (1..=from.iter().product::<u64>() as u32).collect();
            let result = fit(&values, &from, &to);
            let mut expected = Vec::new();
            for i in 0..to[0] {
                for j in 0..to[1] {
                    for k in 0..to[2] {
                        let source = |axis: usize, index: u64| {
                            let (n, m) = (from[axis] as i64, to[axis] as i64);
                            let shift = if n >= m { (n - m) / 2 } else { -((m - n) / 2) };
                            let index = index as i64 + shift;
                            (0..n).contains(&index).then_some(index as u64)
                        };
                        let at = source(0, i).zip(source(1, j)).zip(source(2, k));
                        expected.push(at.map_or(0, |((i, j), k)| values[((i * from[1] + j) * from[2] + k) as usize]));
                    }
                }
            }
            assert_eq!(result, expected, "{from:?} to {to:?}");
        }
    }

    #[test]
    fn normalising_gives_mean_zero_and_deviation_one() {
        assert_eq!(normalise(&[1.0, 3.0]), [-1.0, 1.0]);
        assert_eq!(normalise(&[5.0, 5.0, 5.0]), [0.0; 3]);
    }
}
