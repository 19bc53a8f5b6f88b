//! The promises of the inserter and the checker, on random programs, compared with slow models.

mod common;

use common::{Model, Random, hazard, prologue, scattered, work};
use forebay_base::{Command, StreamId};
use forebay_sync::{StepBoundary, TileMap, Tracker, check_races, insert_barriers};

const BOUNDARIES: [StepBoundary; 2] = [StepBoundary::HostJoin, StepBoundary::Streams];

fn is_synchronization(command: &Command) -> bool {
    matches!(command, Command::Barrier { .. } | Command::Wait { .. })
}

#[test]
fn the_checker_agrees_with_the_contract() {
    let mut racing = 0;
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let (streams, length) = (1 + random.below(3), 2 + random.below(12) as usize);
        let list = scattered(&mut random, streams, length);
        for (steps, boundary) in [(1, StepBoundary::HostJoin), (2, StepBoundary::Streams)] {
            let expected = Model::new(&list, steps).races();
            let found = check_races(&prologue(), &list, steps, boundary);
            assert_eq!(found.is_err(), expected, "seed {seed}, {steps} steps: {found:#?}\n{list:#?}");
            racing += usize::from(expected);
        }
    }
    assert!((500..5500).contains(&racing), "{racing} of 6000 race: the programs judge little");
}

#[test]
fn inserted_lists_are_free_of_races_and_nothing_in_them_is_redundant() {
    let mut removed = 0;
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let (streams, length) = (1 + random.below(4), 1 + random.below(24));
        let list: Vec<Command> = (0..length).map(|_| work(&mut random, streams)).collect();
        for boundary in BOUNDARIES {
            let result = insert_barriers(&prologue(), list.clone(), boundary).unwrap();
            let report = check_races(&prologue(), &result.commands, 2, boundary)
                .unwrap_or_else(|found| panic!("seed {seed}, {boundary:?}: {}", found[0]));
            assert_eq!((report.barriers, report.waits), (result.barriers, result.waits), "seed {seed}");
            assert_eq!(report.work, list.len());
            let kept: Vec<&Command> = result.work_indices.iter().map(|&index| &result.commands[index]).collect();
            assert_eq!(kept, list.iter().collect::<Vec<_>>(), "seed {seed}");
            for index in (0..result.commands.len()).filter(|&index| is_synchronization(&result.commands[index])) {
                let mut mutant = result.commands.clone();
                let gone = mutant.remove(index);
                let verdict = check_races(&prologue(), &mutant, 2, boundary);
                assert!(verdict.is_err(), "seed {seed}, {boundary:?}: '{gone}' at {index} is redundant");
                removed += 1;
            }
        }
    }
    assert!(removed > 5000, "only {removed} removals were tried");
}

#[test]
fn three_steps_in_a_row_are_free_of_races_too() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (streams, length) = (1 + random.below(4), 1 + random.below(16));
        let list: Vec<Command> = (0..length).map(|_| work(&mut random, streams)).collect();
        let result = insert_barriers(&prologue(), list, StepBoundary::Streams).unwrap();
        assert!(!Model::new(&result.commands, 3).races(), "seed {seed}");
    }
}

/// Returns the smallest number of barriers for one stream by trying every choice of places, fewest first.
fn fewest_barriers(list: &[Command]) -> u32 {
    let gaps = list.len() - 1;
    let pairs: Vec<u32> = (0..list.len())
        .flat_map(|second| (0..second).map(move |first| (first, second)))
        .filter(|&(first, second)| hazard(&list[first], &list[second]))
        .map(|(first, second)| ((1u32 << second) - 1) & !((1u32 << first) - 1))
        .collect();
    let meets_all = |places: &u32| pairs.iter().all(|between| between & places != 0);
    (0..1u32 << gaps).filter(meets_all).map(u32::count_ones).min().unwrap()
}

#[test]
fn one_stream_gets_the_fewest_barriers() {
    for seed in 0..10_000 {
        let mut random = Random::new(seed);
        let length = 1 + random.below(8);
        let list: Vec<Command> = (0..length).map(|_| work(&mut random, 1)).collect();
        let result = insert_barriers(&prologue(), list.clone(), StepBoundary::HostJoin).unwrap();
        assert_eq!((result.barriers as u32, result.waits), (fewest_barriers(&list), 0), "seed {seed}");
        let mut tracker = Tracker::new(TileMap::from_prologue(&prologue()).unwrap());
        let mut submit = |command: &&Command| tracker.submit(&command.reads(), &command.writes()).unwrap();
        assert_eq!(list.iter().filter(&mut submit).count(), result.barriers, "seed {seed}: the tracker differs");
    }
}

#[test]
fn given_its_waits_each_stream_gets_the_fewest_barriers() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let length = 1 + random.below(8);
        let list: Vec<Command> = (0..length).map(|_| work(&mut random, 2)).collect();
        let result = insert_barriers(&prologue(), list, StepBoundary::HostJoin).unwrap();
        let bare: Vec<Command> =
            result.commands.iter().filter(|command| !matches!(command, Command::Barrier { .. })).cloned().collect();
        for stream in [StreamId(0), StreamId(3)] {
            let own = |command: &Command| matches!(command, Command::Barrier { stream: s } if *s == stream);
            let used = result.commands.iter().filter(|command| own(command)).count() as u32;
            // Barriers in one stream order nothing in another, so the other can have them everywhere.
            let with = |places: u32| -> Vec<Command> {
                let mut seen = 0;
                bare.iter()
                    .flat_map(|command| {
                        let mine = command.stream() == Some(stream) && command.is_work();
                        let barrier = !mine || places & (1 << seen) != 0;
                        seen += u32::from(mine);
                        let barrier = barrier.then(|| Command::Barrier { stream: command.stream().unwrap() });
                        barrier.filter(|_| command.is_work()).into_iter().chain([command.clone()])
                    })
                    .collect()
            };
            let works = bare.iter().filter(|command| command.stream() == Some(stream) && command.is_work()).count();
            let fewest = (0..1u32 << works)
                .filter(|places| places.count_ones() <= used)
                .filter(|&places| check_races(&prologue(), &with(places), 1, StepBoundary::HostJoin).is_ok())
                .map(u32::count_ones)
                .min();
            assert_eq!(fewest, Some(used), "seed {seed}, {stream}");
        }
    }
}
