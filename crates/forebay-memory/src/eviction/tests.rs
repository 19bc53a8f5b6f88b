//! The measured table, and random use against a naive model that keeps actual contents.

use super::*;
use forebay_testing::Random;

fn units(ids: impl IntoIterator<Item = u64>) -> Vec<UnitId> {
    ids.into_iter().map(UnitId).collect()
}

/// One action of the experiment of Negishi and others (2018, sections 3.4 to 3.6): chunks of one unit, of which `CHUNKS` fit.
#[derive(Clone, Copy, Debug)]
enum Action {
    Touch(u64),
    Prefetch(&'static [u64]),
    Free(u64),
    PrefetchToHost(u64),
    FreeAndPrefetchToHost(u64, u64),
    Advise(u64, Advice),
}

const CHUNKS: u64 = 14;

fn finish_prefetches(queue: &mut EvictionQueue) {
    while let Some((_, start)) = queue.start_prefetch() {
        queue.finish_prefetch(&start);
    }
}

/// Prepares, acts and overcommits. Returns the chunk among the first three that is then not on the device.
fn evicted_after(policy: Policy, action: Action) -> Option<u64> {
    let mut queue = EvictionQueue::new(policy, CHUNKS);
    for chunk in 0..CHUNKS {
        queue.add(UnitId(chunk), 1);
        queue.use_units(&[(UnitId(chunk), Access::Overwrite)]).unwrap();
    }
    match action {
        Action::Touch(chunk) => assert!(queue.use_units(&[(UnitId(chunk), Access::Read)]).unwrap().is_empty()),
        Action::Prefetch(chunks) => {
            chunks.iter().for_each(|&chunk| queue.prefetch(UnitId(chunk), Location::Device).unwrap());
        }
        Action::Free(chunk) => assert!(queue.remove(UnitId(chunk))),
        Action::PrefetchToHost(chunk) => queue.prefetch(UnitId(chunk), Location::Host).unwrap(),
        Action::FreeAndPrefetchToHost(freed, chunk) => {
            assert!(queue.remove(UnitId(freed)));
            queue.prefetch(UnitId(chunk), Location::Host).unwrap();
        }
        Action::Advise(chunk, advice) => queue.advise(UnitId(chunk), advice).unwrap(),
    }
    finish_prefetches(&mut queue);
    queue.add(UnitId(CHUNKS), 1);
    queue.use_units(&[(UnitId(CHUNKS), Access::Overwrite)]).unwrap();
    let missing: Vec<u64> = (0..3).filter(|&chunk| !queue.is_resident(UnitId(chunk))).collect();
    assert!(missing.len() <= 1, "{missing:?}");
    missing.first().copied()
}

#[test]
fn the_measured_table_holds() {
    let preferred = Advice::PreferredLocation;
    let table = [
        (1, Action::Touch(0), Some(0)),
        (2, Action::Prefetch(&[0]), Some(1)),
        (3, Action::Prefetch(&[0, 1]), Some(2)),
        (4, Action::Free(3), None),
        (5, Action::PrefetchToHost(1), Some(1)),
        (6, Action::FreeAndPrefetchToHost(3, 0), None),
        (7, Action::Advise(0, Advice::AccessedBy(Location::Device)), Some(0)),
        (8, Action::Advise(0, preferred(Location::Device)), Some(0)),
        (9, Action::Advise(1, Advice::AccessedBy(Location::Host)), Some(0)),
        // The text says that the preferred location is the GPU, the code says the CPU.
        (10, Action::Advise(1, preferred(Location::Device)), Some(0)),
        (10, Action::Advise(1, preferred(Location::Host)), Some(0)),
    ];
    for (number, action, evicted) in table {
        assert_eq!(evicted_after(Policy::Driver, action), evicted, "action {number}: {action:?}");
        let touched = if number == 1 { Some(1) } else { evicted };
        assert_eq!(evicted_after(Policy::Touch, action), touched, "action {number}: {action:?}");
    }
}

#[test]
fn what_is_used_farthest_in_the_future_goes() {
    let mut queue = EvictionQueue::new(Policy::Planned, 3);
    (0..5).for_each(|unit| queue.add(UnitId(unit), 1));
    let order = [0, 1, 2, 3, 0, 1, 4, 2];
    queue.set_next_uses(&order.map(|unit| units([unit])));
    let mut fetches = 0;
    for unit in order {
        fetches += queue.use_units(&[(UnitId(unit), Access::Update)]).unwrap().arrivals.len();
    }
    // First in, first out would fetch 8 times; Belady keeps 0 and 1.
    assert_eq!(fetches, 6);
    // A prefetch does not push out what is used before it.
    queue.set_next_uses(&[2, 4, 1, 3, 0].map(|unit| units([unit])));
    let resident: Vec<UnitId> = queue.residents().collect();
    queue.prefetch(UnitId(3), Location::Device).unwrap();
    assert!(resident.iter().all(|unit| [1, 2, 4].contains(&unit.0)));
    assert_eq!(queue.start_prefetch().unwrap().1, PrefetchStart::Nothing);
}

#[test]
fn prefetches_can_be_recalled_except_from_a_driver() {
    for policy in [Policy::Driver, Policy::Touch, Policy::Planned] {
        let mut queue = EvictionQueue::new(policy, 2);
        queue.add(UnitId(0), 1);
        queue.prefetch(UnitId(0), Location::Device).unwrap();
        assert_eq!(queue.cancel_prefetch(UnitId(0)), policy != Policy::Driver);
        assert_eq!(queue.prefetches().count(), usize::from(policy == Policy::Driver));
        finish_prefetches(&mut queue);
        assert_eq!(queue.is_resident(UnitId(0)), policy == Policy::Driver);
    }
}

#[test]
fn read_mostly_keeps_the_copy_on_the_host() {
    let mut queue = EvictionQueue::new(Policy::Touch, 2);
    (0..2).for_each(|unit| queue.add(UnitId(unit), 1));
    for unit in units(0..2) {
        let write = queue.host_write(unit, true);
        queue.host_wrote(unit, write);
        assert!(queue.use_units(&[(unit, Access::Read)]).unwrap().arrivals[0].copy);
    }
    queue.advise(UnitId(0), Advice::ReadMostly).unwrap();
    assert!(!queue.spare_host_copy(UnitId(0)) && queue.spare_host_copy(UnitId(1)));
    queue.add(UnitId(2), 2);
    let moves = queue.use_units(&[(UnitId(2), Access::Overwrite)]).unwrap();
    assert_eq!(moves.evictions.iter().map(|eviction| eviction.copy_back).collect::<Vec<_>>(), [false, true]);
    queue.withdraw_advice(UnitId(0), Advice::ReadMostly).unwrap();
    assert!(!queue.can_spare_host_copy(UnitId(0)), "it is the only copy");
}

#[test]
fn what_cannot_fit_is_refused_and_changes_nothing() {
    let mut queue = EvictionQueue::new(Policy::Touch, 2);
    (0..3).for_each(|unit| queue.add(UnitId(unit), 1));
    let all: Vec<_> = (0..3).map(|unit| (UnitId(unit), Access::Read)).collect();
    let error = queue.use_units(&all).unwrap_err();
    assert_eq!(error, EvictionError::TooLarge { needed_bytes: 3, capacity_bytes: 2 });
    assert!(error.to_string().contains("3 bytes"));
    let unknown = queue.use_units(&[(UnitId(7), Access::Read)]).unwrap_err();
    assert_eq!(unknown, EvictionError::UnknownUnit { unit: UnitId(7) });
    assert_eq!(queue.residents().count(), 0);
}

/// A unit with contents: versions, the newest of which is the truth.
#[derive(Clone, Debug, Default)]
struct Slow {
    size_bytes: u64,
    truth: Option<u64>,
    /// The outer option: whether it is on the device. Garbage is version 0.
    device: Option<u64>,
    host: Option<u64>,
    advice: Vec<Advice>,
}

/// A naive version of the queue: a list for the order, actual contents, and the future as a list of uses.
struct Model {
    policy: Policy,
    capacity_bytes: u64,
    units: BTreeMap<UnitId, Slow>,
    order: Vec<UnitId>,
    future: VecDeque<Vec<UnitId>>,
    version: u64,
}

impl Model {
    fn resident_bytes(&self) -> u64 {
        self.order.iter().map(|unit| self.units[unit].size_bytes).sum()
    }

