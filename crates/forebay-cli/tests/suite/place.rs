//! `forebay place`: MiniMalloc's tables in, offsets out.

use crate::common::{Folder, assert_says, failure, json, success};

/// The example from MiniMalloc's README, which fits into 12 bytes.
const EXAMPLE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

#[test]
fn offsets_are_printed_and_written() {
    let folder = Folder::new();
    let file = folder.write("buffers.csv", EXAMPLE.as_bytes());
    let placed = folder.text("placed.csv");
    let text = success(&["place", &file, "--capacity", "12", "--output", &placed]);
    assert_says(&text, &["b5", "height       12 bytes", "capacity     12 bytes", "lower bound  12 bytes", "time"]);
    let written = std::fs::read_to_string(&placed).unwrap();
    assert_says(&written, &["id,lower,upper,size,offset\nb1,0,3,4,"]);
    assert_eq!(written.lines().count(), 6);
    let one = folder.write("one.csv", b"id,lower,upper,size\nb1,0,1,1\n");
    assert_says(&success(&["place", &one]), &["height       1 byte\n", "lower bound  1 byte\n"]);
    // The output can be read again: its offsets are now given.
    let again = json(&["place", &placed, "--capacity", "12"]);
    let offset = |line: &str| line.rsplit(',').next().unwrap().parse::<u64>().unwrap();
    for (buffer, line) in again["offsets"].as_array().unwrap().iter().zip(written.lines().skip(1)) {
        assert_eq!(buffer["offset"].as_u64(), Some(offset(line)), "{line}");
    }
}

#[test]
fn a_report_in_json() {
    let folder = Folder::new();
    let file = folder.write("buffers.csv", EXAMPLE.as_bytes());
    let report = json(&["place", &file, "--capacity", "1KiB"]);
    assert_eq!(report["capacity"].as_u64(), Some(1024));
    assert_eq!(report["lower_bound"].as_u64(), Some(12));
    assert!(report["height"].as_u64().is_some_and(|height| (12..=1024).contains(&height)));
    assert!(report["seconds"].as_f64().is_some());
    assert_eq!(report["offsets"].as_array().map(Vec::len), Some(5));
    let report = json(&["place", &file]);
    assert!(report["capacity"].is_null() && report["height"].as_u64() == Some(12), "{report}");
}

#[test]
fn what_does_not_fit_or_cannot_be_read() {
    let folder = Folder::new();
    let file = folder.write("buffers.csv", EXAMPLE.as_bytes());
    assert_says(&failure(1, &["place", &file, "--capacity", "11"]), &["buffers.csv", "12 bytes", "11 bytes"]);
    let aligned = "id,lower,upper,size,alignment\na,0,4,16,64\nb,1,5,68,64\nc,4,9,100,64\n";
    let given = "id,lower,upper,size,alignment,offset\na,0,4,8,1,9000\nb,1,3,68,1,\n";
    for (table, bound) in [(aligned, "196"), (given, "9008")] {
        let file = folder.write("bound.csv", table.as_bytes());
        assert_eq!(json(&["place", &file])["lower_bound"].to_string(), bound);
        let refused = failure(1, &["place", &file, "--capacity", "190"]);
        assert_says(&refused, &[&format!("--capacity must be at least {bound}")]);
    }
    assert_says(&failure(2, &["place", &file, "--capacity", "50%"]), &["--capacity"]);
    assert_says(&failure(2, &["place", &file, "--capacity", "many"]), &["--capacity"]);
    assert_says(&failure(2, &["place"]), &["FILE.csv"]);
    assert_says(&failure(1, &["place", &folder.text("none.csv")]), &["none.csv"]);
    let below = format!("{file}/below");
    assert_says(&failure(1, &["place", &file, "--output", &below]), &["below"]);
    let bad = folder.write("bad.csv", b"id,lower,upper,size\nb1,0,3,four\n");
    assert_says(&failure(1, &["place", &bad]), &["bad.csv", "line 2", "size", "'four'"]);
    let binary = folder.write("binary.csv", &[0xff, 0xfe, 0]);
    assert_says(&failure(1, &["place", &binary]), &["binary.csv"]);
    let huge = folder.write("huge.csv", format!("id,lower,upper,size\na,0,1,{}\n", u64::MAX).as_bytes());
    assert_says(&failure(1, &["place", &huge]), &["huge.csv", "bytes"]);
    let fixed = folder.write("fixed.csv", b"id,lower,upper,size,offset\na,0,2,4,0\nb,1,3,4,2\n");
    assert_says(&failure(1, &["place", &fixed]), &["given bases", "overlap"]);
}
