use super::*;
use crate::table::{Column, Quantity};

/// A record whose text is known.
fn sample() -> Record {
    let mut table = Table::new("steps", [Column::text("model"), Column::number("time", "s", 3).of("median")]);
    table.push(["U-Net".into(), 0.5.into()]);
    let spread =
        Quantity { value: serde_json::Number::from_f64(0.25), from: Some(0.into()), to: Some(1.into()), unit: None };
    table.push(["ResNet-20".into(), Cell::Quantity(spread)]);
    table.push(["tiny-gpt".into(), Cell::Nothing]);
    Record {
        when: Some("2026-11-23T14:18:43Z".to_owned()),
        commit: None,
        machine: Some(Machine { cpu: Some("AMD EPYC".to_owned()), cores: Some(2), ..Machine::default() }),
        ..Record::new("steps", "Steps", "cargo bench", &["--rounds".to_owned(), "3".to_owned()])
    }
    .with(table)
}

const TEXT: &str = r#"{
  "schema": "forebay-bench-1",
  "bench": "steps",
  "what": "Steps",
  "when": "2026-11-23T14:18:43Z",
  "commit": null,
  "command": "cargo bench --rounds 3",
  "machine": {"cpu": "AMD EPYC", "cores": 2, "vector": null, "memory_bytes": null, "gpu": null, "driver": null, "os": null},
  "software": {},
  "conditions": null,
  "tables": [
    {
      "name": "steps",
      "columns": [
        {"name": "model"},
        {"name": "time", "unit": "s", "digits": 3, "statistic": "median"}
      ],
      "rows": [
        ["U-Net", 0.5],
        ["ResNet-20", {"value": 0.25, "from": 0, "to": 1}],
        ["tiny-gpt", null]
      ]
    }
  ]
}
"#;

#[test]
fn records_are_written_and_read_back() {
    let text = sample().text().unwrap();
    assert_eq!(text, TEXT);
    assert_eq!(Record::read(&text).unwrap(), sample());
}

#[test]
fn tables_are_shown_with_their_digits_units_and_spread() {
    assert_eq!(
        sample().tables[0].markdown(),
        "| model | time, s |\n|---|---|\n| U-Net | 0.500 |\n| ResNet-20 | 0.250 (0.000 to 1.000) |\n| tiny-gpt |  |"
    );
    let shown = |cell: Cell, column: &Column| cell.shown(column);
    assert_eq!(shown(1_048_576u64.into(), &Column::count("bytes")), "1,048,576");
    assert_eq!(shown(Cell::from(4096u64), &Column::count("bytes")), "4096");
    assert_eq!(shown((-12_345.0).into(), &Column::ratio("x", 0)), "-12,345");
    assert_eq!(shown(21.1.into(), &Column::text("us")), "21.1");
    assert_eq!(shown(f64::NAN.into(), &Column::text("us")), "NaN");
    let own = Quantity { value: Some(3.into()), unit: Some("GiB".to_owned()), ..Quantity::default() };
    assert_eq!(shown(Cell::Quantity(own), &Column::text("peak")), "3 GiB");
    let range = Quantity { from: Some(2.into()), to: Some(3.into()), ..Quantity::default() };
    assert_eq!(shown(Cell::Quantity(range), &Column::text("s")), "2 to 3");
}

