//! Finding and dropping plans that are kept.

use std::collections::BTreeMap;

use super::{Kind, Point, Root, RootKey, Step};
use crate::compile::Compiled;

/// Returns the points after a step.
fn behind(step: &Step) -> Vec<&Point> {
    match &step.kind {
        Kind::Run { rest, .. } => rest.iter().map(|rest| &**rest).collect(),
        Kind::Pin { by_elements, .. } => by_elements.values().collect(),
        Kind::Evaluate { rest, .. } => vec![rest],
        Kind::Repeat { body, rest, .. } => vec![body, rest],
    }
}

/// Returns the plan with this number.
pub(super) fn find(point: &Point, id: u64) -> Option<&Compiled> {
    point.steps.values().find_map(|step| match &step.kind {
        Kind::Run { plan: Some(plan), .. } if plan.id == id => Some(&plan.compiled),
        _ => behind(step).into_iter().find_map(|point| find(point, id)),
    })
}

/// Adds the numbers and sizes of the plans at and after a step to `to`.
fn plans(step: &Step, to: &mut Vec<(u64, usize)>) {
    if let Kind::Run { plan: Some(plan), .. } = &step.kind {
        to.push((plan.id, plan.size_bytes));
    }
    behind(step).into_iter().flat_map(|point| point.steps.values()).for_each(|step| plans(step, to));
}

/// Drops the oldest of several roots, or something at the only one; returns `false` if there is nothing to drop.
pub(super) fn give_up_oldest_root(roots: &mut BTreeMap<RootKey, Root>, given_up: &mut Vec<(u64, usize)>) -> bool {
    if roots.len() < 2 {
        return roots.values_mut().next().is_some_and(|root| give_up_oldest(&mut root.point, given_up));
    }
    let oldest = roots.iter().min_by_key(|(_, root)| root.point.used()).map(|(key, _)| key.clone());
    let removed = oldest.and_then(|key| roots.remove(&key));
    removed.iter().flat_map(|root| root.point.steps.values()).for_each(|step| plans(step, given_up));
    true
}

/// Drops the oldest of several ways on and adds the plans on it to `given_up`; returns `false` if there is only one way.
fn give_up_oldest(point: &mut Point, given_up: &mut Vec<(u64, usize)>) -> bool {
    if point.steps.len() > 1 {
        let oldest = point.steps.iter().min_by_key(|(_, step)| step.used).map(|(key, _)| key.clone());
        let step = oldest.and_then(|key| point.steps.remove(&key));
        step.iter().for_each(|step| plans(step, given_up));
        return true;
    }
    let Some(step) = point.steps.values_mut().next() else { return false };
    match &mut step.kind {
        Kind::Run { rest, .. } => rest.as_mut().is_some_and(|rest| give_up_oldest(rest, given_up)),
        Kind::Evaluate { rest, .. } => give_up_oldest(rest, given_up),
        Kind::Repeat { body, rest, .. } => give_up_oldest(rest, given_up) || give_up_oldest(body, given_up),
        Kind::Pin { by_elements, .. } => {
            if by_elements.len() < 2 {
                return by_elements.values_mut().next().is_some_and(|point| give_up_oldest(point, given_up));
            }
            let oldest = by_elements.iter().min_by_key(|(_, point)| point.used()).map(|(key, _)| key.clone());
            let removed = oldest.and_then(|key| by_elements.remove(&key));
            removed.iter().flat_map(|point| point.steps.values()).for_each(|step| plans(step, given_up));
            true
        }
    }
}
