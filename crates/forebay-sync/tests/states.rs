//! Resource states on random sequences, compared with a model that looks everything up in the past.

mod common;

use common::Random;
use forebay_base::MemoryId;
use forebay_sync::states::{Access, Resource, ResourceState, ResourceStates, Transition};

const STATES: [ResourceState; 4] =
    [ResourceState::Common, ResourceState::UnorderedAccess, ResourceState::CopySource, ResourceState::CopyDest];
const ACCESSES: [Access; 3] = [Access::UnorderedAccess, Access::CopySource, Access::CopyDest];
const RESOURCES: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Transition(Transition),
    Command(Vec<(Resource, Access)>),
    EndSubmission,
}

fn resource(random: &mut Random) -> Resource {
    Resource { memory: MemoryId(random.below(RESOURCES) as u32), alias: None }
}

/// A command's accesses, each resource in one state.
fn command(random: &mut Random) -> Step {
    let mut accesses: Vec<(Resource, Access)> = Vec::new();
    for _ in 0..1 + random.below(3) {
        let resource = resource(random);
        let access = ACCESSES[random.below(3) as usize];
        let known = accesses.iter().find(|(other, _)| *other == resource).map(|&(_, access)| access);
        accesses.push((resource, known.unwrap_or(access)));
    }
    Step::Command(accesses)
}

fn transition(random: &mut Random) -> Step {
    let mut state = || STATES[random.below(4) as usize];
    let (before, after) = (state(), state());
    Step::Transition(Transition { resource: resource(random), before, after })
}

/// Returns the index of the first step that the checker refuses.
fn refused(steps: &[Step]) -> Option<usize> {
    let mut states = ResourceStates::default();
    steps.iter().position(|step| match step {
        Step::Transition(claimed) => states.transition(*claimed).is_err(),
        Step::Command(accesses) => states.access(accesses).is_err(),
        Step::EndSubmission => {
            states.end_submission();
            false
        }
    })
}

/// Returns the state of a resource before a step, from the last thing that happened to it in the submission.
fn model_state(past: &[Step], resource: Resource) -> ResourceState {
    for step in past.iter().rev() {
        match step {
            Step::EndSubmission => return ResourceState::Common,
            Step::Transition(transition) if transition.resource == resource => return transition.after,
            Step::Command(accesses) => match accesses.iter().find(|(other, _)| *other == resource) {
                Some((_, access)) => return access.state(),
                None => continue,
            },
            Step::Transition(_) => continue,
        }
    }
    ResourceState::Common
}

fn model_refuses(steps: &[Step], index: usize) -> bool {
    let state = |resource: Resource| model_state(&steps[..index], resource);
    match &steps[index] {
        Step::EndSubmission => false,
        Step::Transition(claimed) => state(claimed.resource) != claimed.before || claimed.before == claimed.after,
        Step::Command(accesses) => accesses
            .iter()
            .any(|&(resource, access)| ![ResourceState::Common, access.state()].contains(&state(resource))),
    }
}

/// Random commands with the transitions that they need.
fn computed(random: &mut Random) -> Vec<Step> {
    let mut states = ResourceStates::default();
    let mut steps = Vec::new();
    for _ in 0..1 + random.below(12) {
        let step = if random.below(6) == 0 { Step::EndSubmission } else { command(random) };
        match &step {
            Step::Command(accesses) => {
                let needed = states.require(accesses).unwrap();
                steps.extend(needed.into_iter().map(Step::Transition));
            }
            _ => states.end_submission(),
        }
        steps.push(step);
    }
    steps
}

#[test]
fn claims_are_judged_as_the_model_judges_them() {
    let mut refusals = 0;
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let length = 1 + random.below(8);
        let steps: Vec<Step> = (0..length)
            .map(|_| match random.below(5) {
                0 => Step::EndSubmission,
                1 | 2 => command(&mut random),
                _ => transition(&mut random),
            })
            .collect();
        let expected = (0..steps.len()).find(|&index| model_refuses(&steps, index));
        assert_eq!(refused(&steps), expected, "seed {seed}: {steps:#?}");
        refusals += usize::from(expected.is_some());
    }
    assert!((5000..19_500).contains(&refusals), "{refusals} of 20000 are refused: the sequences judge little");
}

#[test]
fn computed_transitions_pass_and_none_of_them_can_be_missing_or_different() {
    let mut mutants = 0;
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let steps = computed(&mut random);
        assert_eq!(refused(&steps), None, "seed {seed}: {steps:#?}");
        assert!((0..steps.len()).all(|index| !model_refuses(&steps, index)), "seed {seed}: {steps:#?}");
        for (index, step) in steps.iter().enumerate() {
            let &Step::Transition(right) = step else { continue };
            let mut missing = steps.clone();
            missing.remove(index);
            assert!(refused(&missing).is_some(), "seed {seed}: {right} is redundant");
            let mut altered: Vec<Transition> = Vec::new();
            altered.extend(STATES.map(|before| Transition { before, ..right }));
            // COMMON would work as well, since the command promotes from there. It is no cheaper, so it is not computed.
            altered.extend(STATES[1..].iter().map(|&after| Transition { after, ..right }));
            altered.extend(
                (0..RESOURCES as u32)
                    .map(|memory| Transition { resource: Resource { memory: MemoryId(memory), alias: None }, ..right }),
            );
            for wrong in altered.into_iter().filter(|altered| *altered != right) {
                let mut mutant = steps.clone();
                mutant[index] = Step::Transition(wrong);
                assert!(refused(&mutant).is_some(), "seed {seed}: {wrong} passes for {right}");
                mutants += 1;
            }
        }
    }
    assert!(mutants > 20_000, "only {mutants} mutants were tried");
}

#[test]
fn fixed_state_aliases_never_need_a_transition() {
    for seed in 0..1000 {
        let mut random = Random::new(seed);
        let mut aliases = ResourceStates::default();
        for _ in 0..1 + random.below(20) {
            if random.below(6) == 0 {
                aliases.end_submission();
            }
            let access = ACCESSES[random.below(3) as usize];
            let alias = Resource { alias: Some(access), ..resource(&mut random) };
            assert_eq!(aliases.require(&[(alias, access)]), Ok(vec![]), "seed {seed}");
        }
    }
}