#[test]
fn errors_name_the_field() {
    let error = |from: &str, to: &str| {
        assert!(TEXT.contains(from), "{from}");
        Record::read(&TEXT.replace(from, to)).unwrap_err()
    };
    for (from, to, expected) in [
        ("\"cores\": 2", "\"cores\": \"two\"", "machine.cores: invalid type: string \"two\""),
        ("\"cores\": 2,", "\"cores\": 2, \"host\": \"a\",", "machine.host: unknown field `host`"),
        ("\"bench\": \"steps\",", "", "missing field `bench`"),
        ("\"commit\": null,", "", "missing field `commit`"),
        ("\"U-Net\", 0.5", "\"U-Net\", [1]", "tables[0].rows[0][1]: a cell must be null, a number"),
        ("\"value\": 0.25", "\"values\": 0.25", "tables[0].rows[1][1]: a cell must be null, a number"),
        ("\"value\": 0.25", "\"values\": 0.25", "unknown field `values`"),
        ("\"U-Net\", 0.5", "\"U-Net\"", "tables[0].rows[0]: 1 cells for 2 columns"),
        ("\"U-Net\", 0.5", "\"/tmp/x.onnx\", 0.5", "tables[0].rows[0][0]: contains a path of this machine"),
        ("cargo bench --rounds", "cargo bench --model=/data/x", "command: contains a path of this machine"),
        ("forebay-bench-1", "forebay-bench-9", "schema: \"forebay-bench-9\" is not known"),
        ("2026-11-23T14:18:43Z", "2026-13-23", "when: \"2026-13-23\" is neither"),
        ("2026-11-23T14:18:43Z", "2026-11-23T14:18:43", "when: \"2026-11-23T14:18:43\" is neither"),
        ("\"bench\": \"steps\"", "\"bench\": \"a/b\"", "bench: \"a/b\" is not a name"),
        ("\"schema\"", "schema", "key must be a string"),
    ] {
        let found = error(from, to);
        assert!(found.contains(expected), "{found}\nlacks {expected}");
    }
    for when in ["2026-11-23", "2026-11-23T14:18:43.5Z", "2026-11-23T14:18:43+01:00"] {
        Record::read(&TEXT.replace("2026-11-23T14:18:43Z", when)).unwrap();
    }
}

#[test]
fn what_is_absent_is_of_now_and_here() {
    let text = r#"{"bench": "a", "what": "b", "command": "python3 /x/y/b.py --data=/x/z/ -n 3", "tables": []}"#;
    let record = Record::completed(text).unwrap();
    assert_eq!(record.command.as_deref(), Some("python3 b.py --data=z -n 3"));
    assert_eq!(record.machine, Some(Machine::here()));
    assert!(record.when.is_some());
    let stated = text.replacen('{', r#"{"machine": null, "when": null, "commit": "abc","#, 1);
    let partial = text.replacen('{', r#"{"machine": {"gpu": "a card", "os": null},"#, 1);
    let machine = Record::completed(&partial).unwrap().machine;
    assert_eq!(machine, Some(Machine { gpu: Some("a card".to_owned()), os: None, ..Machine::here() }));
    let record = Record::completed(&stated).unwrap();
    assert_eq!((record.machine, record.when, record.commit.as_deref()), (None, None, Some("abc")));
}

#[test]
fn paths_into_the_repository_stay() {
    let inside = crate::file::repository().join("examples/brain/unet3d.onnx");
    assert_eq!(without_path(&inside.to_string_lossy()), "examples/brain/unet3d.onnx");
    for (word, expected) in
        [("s/step", "s/step"), ("--data=/a/b", "--data=b"), ("'/a/b", "'b"), ("--x='/a/b", "--x='b"), ("~/c", "c")]
    {
        assert_eq!(without_path(word), expected);
    }
}

#[test]
fn records_are_saved_whole_where_they_are_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    assert_eq!(sample().save(Some(&path)).unwrap(), path);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), sample().text().unwrap());
    let wrong = Record { bench: "no name".to_owned(), ..sample() };
    let error = wrong.save(Some(&path)).unwrap_err();
    assert!(error.contains("bench: \"no name\"") && error.contains("ResNet-20"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), sample().text().unwrap());
}

#[test]
fn the_guide_to_the_format_names_every_field_and_its_example_is_a_record() {
    let guide = std::fs::read_to_string(crate::file::results_folder().join("README.md")).unwrap();
    let example = guide.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let record = Record::read(example).unwrap();
    let value = serde_json::to_value(&record).unwrap();
    let machine = value["machine"].as_object().unwrap().keys().map(|name| format!("machine.{name}"));
    for field in value.as_object().unwrap().keys().cloned().chain(machine) {
        assert!(guide.contains(&format!("| `{field}` |")), "the table of fields lacks {field}");
    }
    for field in ["name", "unit", "digits", "statistic", "value", "from", "to", "columns", "rows"] {
        let is_named = guide.contains(&format!("`{field}`")) || guide.contains(&format!("\"{field}\": "));
        assert!(is_named, "the guide lacks {field}");
    }
}
