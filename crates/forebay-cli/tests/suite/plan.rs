//! `forebay plan`: memory settings from flags and from the environment, and the picture of memory.

use crate::common::{Folder, digits_data, digits_model, forebay, json, success};

#[test]
fn variables_of_the_environment_stand_for_flags_that_are_not_given() {
    let model = digits_model();
    let plan = |flags: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["plan", &model, "--batch-size", "8", "--commands"], flags].concat();
        let output = forebay(&arguments).envs(variables.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (usual, placed) = (plan(&[], &[]), plan(&["--no-tiles"], &[]));
    assert!(usual.contains("map m0") && !placed.contains("map m0"));
    assert_eq!(plan(&[], &[("FOREBAY_TILED", "0")]), placed);
    let small = plan(&["--heap-size", "64KiB"], &[]);
    assert!(small.matches("map m0").count() > usual.matches("map m0").count());
    assert_eq!(plan(&[], &[("FOREBAY_HEAP_SIZE", "65536")]), small);
    assert_eq!(plan(&["--heap-size", "32MiB"], &[("FOREBAY_HEAP_SIZE", "65536")]), usual, "a flag is stronger");
    let tiles = plan(&["--tile-size", "4KiB", "--heap-size", "8KiB"], &[]);
    assert!(tiles.matches("map m0").count() > small.matches("map m0").count());
    assert_eq!(plan(&[], &[("FOREBAY_TILE_SIZE", "4096"), ("FOREBAY_HEAP_SIZE", "8192")]), tiles);
    let cut = plan(&["--simulate-device", "70%"], &[]);
    assert_eq!(plan(&[], &[("FOREBAY_SIMULATE_DEVICE", "70%")]), cut);
    assert_ne!(cut, usual);
}

#[test]
fn variables_that_are_empty_or_conflict_with_a_flag_do_not_count() {
    let (folder, model, data) = (Folder::new(), digits_model(), digits_data());
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = forebay(arguments).envs(variables.iter().copied()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let empty = ["MEMORY_LIMIT", "DEVICE_MEMORY", "SIMULATE_DEVICE", "HOST_MEMORY", "SPILL_DIR", "MEMORY", "HEAP_SIZE"];
    let empty = empty.into_iter().chain(["TILE_SIZE", "TILED", "GROWTH", "HOST_OPERATORS", "UPDATES", "MPI"]);
    let empty: Vec<String> = empty.map(|name| format!("FOREBAY_{name}")).collect();
    let empty: Vec<(&str, &str)> = empty.iter().map(|name| (name.as_str(), "")).collect();
    let train = ["train", &model, "--data", &data, "--batch-size", "50", "--dry-run"];
    let (code, _, error) = run(&train, &empty);
    assert_eq!(code, Some(0), "{error}");
    let plan = ["plan", &model, "--batch-size", "8", "--device-memory", "70%"];
    let expected = run(&plan, &[]);
    assert_eq!(expected.0, Some(0), "{}", expected.2);
    for variables in [[("FOREBAY_MEMORY_LIMIT", "1GiB")], [("FOREBAY_SIMULATE_DEVICE", "80%")]] {
        assert_eq!(run(&plan, &variables), expected, "{variables:?}");
    }
    // The keys of a file are flags as well.
    let text = format!("model = {model:?}\ndata = {data:?}\nbatch-size = 50\nsimulate-device = \"60%\"\n");
    let file = folder.write("run.toml", text.as_bytes());
    let (code, _, error) = run(&["train", &file, "--dry-run"], &[("FOREBAY_DEVICE_MEMORY", "1GiB")]);
    assert_eq!(code, Some(0), "{error}");
    let both = [("FOREBAY_MEMORY_LIMIT", "1GiB"), ("FOREBAY_DEVICE_MEMORY", "60%")];
    let (code, _, error) = run(&plan[..4], &both);
    assert!(
        code == Some(2) && error.contains("cannot be used with"),
        "two variables that conflict are refused: {error}"
    );
}

#[test]
fn memory_is_drawn_and_listed() {
    let (folder, model) = (Folder::new(), digits_model());
    let picture = folder.text("memory.svg");
    let arguments = ["plan", &model, "--batch-size", "8", "--train"];
    let plan = json(&[&arguments[..], &["--memory-svg", &picture]].concat());
    let placement = plan["placement"].as_array().unwrap();
    let ends = placement.iter().map(|one| one["offset_bytes"].as_u64().unwrap() + one["bytes"].as_u64().unwrap());
    assert!(ends.max() <= plan["device_peak_bytes"].as_u64() && placement.len() > 10);
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<title>").count(), placement.len());
    assert!(svg.contains(placement[0]["name"].as_str().unwrap()));
    success(&arguments);
}
