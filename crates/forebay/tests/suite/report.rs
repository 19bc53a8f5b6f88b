//! Output for users: the explanation of a plan, its commands, and the trace of its steps.

use forebay::{MemorySize, Trainer, command_lines, memory_picture};
use forebay_golden::{Case, host, recipe, trainer};
use serde_json::Value;

fn trainer_at_half(trace: bool) -> (Case, Trainer) {
    let case = Case::read("resnet20");
    let mut options = host(2);
    options.memory.simulate_device = Some(MemorySize::Percent(50.0));
    options.measuring.trace = trace;
    let trainer = trainer(case.model(), recipe(&case), options);
    (case, trainer)
}

#[test]
fn a_plan_says_what_moves_and_why() {
    let (_, trainer) = trainer_at_half(false);
    let explanation = trainer.explain();
    let budget = explanation.device_budget_bytes.unwrap();
    assert_eq!(budget, explanation.in_core_peak_bytes / 2);
    assert!(explanation.device_peak_bytes <= budget);
    assert!(explanation.minimum_budget_bytes <= budget);
    let moved =
        |direction| -> u64 { explanation.movements.iter().filter(|m| m.direction == direction).map(|m| m.bytes).sum() };
    assert_eq!(moved("to device"), explanation.bytes_to_device);
    assert_eq!(moved("from device"), explanation.bytes_from_device);
    assert!(explanation.movements.iter().all(|movement| !movement.name.is_empty() && !movement.reason.is_empty()));
    let text = explanation.to_string();
    for part in [
        "device budget",
        "smallest budget",
        "launches",
        "predicted time",
        "memory at the peak, while",
        "moved per step, by layer:",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.lines().count() <= 40, "it fits a screen: {text}");
    assert_eq!(explanation.movement_lines().len(), explanation.movements.len());
    let by_layer: [u64; 2] = explanation
        .traffic
        .iter()
        .fold([0, 0], |sum, row| [sum[0] + row.bytes_to_device, sum[1] + row.bytes_from_device]);
    assert_eq!(by_layer, [explanation.bytes_to_device, explanation.bytes_from_device]);
    let held: u64 = explanation.peak.held.iter().map(|held| held.bytes).sum();
    assert!(held <= explanation.device_peak_bytes && held > explanation.device_peak_bytes / 2, "{held}");
    for kind in ["activations", "gradients", "parameters"] {
        assert!(explanation.peak.held.iter().any(|held| held.kind == kind && held.bytes > 0), "{kind}");
    }
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["barriers"], explanation.barriers);
    let lines = command_lines(trainer.plan());
    assert_eq!(lines.len(), trainer.plan().prologue.len() + trainer.plan().commands.len());
    assert!(lines.iter().any(|line| line.contains("launch Convolution")));
}

#[test]
fn a_plan_says_what_lies_where_and_when() {
    let (_, trainer) = trainer_at_half(false);
    let placement = trainer.explain().placement;
    let peak = trainer.statistics().device_peak_bytes;
    assert!(placement.iter().all(|one| one.bytes > 0 && one.offset_bytes + one.bytes <= peak));
    for (i, one) in placement.iter().enumerate() {
        for other in &placement[..i] {
            let together = one.first_launch <= other.last_launch && other.first_launch <= one.last_launch;
            let overlap = one.offset_bytes < other.offset_bytes + other.bytes
                && other.offset_bytes < one.offset_bytes + one.bytes;
            assert!(!(together && overlap), "{one:?} and {other:?}");
        }
    }
    let launches = trainer.plan().commands.iter().filter_map(|command| match command {
        forebay_base::Command::Launch { launch, .. } => Some(launch),
        _ => None,
    });
    for (number, launch) in launches.enumerate() {
        for region in launch.reads.iter().chain(&launch.writes).map(|binding| binding.region).chain(launch.workspace) {
            let is_there = placement.iter().any(|one| {
                (one.first_launch..=one.last_launch).contains(&number)
                    && one.offset_bytes < region.range.end
                    && region.range.start < one.offset_bytes + one.bytes
            });
            assert!(is_there, "launch {number} uses {region}, where nothing lies");
        }
    }
    let picture = memory_picture(trainer.plan(), "a step");
    assert_eq!((picture.bars.len(), picture.size_bytes), (placement.len(), peak));
    assert_eq!(picture.time, 0..trainer.statistics().launches as u64);
}

#[test]
fn a_trace_has_a_row_per_stream_and_memory_as_a_counter() {
    let (case, mut trainer) = trainer_at_half(true);
    for step in 0..2 {
        let (batch, labels) = case.batch(step);
        let report = trainer.step(batch, labels).unwrap();
        assert_eq!(report.step, step as u64 + 1);
        assert!(0.0 <= report.stall_seconds && report.stall_seconds <= report.seconds);
    }
    let trace = trainer.trace();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| -> Vec<&Value> { events.iter().filter(|event| event["ph"] == phase).collect() };
    let launches = of("X").into_iter().filter(|event| event["args"]["kernel"] != "copy").count();
    assert!(launches >= 2 * trainer.statistics().launches, "{launches} launches in two steps");
    let rows: Vec<&str> = of("M").iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    for row in ["training, sizes 1", "compute", "copy in", "copy out"] {
        assert!(rows.contains(&row), "{row} in {rows:?}");
    }
    let peak = trainer.statistics().device_peak_bytes;
    let live: Vec<u64> = of("C").iter().filter_map(|event| event["args"]["bytes in use"].as_u64()).collect();
    assert!(!live.is_empty() && live.iter().all(|&bytes| 0 < bytes && bytes <= peak));
}
