//! The launches of a step in which contents are dropped: what is missing when a launch needs it is recomputed first.

use crate::tuning::RECOMPUTED_CHAIN_MAX;

use super::sink::sink;
use super::step::{Content, Lifetime, Step};

/// What is dropped, and what is kept for longer than its own uses require.
#[derive(Clone)]
pub(super) struct Choice {
    /// By gap between two uses of a content: whether it is dropped in between.
    pub(super) dropped: Vec<bool>,
    /// By content: whether it is kept after its last use for launches that run again.
    pub(super) kept: Vec<bool>,
    /// By content: whether it stays until its own next use after it was recomputed for others.
    pub(super) held: Vec<bool>,
    /// The number of launches for which everything that was used or recomputed stays, so that what neighboring parts need is not
    /// recomputed for each.
    pub(super) window: usize,
    /// Whether launches run later if that saves bytes ([`sink`]).
    pub(super) sinks: bool,
}

impl Choice {
    pub(super) fn nothing(step: &Step) -> Choice {
        let count = step.contents.len();
        Choice {
            dropped: vec![false; step.gap_count],
            kept: vec![false; count],
            held: vec![false; count],
            window: 0,
            sinks: step.one_pool,
        }
    }
}

/// Returns the launches of a choice, each with whether it is a repeat; `None` if something is dropped that cannot be recomputed.
pub(super) fn sequence(step: &Step, choice: &Choice) -> Option<Vec<(usize, bool)>> {
    let state = State { uses: 0, touched: None, remade: None };
    let mut building = Building {
        step,
        choice,
        states: vec![state; step.contents.len()],
        launches: Vec::with_capacity(step.items.len()),
    };
    for (launch, item) in step.items.iter().enumerate() {
        for &read in &item.reads {
            if !building.ensure(read, launch, RECOMPUTED_CHAIN_MAX) {
                return None;
            }
        }
        building.launches.push((launch, false));
        for &content in &item.touched {
            let state = &mut building.states[content];
            *state = State { uses: state.uses + 1, touched: Some(launch), remade: None };
        }
    }
    let mut launches = building.launches;
    if choice.sinks {
        sink(step, &mut launches);
    }
    Some(launches)
}

/// The state of a content so far.
#[derive(Clone, Copy)]
struct State {
    /// The number of its own uses so far.
    uses: usize,
    /// The launch for which it was last in memory.
    touched: Option<usize>,
    /// The launch for which it was last recomputed since its last use.
    remade: Option<usize>,
}

/// A sequence while it is built.
struct Building<'a> {
    step: &'a Step<'a>,
    choice: &'a Choice,
    /// By content.
    states: Vec<State>,
    launches: Vec<(usize, bool)>,
}

impl Building<'_> {
    /// Returns whether contents are in memory when a launch starts.
    fn is_present(&self, content: usize, at: usize) -> bool {
        let (Content { lifetime, maker, chunk, first_gap, .. }, state) =
            (&self.step.contents[content], &self.states[content]);
        if *lifetime != Lifetime::Temporary || state.uses == 0 {
            return true;
        }
        let is_near = |touched: usize| at - touched <= self.choice.window;
        if state.remade == Some(at) || state.remade.is_some() && self.choice.held[content] {
            return true;
        }
        // What is no longer needed is recomputed if possible, and otherwise kept until then.
        let is_dropped = match state.uses < chunk.accesses.len() {
            true => self.choice.dropped[first_gap + state.uses - 1],
            false => !self.choice.kept[content] && maker.is_some_and(|maker| self.step.may_repeat(maker, at)),
        };
        !is_dropped || self.choice.window > 0 && state.touched.is_some_and(is_near)
    }

    /// Recomputes contents before a launch if they are not in memory. Returns whether they are in memory after that.
    fn ensure(&mut self, content: usize, at: usize, chain: usize) -> bool {
        if self.is_present(content, at) {
            self.states[content].touched = Some(at);
            return true;
        }
        let maker = self.step.contents[content].maker.filter(|&maker| self.step.may_repeat(maker, at));
        let (Some(maker), true) = (maker, chain > 0) else { return false };
        let item = &self.step.items[maker];
        if !item.reads.iter().all(|&read| self.ensure(read, at, chain - 1)) {
            return false;
        }
        for &write in &item.writes {
            let state = &mut self.states[write];
            (state.remade, state.touched) = (Some(at), Some(at));
        }
        self.launches.push((maker, true));
        true
    }
}
