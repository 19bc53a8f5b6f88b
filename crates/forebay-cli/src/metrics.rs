//! Metrics of validation, as text and as JSON.

use forebay::metrics::{Metric, Metrics};
use forebay::training::Loss;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Returns the metrics of validation: the chosen ones, or else the usual ones for the loss.
///
/// # Errors
/// Fails if a metric does not fit the loss.
pub fn of_validation(loss: &Loss, chosen: &[Metric]) -> Result<Metrics, Failure> {
    let chosen = if chosen.is_empty() { Metrics::usual(loss) } else { chosen.to_vec() };
    Metrics::new(loss, &chosen).map_err(|error| Failure::Usage(format!("--metrics: {error}")))
}

/// Returns the names of these metrics.
///
/// # Errors
/// Fails if a metric does not fit the loss.
pub fn names(loss: &Loss, chosen: &[Metric]) -> Result<Vec<String>, Failure> {
    Ok(of_validation(loss, chosen)?.chosen().iter().map(|metric| metric.to_string()).collect())
}

/// Adds metrics, if any, to a report by name.
pub fn add_to(report: &mut Value, metrics: &Metrics) {
    if metrics.chosen().is_empty() {
        return;
    }
    let values = metrics.chosen().iter().map(|&metric| {
        let value = match metric {
            Metric::Confusion => json!(metrics.confusion()),
            _ => json!(metrics.value(metric)),
        };
        (metric.to_string(), value)
    });
    let values: Map<String, Value> = values.collect();
    report["metrics"] = Value::Object(values);
}

/// Returns a line for each metric, except for the accuracy if `counted` says that another line has it; a confusion matrix has one line per
/// label.
pub fn lines(metrics: &Metrics, counted: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for &metric in metrics.chosen().iter().filter(|&&metric| !(counted && metric == Metric::Accuracy)) {
        if metric == Metric::Confusion {
            let rows = metrics.confusion().iter().enumerate().map(|(label, row)| {
                let row: Vec<String> = row.iter().map(u64::to_string).collect();
                format!("{:<16} label {label} predicted as {}", "", row.join(" "))
            });
            lines.extend(rows);
            continue;
        }
        let value = metrics.value(metric).map_or("none".to_owned(), |value| format!("{value:.4}"));
        lines.push(format!("{:<16} {metric} {value}", ""));
    }
    lines
}