    fn next_use(&self, unit: UnitId) -> usize {
        self.future.iter().position(|uses| uses.contains(&unit)).unwrap_or(usize::MAX)
    }

    fn place(&mut self, unit: UnitId, head: bool) {
        if let Some(place) = self.order.iter().position(|&known| known == unit) {
            self.order.remove(place);
            self.order.insert(if head { 0 } else { self.order.len() }, unit);
        }
    }

    fn slow(&mut self, unit: UnitId) -> &mut Slow {
        self.units.get_mut(&unit).unwrap()
    }

    /// Carries out moves with actual contents, and checks them.
    fn carry_out(&mut self, moves: &Moves, stays: &[UnitId], place: &str) {
        let arriving: u64 = moves.arrivals.iter().map(|arrival| self.units[&arrival.unit].size_bytes).sum();
        let mut evictions = moves.evictions.iter();
        while self.resident_bytes() + arriving > self.capacity_bytes {
            let candidates = || self.order.iter().copied().filter(|unit| !stays.contains(unit));
            let victim = match self.policy {
                // `max_by_key` takes the last of equals.
                Policy::Planned => candidates().rev().max_by_key(|&unit| self.next_use(unit)),
                _ => candidates().next(),
            };
            let eviction = evictions.next().unwrap_or_else(|| panic!("too few evictions, {place}"));
            assert_eq!(Some(eviction.unit), victim, "{place}");
            let slow = self.units.get_mut(&eviction.unit).unwrap();
            let clean = slow.truth.is_none() || slow.host == slow.truth;
            assert_eq!(eviction.copy_back, !clean, "clean and dead copies are not copied back, {place}");
            if eviction.copy_back {
                slow.host = slow.device;
            }
            slow.device = None;
            self.order.retain(|&unit| unit != eviction.unit);
        }
        assert_eq!(evictions.next(), None, "more than needed, {place}");
        for arrival in &moves.arrivals {
            let slow = self.units.get_mut(&arrival.unit).unwrap();
            assert_eq!(slow.device, None, "{place}");
            assert!(!arrival.copy || slow.truth.is_some(), "nothing to copy, {place}");
            slow.device = Some(if arrival.copy { slow.host.unwrap() } else { 0 });
            self.order.push(arrival.unit);
        }
    }

