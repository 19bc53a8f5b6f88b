//! Counts of n-grams.

use std::collections::BTreeMap;

use forebay_base::kernel::{BinaryOp, ReduceOp};
use forebay_base::{DataType, Kernel};

use super::decomposition::{Composer, Decomposition, Part, composed};
use super::indices::take;
use super::shapes::size;
use crate::error::ModelError;
use crate::graph::{Attribute, TensorType};
use crate::operator::{Gradient, NodeView, Operator};

/// The rows of this family.
pub const ROWS: &[Operator] = &[Operator { gradient: Gradient::Zero, ..composed!("TfIdfVectorizer", count_ngrams) }];

/// Largest number of comparisons of an n-gram's element with a position of the input.
const COMPARISONS_MAX: u64 = 1 << 26;

/// Counts how often each n-gram of a pool occurs in each row of integers, and puts the count at the n-gram's position in the output. All
/// n-grams are compared with all positions.
fn count_ngrams(view: NodeView) -> Result<Decomposition, ModelError> {
    let mut c = Composer::new(view);
    let x = c.input(0)?;
    let (batch, length) = match *x.ty.shape {
        [length] => (1, length),
        [batch, length] => (batch, length),
        _ => return Err(view.error(format!("expected one or two dimensions, found {}", x.ty))),
    };
    if !matches!(x.ty.data_type, DataType::Int32 | DataType::Int64) {
        return Err(view.error(format!("n-grams must be int32 or int64, not {}", x.ty.data_type)));
    }
    let missing = |name: &str| view.error(format!("attribute {name} is missing"));
    let list = |name: &str| view.ints(name)?.ok_or_else(|| missing(name));
    let (pool, begins, places) = (list("pool_int64s")?, list("ngram_counts")?, list("ngram_indexes")?);
    let number = |name: &str| size(&view, &format!("attribute {name}"), view.int(name, 0)?);
    let (shortest, longest, skips) =
        (number("min_gram_length")?, number("max_gram_length")?, number("max_skip_count")?);
    let weights = match view.attribute("weights") {
        None => vec![1.0; places.len()],
        Some(Attribute::Floats(weights)) if weights.len() == places.len() => weights.clone(),
        Some(_) => {
            return Err(view.error(format!("attribute weights needs a number for each of {} n-grams", places.len())));
        }
    };
    let (is_weighted, is_counted) = match view.string("mode", "")? {
        "TF" => (false, true),
        "IDF" => (true, false),
        "TFIDF" => (true, true),
        other => return Err(view.error(format!("attribute mode must be TF, IDF or TFIDF, not '{other}'"))),
    };
    let x = c.reshape(&x, &[batch, length])?;
    let mut columns: Vec<Part> = Vec::new();
    // For each position of the output, the column that has its count.
    let mut sources = BTreeMap::new();
    let (mut gram, mut column) = (0, 0);
    for (i, n) in (1..=begins.len() as u64).enumerate() {
        let end = begins.get(i + 1).copied().unwrap_or(pool.len() as i64);
        let grams = usize::try_from(begins[i]).ok().zip(usize::try_from(end).ok());
        let grams =
            grams.and_then(|(begin, end)| pool.get(begin..end)).filter(|grams| (grams.len() as u64).is_multiple_of(n));
        let grams = grams.ok_or_else(|| view.error("attribute ngram_counts does not fit the pool"))?;
        let count = grams.len() / n as usize;
        let own = gram..gram + count;
        gram += count;
        let places = places.get(own.clone()).ok_or_else(|| view.error("attribute ngram_indexes is too short"))?;
        if count == 0 || !(shortest..=longest).contains(&n) {
            continue;
        }
        let steps = if n == 1 { 1..=1 } else { 1..=skips.saturating_add(1).min(length) };
        let mut total: Option<Part> = None;
        for step in steps {
            let reach = (n - 1).saturating_mul(step);
            let Some(windows) = length.checked_sub(reach).filter(|&windows| windows > 0) else { break };
            let found = found(&mut c, &x, grams, [n, step, windows])?;
            total = Some(match total {
                Some(total) => c.binary(BinaryOp::Add, &total, &found)?,
                None => found,
            });
        }
        let Some(mut total) = total else { continue };
        if !is_counted {
            let one = c.floats(DataType::Float32, &[1], &[1.0])?;
            total = c.binary(BinaryOp::Minimum, &total, &one)?;
        }
        if is_weighted {
            let weights: Vec<f64> = weights[own].iter().map(|&weight| f64::from(weight)).collect();
            let weights = c.floats(DataType::Float32, &[1, count as u64], &weights)?;
            total = c.binary(BinaryOp::Multiply, &total, &weights)?;
        }
        columns.push(total);
        for &place in places {
            if sources.insert(place, column).is_some() {
                return Err(view.error(format!("attribute ngram_indexes contains {place} twice")));
            }
            column += 1;
        }
    }
    let last = places.iter().copied().max().unwrap_or(-1);
    let outputs = size(&view, "attribute ngram_indexes", last.saturating_add(1))?;
    if outputs > COMPARISONS_MAX || places.iter().any(|&place| place < 0) {
        let largest = COMPARISONS_MAX - 1;
        return Err(view.error(format!("attribute ngram_indexes must contain places from 0 to {largest}")));
    }
    // The counts are followed by a column of zeros, for positions without an n-gram.
    let zeros = TensorType::new(DataType::Float32, &[batch, 1]);
    columns.push(c.kernel(Kernel::Fill { value: 0.0 }, &[], zeros));
    let columns: Vec<&Part> = columns.iter().collect();
    let columns = c.concatenate(&columns, 1)?;
    let from: Vec<i64> = (0..outputs as i64).map(|place| sources.get(&place).copied().unwrap_or(column)).collect();
    let y = take(&mut c, &columns, 1, &from);
    let y = if view.input_type(0)?.shape.len() == 1 { c.reshape(&y, &[outputs])? } else { y };
    c.finish(y)
}

/// How often n-grams of n elements that are `step` positions apart occur in rows: [batch, n-grams].
fn found(c: &mut Composer, x: &Part, grams: &[i64], [n, step, windows]: [u64; 3]) -> Result<Part, ModelError> {
    let (batch, count) = (x.ty.shape[0], grams.len() as u64 / n);
    let comparisons = batch.checked_mul(windows).and_then(|places| places.checked_mul(count));
    if comparisons.is_none_or(|comparisons| comparisons > COMPARISONS_MAX) {
        return Err(c.view.error(format!(
            "{count} n-grams at {windows} places of {batch} rows need more than {COMPARISONS_MAX} comparisons"
        )));
    }
    let mut matches: Option<Part> = None;
    for k in 0..n {
        let elements = c.slice(x, 1, k * step, windows)?;
        let elements = c.reshape(&elements, &[batch, windows, 1])?;
        let wanted: Vec<i64> = grams.iter().skip(k as usize).step_by(n as usize).copied().collect();
        let wanted = c.integers(x.ty.data_type, &[1, 1, count], &wanted)?;
        let equal = c.binary(BinaryOp::Equal, &elements, &wanted)?;
        matches = Some(match matches {
            Some(matches) => c.binary(BinaryOp::And, &matches, &equal)?,
            None => equal,
        });
    }
    let matches = matches.ok_or_else(|| c.view.error("n-grams must have at least one element"))?;
    let matches = c.cast(&matches, DataType::Float32);
    let sums = c.reduce(ReduceOp::Sum, &[1], &matches)?;
    c.reshape(&sums, &[batch, count])
}
