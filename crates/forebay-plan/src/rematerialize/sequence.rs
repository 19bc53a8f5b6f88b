//! The launches of a step in which contents are dropped: what is not there when a launch needs it is recomputed before.

use crate::tuning::RECOMPUTED_CHAIN_MAX;

use super::sink::sink;
use super::step::{Content, Lifetime, Step};

/// What is dropped, and what is kept longer than its own uses need.
#[derive(Clone)]
pub(super) struct Choice {
    /// By gap between two uses of a content: whether it is dropped in between.
    pub(super) dropped: Vec<bool>,
    /// By content: whether it is kept behind its last use for launches that run once more.
    pub(super) kept: Vec<bool>,
    /// By content: whether it stays where it was recomputed for others, until its own next use.
    pub(super) held: Vec<bool>,
    /// For how many launches everything stays that was used or recomputed: what neighbouring parts need is not recomputed for each.
    pub(super) window: usize,
    /// Whether launches run later where that saves bytes ([`sink`]).
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

/// The launches of a choice, each with whether it runs once more; none where something is dropped that cannot be recomputed.
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
        let own = item.reads.iter().chain(item.writes.iter().filter(|write| !item.reads.contains(write)));
        for &content in own {
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

/// What became of a content so far.
#[derive(Clone, Copy)]
struct State {
    /// How many of its own uses have been.
    uses: usize,
    /// The launch for which it was last there.
    touched: Option<usize>,
    /// The launch for which it was last recomputed since its last use.
    remade: Option<usize>,
}

/// A sequence while it is put together.
struct Building<'a> {
    step: &'a Step<'a>,
    choice: &'a Choice,
    /// By content.
    states: Vec<State>,
    launches: Vec<(usize, bool)>,
}

impl Building<'_> {
    /// Whether contents are there when a launch starts.
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
        // What nothing needs any more is recomputed where that is possible, and else kept until then.
        let is_dropped = match state.uses < chunk.accesses.len() {
            true => self.choice.dropped[first_gap + state.uses - 1],
            false => !self.choice.kept[content] && maker.is_some_and(|maker| self.step.may_repeat(maker, at)),
        };
        !is_dropped || self.choice.window > 0 && state.touched.is_some_and(is_near)
    }

    /// Has contents recomputed before a launch where they are not there. Says whether they are there then.
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