    fn compare(&self, queue: &EvictionQueue, place: &str) {
        assert!(queue.resident_bytes() <= self.capacity_bytes, "{place}");
        assert_eq!(queue.resident_bytes(), self.resident_bytes(), "{place}");
        assert_eq!(queue.residents().collect::<Vec<_>>(), self.order, "{place}");
        for (&unit, slow) in &self.units {
            assert_eq!(queue.is_resident(unit), slow.device.is_some(), "{unit}, {place}");
            assert_eq!(queue.has_data(unit), slow.truth.is_some(), "{unit}, {place}");
            if slow.truth.is_some() {
                assert_eq!(queue.has_host_copy(unit), slow.host == slow.truth, "{unit}, {place}");
                assert!(slow.host == slow.truth || slow.device == slow.truth, "{unit} is lost, {place}");
            }
        }
    }
}

fn random_uses(random: &mut Random, model: &Model) -> Vec<(UnitId, Access)> {
    let mut uses = Vec::new();
    for _ in 0..=random.below(3) {
        let unit = *model.units.keys().nth(random.below(model.units.len() as u64) as usize).unwrap();
        let access = [Access::Read, Access::Overwrite, Access::Update][random.below(3) as usize];
        if uses.iter().all(|&(known, _)| known != unit) {
            uses.push((unit, access));
        }
    }
    uses
}

fn use_units(queue: &mut EvictionQueue, model: &mut Model, uses: &[(UnitId, Access)], place: &str) {
    let stays: Vec<UnitId> = uses.iter().map(|(unit, _)| *unit).collect();
    let needed_bytes: u64 = stays.iter().map(|unit| model.units[unit].size_bytes).sum();
    let moves = match queue.plan(uses) {
        Ok(moves) => moves,
        Err(error) => {
            let capacity_bytes = model.capacity_bytes;
            assert_eq!(error, EvictionError::TooLarge { needed_bytes, capacity_bytes }, "{place}");
            return;
        }
    };
    assert!(needed_bytes <= model.capacity_bytes, "{place}");
    model.carry_out(&moves, &stays, place);
    queue.commit(uses, &moves);
    model.future.pop_front();
    for &(unit, access) in uses {
        model.version += 1;
        let version = model.version;
        let slow = model.slow(unit);
        if access != Access::Overwrite && slow.truth.is_some() {
            assert_eq!(slow.device, slow.truth, "{unit} is read, {place}");
        }
        if access != Access::Read {
            (slow.device, slow.truth) = (Some(version), Some(version));
        }
        let head = slow.advice.contains(&Advice::PreferredLocation(Location::Host));
        if model.policy != Policy::Driver {
            model.place(unit, head);
        }
    }
}

fn host_writes(queue: &mut EvictionQueue, model: &mut Model, unit: UnitId, whole: bool) {
    let write = queue.host_write(unit, whole);
    model.version += 1;
    let version = model.version;
    let slow = model.slow(unit);
    if write.copy_back {
        slow.host = slow.device;
    }
    if !whole && slow.truth.is_some() {
        assert_eq!(slow.host, slow.truth, "a part is written over what the rest holds");
    }
    (slow.host, slow.truth) = (Some(version), Some(version));
    let follows = slow.advice.iter().any(|advice| {
        matches!(advice, Advice::AccessedBy(Location::Device) | Advice::PreferredLocation(Location::Device))
    });
    match write.device_copy {
        DeviceCopy::None => assert_eq!(slow.device, None),
        DeviceCopy::Updated => {
            assert!(slow.device.is_some() && follows);
            slow.device = Some(version);
        }
        DeviceCopy::Dropped => {
            assert!(slow.device.is_some() && !follows);
            slow.device = None;
            model.order.retain(|&known| known != unit);
        }
    }
    queue.host_wrote(unit, write);
}

fn prefetch_all(queue: &mut EvictionQueue, model: &mut Model, place: &str) {
    while let Some((prefetch, start)) = queue.start_prefetch() {
        match &start {
            PrefetchStart::SwapIn(moves) => model.carry_out(moves, &[], place),
            PrefetchStart::CopyBack => {
                let slow = model.slow(prefetch.unit);
                assert_ne!(slow.host, slow.truth, "{place}");
                slow.host = slow.device;
            }
            PrefetchStart::Nothing => {}
        }
        queue.finish_prefetch(&start);
    }
}

fn step(queue: &mut EvictionQueue, model: &mut Model, random: &mut Random, place: &str) {
    let unit = *model.units.keys().nth(random.below(model.units.len() as u64) as usize).unwrap();
    match random.below(20) {
        0..=7 => {
            // Half of the time the future comes as foreseen.
            let next_uses = model.future.front().filter(|_| random.below(2) == 0).cloned();
            let uses = match next_uses {
                Some(uses) => uses.into_iter().map(|unit| (unit, Access::Update)).collect(),
                None => random_uses(random, model),
            };
            use_units(queue, model, &uses, place);
        }
        8 | 9 => {
            let to = if random.below(2) == 0 { Location::Host } else { Location::Device };
            queue.prefetch(unit, to).unwrap();
            model.place(unit, to == Location::Host);
        }
        10 | 11 => prefetch_all(queue, model, place),
        12 => assert!(!queue.cancel_prefetch(unit) || model.policy != Policy::Driver, "{place}"),
        13 => {
            queue.discard(unit);
            let slow = model.slow(unit);
            slow.truth = None;
            model.place(unit, true);
        }
        14 => host_writes(queue, model, unit, random.below(2) == 0),
        15 => {
            if queue.host_read_copies_back(unit) {
                let slow = model.slow(unit);
                assert_ne!(slow.host, slow.truth, "{place}");
                slow.host = slow.device;
                queue.copied_back(unit);
            }
        }
        16 => {
            let spared = queue.spare_host_copy(unit);
            let slow = model.slow(unit);
            assert!(!spared || slow.device == slow.truth && !slow.advice.contains(&Advice::ReadMostly), "{place}");
            slow.host = slow.host.filter(|_| !spared);
        }
        17 => advise(queue, model, random, unit),
        18 => {
            model.future = (0..random.below(12)).map(|_| random_uses(random, model)).map(units_of).collect();
            queue.set_next_uses(model.future.make_contiguous());
        }
        _ => {
            assert_eq!(queue.remove(unit), model.order.contains(&unit), "{place}");
            model.units.remove(&unit);
            model.order.retain(|&known| known != unit);
            model.future.iter_mut().for_each(|uses| uses.retain(|&known| known != unit));
            add(queue, model, random);
        }
    }
}

fn units_of(uses: Vec<(UnitId, Access)>) -> Vec<UnitId> {
    uses.into_iter().map(|(unit, _)| unit).collect()
}

fn advise(queue: &mut EvictionQueue, model: &mut Model, random: &mut Random, unit: UnitId) {
    let location = if random.below(2) == 0 { Location::Host } else { Location::Device };
    let advice = match random.below(3) {
        0 => Advice::ReadMostly,
        1 => Advice::PreferredLocation(location),
        _ => Advice::AccessedBy(location),
    };
    let slow = model.slow(unit);
    if random.below(2) == 0 {
        queue.withdraw_advice(unit, advice).unwrap();
        slow.advice.retain(|&known| known != advice);
    } else {
        queue.advise(unit, advice).unwrap();
        let exclusive =
            |known: &Advice| matches!((known, advice), (Advice::PreferredLocation(_), Advice::PreferredLocation(_)));
        slow.advice.retain(|known| !exclusive(known));
        slow.advice.push(advice);
    }
}

fn add(queue: &mut EvictionQueue, model: &mut Model, random: &mut Random) {
    model.version += 1;
    let (unit, size_bytes) = (UnitId(model.version), 1 + random.below(4));
    queue.add(unit, size_bytes);
    model.units.insert(unit, Slow { size_bytes, ..Slow::default() });
}

#[test]
fn random_use_equals_a_naive_model_and_loses_nothing() {
    for seed in 1..=60 {
        for policy in [Policy::Driver, Policy::Touch, Policy::Planned] {
            let mut random = Random::new(seed);
            let capacity_bytes = 5 + random.below(12);
            let mut queue = EvictionQueue::new(policy, capacity_bytes);
            let (units, order, future) = (BTreeMap::new(), Vec::new(), VecDeque::new());
            let mut model = Model { policy, capacity_bytes, units, order, future, version: 0 };
            (0..10).for_each(|_| add(&mut queue, &mut model, &mut random));
            for number in 0..400 {
                let place = format!("seed {seed}, {policy:?}, step {number}");
                step(&mut queue, &mut model, &mut random, &place);
                model.compare(&queue, &place);
            }
        }
    }
}
