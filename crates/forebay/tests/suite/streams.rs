//! The samples of MindSpore's guide to streams: the correct ones are correct in every order, and the wrong ones are detected.

#[path = "../../examples/streams.rs"]
#[allow(dead_code, reason = "the example prints, this test asserts")]
mod samples;

use samples::{SAMPLES, run};

#[test]
fn wrong_samples_are_wrong_and_named_and_right_ones_are_right() {
    for sample in SAMPLES {
        let outcome = run(&sample).unwrap();
        let name = sample.name;
        assert_eq!(outcome.wrong == 0, sample.right, "{name}: wrong in {} runs", outcome.wrong);
        assert_eq!(outcome.race.is_none(), sample.right, "{name}: {:?}", outcome.race);
    }
}

#[test]
fn a_race_names_both_operations_their_streams_the_bytes_and_what_is_missing() {
    let race = run(&SAMPLES[0]).unwrap().race.unwrap();
    for part in ["'MatMul#1'", "'ReduceSum#2'", "share", "missing: a record in", "and a wait for it in"] {
        assert!(race.contains(part), "{race}");
    }
}
