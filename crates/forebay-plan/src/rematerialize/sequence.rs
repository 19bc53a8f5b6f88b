//! The launches of a step in which contents are dropped: what is missing when a launch needs it is recomputed first.

use crate::tuning::RECOMPUTED_CHAIN_MAX;

use super::sink::Sinking;
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
    /// Whether launches run later if that saves bytes ([`Sinking`]).
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
    let mut built = Built::default();
    built.build(step, choice).then(|| {
        built.sink(step, choice);
        built.launches
    })
}

/// The launches of a choice. The memory that building them takes is kept for the next choice.
#[derive(Default)]
pub(super) struct Built {
    pub(super) launches: Vec<(usize, bool)>,
    /// The total duration of the launches that run again.
    pub(super) recomputed_ns: u64,
    /// By content.
    states: Vec<State>,
    sinking: Sinking,
}

impl Built {
    /// Builds the launches of a choice, before any of them is moved ([`Built::sink`]). Returns `false` if something is dropped that cannot be
    /// recomputed.
    pub(super) fn build(&mut self, step: &Step, choice: &Choice) -> bool {
        let Built { launches, recomputed_ns, states, .. } = self;
        launches.clear();
        states.clear();
        states.resize(step.contents.len(), State { uses: 0, touched: NEVER, remade: NEVER });
        let mut building = Building { step, choice, states, launches, recomputed_ns: 0 };
        for (launch, item) in step.items.iter().enumerate() {
            for &read in &item.reads {
                if !building.ensure(read, launch, RECOMPUTED_CHAIN_MAX) {
                    return false;
                }
            }
            building.launches.push((launch, false));
            for &content in &item.touched {
                let state = &mut building.states[content];
                *state = State { uses: state.uses + 1, touched: launch as u32, remade: NEVER };
            }
        }
        *recomputed_ns = building.recomputed_ns;
        true
    }

    /// Lets launches run later if the choice asks for it.
    pub(super) fn sink(&mut self, step: &Step, choice: &Choice) {
        if choice.sinks {
            self.sinking.sink(step, &mut self.launches);
        }
    }
}

/// Stands for no launch.
const NEVER: u32 = u32::MAX;

/// The state of a content so far.
#[derive(Clone, Copy)]
struct State {
    /// The number of its own uses so far.
    uses: u32,
    /// The launch for which it was last in memory, or [`NEVER`].
    touched: u32,
    /// The launch for which it was last recomputed since its last use, or [`NEVER`].
    remade: u32,
}

/// A sequence while it is built.
struct Building<'a> {
    step: &'a Step<'a>,
    choice: &'a Choice,
    states: &'a mut [State],
    launches: &'a mut Vec<(usize, bool)>,
    recomputed_ns: u64,
}

impl Building<'_> {
    /// Returns whether contents are in memory when a launch starts.
    fn is_present(&self, content: usize, at: usize) -> bool {
        let (Content { lifetime, maker, uses, first_gap, .. }, state) =
            (&self.step.contents[content], &self.states[content]);
        if *lifetime != Lifetime::Temporary || state.uses == 0 {
            return true;
        }
        if state.remade == at as u32 || state.remade != NEVER && self.choice.held[content] {
            return true;
        }
        // What is no longer needed is recomputed if possible, and otherwise kept until then.
        let used = state.uses as usize;
        let is_dropped = match used < *uses {
            true => self.choice.dropped[first_gap + used - 1],
            false => !self.choice.kept[content] && maker.is_some_and(|maker| self.step.may_repeat(maker, at)),
        };
        let is_near = || state.touched != NEVER && at - state.touched as usize <= self.choice.window;
        !is_dropped || self.choice.window > 0 && is_near()
    }

    /// Recomputes contents before a launch if they are not in memory. Returns whether they are in memory after that.
    fn ensure(&mut self, content: usize, at: usize, chain: usize) -> bool {
        if self.is_present(content, at) {
            self.states[content].touched = at as u32;
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
            (state.remade, state.touched) = (at as u32, at as u32);
        }
        self.launches.push((maker, true));
        self.recomputed_ns += item.duration_ns;
        true
    }
}
