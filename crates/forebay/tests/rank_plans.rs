//! The plans of all processes of a run, checked together: whatever each one's budget, exchanges pair up and no process waits forever.
//!
//! A program of its own: a limit on the memory of the process counts what other tests in it use.

use forebay::{EngineOptions, Error, MemoryLimit, MemorySize, Plan, ProcessGroup, Shard, Trainer, check_plans};
use forebay_device_testing::local_communicator::local_communicators;
use forebay_golden::{Case, host, recipe, trainer_options};

/// The plan of one of several processes, each within its own memory: a budget for tensors, or, for the last of three processes, little more
/// than the smallest limit that this process can work with, at which whatever does not fit is recomputed.
fn plan(case: &Case, group: ProcessGroup, shard: Shard, parts: u64) -> Plan {
    let (rank, size) = (group.rank(), group.size());
    let mut engine = host(1 + rank % 2).processes(group);
    engine.device.shard = shard;
    let plan = |engine: &EngineOptions| {
        let mut training = recipe(case);
        training.accumulate = parts;
        let trainer = Trainer::new(case.model(), trainer_options(training, engine.clone()))?;
        Ok::<Plan, Error>(trainer.plan().clone())
    };
    if rank % 3 != 2 || size != 3 {
        engine.memory.simulate_device = (rank % 3 == 1).then(|| "50%".parse().unwrap());
        return plan(&engine).unwrap();
    }
    engine.memory.memory_limit = Some(MemoryLimit::Size(MemorySize::Bytes(1 << 20)));
    let Err(Error::MemoryLimit { tensors_bytes, other_bytes, .. }) = plan(&engine) else {
        panic!("no process stays within 1 MiB")
    };
    let bytes = tensors_bytes + tensors_bytes / 4 + other_bytes + (4 << 20);
    engine.memory.memory_limit = Some(MemoryLimit::Size(MemorySize::Bytes(bytes)));
    plan(&engine).unwrap()
}

#[test]
fn plans_of_all_processes_pair_up() {
    let runs = [
        ("digits-cnn", 3, 1),
        ("digits-cnn", 3, 2),
        ("digits-cnn", 8, 1),
        ("resnet20", 4, 1),
        ("tiny-gpt", 2, 1),
        ("tiny-gpt", 2, 4),
    ];
    for (name, processes, parts) in runs {
        let case = Case::read(name);
        for shard in [Shard::Nothing, Shard::State, Shard::Gradients, Shard::Parameters] {
            let groups = local_communicators(processes).into_iter().map(ProcessGroup::new);
            let plans: Vec<Plan> = groups.map(|group| plan(&case, group, shard, parts)).collect();
            if let Err(error) = check_plans(&plans.iter().collect::<Vec<&Plan>>()) {
                panic!("{name}, {processes} processes, {parts} parts, {shard:?}: {error}");
            }
        }
    }
}
