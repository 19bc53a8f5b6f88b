//! `forebay probe`: the measured table, as JSON, as text and as a picture.

use crate::common::{Folder, assert_says, failure, json, success};

const SMALL: [&str; 7] = ["probe", "--chunk-size", "128KiB", "--chunks", "6", "--threads", "2"];

fn evicted(policy: &str) -> Vec<String> {
    let found = json(&[&SMALL[..], &["--policy", policy]].concat());
    assert_eq!((&found["policy"], &found["chunk_bytes"]), (&policy.into(), &(128 << 10).into()));
    assert_eq!(found["as_measured"], policy == "driver");
    let actions = found["actions"].as_array().unwrap();
    for action in actions {
        assert_eq!(action["touches"].as_array().unwrap().len(), 3);
        assert!(action["touches"][0]["seconds"].as_f64().unwrap() > 0.0);
    }
    actions.iter().map(|action| format!("{} {}", action["action"], action["evicted_chunks"])).collect()
}

#[test]
fn the_tables_are_those_of_the_policies() {
    let driver = evicted("driver");
    assert_eq!(
        driver,
        ["1 [0]", "2 [1]", "3 [2]", "4 []", "5 [1]", "6 []", "7 [0]", "8 [0]", "9 [0]", "10 [0]", "10 [0]"]
    );
    let fixed = json(&[&SMALL[..], &["--no-growth", "--tile-size", "16KiB"]].concat());
    assert_eq!(fixed["as_measured"], true);
    let touch = evicted("touch");
    assert_eq!((touch[0].as_str(), &touch[1..]), ("1 [1]", &driver[1..]));
}

#[test]
fn people_get_a_table_and_a_picture() {
    let folder = Folder::new();
    let picture = folder.text("probe.svg");
    let table = success(&[&SMALL[..], &["--svg", &picture]].concat());
    assert_says(&table, &["policy driver", "6 chunks of 128", "every action matches the paper", "ms*"]);
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    assert!(svg.matches("<rect").count() >= 33, "a bar for each action and chunk");
}

#[test]
fn nonsense_is_refused() {
    for (arguments, word) in [
        (vec!["probe", "--policy", "oracle"], "oracle"),
        (vec!["probe", "--chunks", "4"], "--chunks"),
        (vec!["probe", "--chunk-size", "50%"], "8MiB"),
        (vec!["probe", "--chunk-size", "1KiB"], "1024 bytes"),
        (vec!["probe", "--device", "abacus"], "abacus"),
        (vec!["probe", "--no-growth", "--no-tiles"], "without tiles"),
    ] {
        assert_says(&failure(2, &arguments), &[word]);
    }
    assert_says(&failure(1, &["probe", "--svg", "/nonexistent/x.svg"]), &["/nonexistent/x.svg"]);
}
