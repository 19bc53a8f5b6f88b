use std::path::Path;

use super::*;

const RECORD: &str = r#"{
  "schema": "forebay-bench-1", "bench": "curve", "what": "Steps within budgets", "when": "2026-11-23", "commit": "0123456789abcdef-modified",
  "command": "cargo bench --bench curve", "machine": {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 25769803776},
  "software": {"PyTorch": "2.15.0"}, "conditions": "nothing else running",
  "tables": [{"name": "steps", "columns": [{"name": "budget", "unit": "%"}, {"name": "mode"}, {"name": "ratio", "digits": 2}],
    "rows": [[100, "planned", 1], [50, "planned", 1.25], [50, "direct", 1.5], [25, "planned", null]]}]
}"#;

const SECTION: &str = "## A heading\n\n{{about first}}\n\nWhy.\n\n{{table first steps}}\n\n{{picture}}\n";

const PICTURE: &str = r##"{"file": "docs/curve.svg", "title": "Ratio over budget", "record": "first", "table": "steps", "axis": "budget",
  "x": "budget", "span": [0, 100], "marks": 50, "line": null,
  "lines": [{"name": "planned", "color": "#333333", "column": "ratio", "only": {"mode": "planned"}}]}"##;

/// Creates a folder with an index, a bench with a section and a picture, and a bench with only a record.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("index.md", "# Results\n\n{{section curve}}\n"),
        ("README.md", "the format"),
        ("curve/section.md", SECTION),
        ("curve/picture.json", PICTURE),
        ("curve/first.json", RECORD),
        ("new/2026.json", &RECORD.replace("\"bench\": \"curve\"", "\"bench\": \"new\"")),
    ] {
        put(folder.path(), path, text);
    }
    folder
}

fn put(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn pages_show_what_sections_name_and_all_else_behind_it() {
    let folder = folder();
    let files = rendered(folder.path()).unwrap();
    let page = &files[0].1;
    let about = "    cargo bench --bench curve\n\n2026-11-23; commit 0123456789 (modified); AMD EPYC, 2 cores, 24 GiB; PyTorch 2.15.0; \
                 nothing else running.\n";
    let table = "| budget, % | mode | ratio |\n|---|---|---|\n| 100 | planned | 1.00 |\n| 50 | planned | 1.25 |\n\
                 | 50 | direct | 1.50 |\n| 25 | planned |  |\n";
    let curve = format!(
        "# Results\n\n## A heading\n\n{about}\nWhy.\n\n{table}\n![Ratio over budget](../docs/curve.svg)\n\n## Steps within budgets\n\n\
         ### Run of 2026-11-23: Steps within budgets\n\n{about}\n{table}"
    );
    assert_eq!(page.split_once("-->\n\n").unwrap().1, curve);
    // A newer run is shown without changing the section.
    put(folder.path(), "curve/second.json", &RECORD.replace("1.25", "1.75"));
    let page = rendered(folder.path()).unwrap().swap_remove(0).1;
    assert!(page.contains("(../docs/curve.svg)\n\n### Run of 2026-11-23: Steps within budgets\n"), "{page}");
    assert!(page.contains("| 1.75 |") && page.contains("| 1.25 |"), "{page}");
}

#[test]
fn pictures_have_the_points_of_their_rows() {
    let folder = folder();
    let files = rendered(folder.path()).unwrap();
    let (path, svg) = &files[1];
    assert_eq!(path, Path::new("docs/curve.svg"));
    // Two rows have this mode and a number: 1.25 at half of the axis, 1 at its end, and the chart extends to 1.25.
    assert!(svg.contains("<polyline points=\"370.0,50.0 670.0,120.0\""), "{svg}");
    assert_eq!(svg.matches("<circle").count(), 2);
    for mark in ["0", "50", "100"] {
        assert!(svg.contains(&format!("text-anchor=\"middle\">{mark}</text>")), "{svg}");
    }
}

#[test]
fn errors_name_the_file_and_the_field() {
    for (path, text, expected) in [
        (
            "curve/first.json",
            RECORD.replace("\"cores\": 2", "\"cores\": -2"),
            "first.json: machine.cores: invalid value",
        ),
        ("curve/first.json", RECORD.replace("\"command\"", "\"comand\""), "first.json: comand: unknown field `comand`"),
        (
            "curve/first.json",
            RECORD.replace("[50, \"direct\", 1.5]", "[50, 1.5]"),
            "tables[0].rows[2]: 2 cells for 3 columns",
        ),
        (
            "curve/first.json",
            RECORD.replace("\"bench\": \"curve\"", "\"bench\": \"other\""),
            "\"other\" is not the folder's name",
        ),
        ("curve/first.json", "{\"bench\": ".to_owned(), "first.json: bench: EOF"),
        (
            "curve/section.md",
            SECTION.replace("about first", "about third"),
            "section.md:3: unknown record third; the records are: first",
        ),
        (
            "curve/section.md",
            SECTION.replace("first steps", "first step"),
            "section.md:7: record first has no table step; it has: steps",
        ),
        (
            "curve/section.md",
            SECTION.replace("picture", "pictures"),
            "section.md:9: expected {{about RECORD}}, {{table RECORD TABLE}} or {{picture}}; found {{pictures}}",
        ),
        (
            "curve/picture.json",
            PICTURE.replace("\"ratio\"", "\"ratios\""),
            "picture.json: table steps has no column ratios",
        ),
        ("curve/picture.json", PICTURE.replace(": 50", ": \"x\""), "picture.json: marks: invalid type"),
        (
            "curve/picture.json",
            PICTURE.replace("\"planned\"}", "\"plain\"}"),
            "picture.json: the line planned has no points",
        ),
        ("curve/notes.txt", String::new(), "notes.txt: only section.md"),
        ("empty/section.md", String::new(), "empty: the folder has no record"),
        ("index.md", "{{section curves}}".to_owned(), "index.md:1: the folder curves does not exist"),
        ("index.md", "{{section curve}}\n{{section curve}}".to_owned(), "index.md:2: the section curve appears twice"),
    ] {
        let folder = folder();
        put(folder.path(), path, &text);
        let error = rendered(folder.path()).unwrap_err();
        assert!(error.contains(expected), "{error}\nlacks {expected}");
    }
}

#[test]
fn what_python_benches_hand_over_is_a_record() {
    let program = "
import json, sys
sys.argv = ['benches/steps.py', '--output', 'x.json', '--steps', '3', '--output=y.json']
import recording
columns = [recording.column('model'), recording.column('step', 's', 3, 'median')]
rows = [('U-Net', {'value': 0.5, 'from': 0.25, 'to': 1}), ('tiny-gpt', None)]
table = recording.table('steps', columns, rows)
print(json.dumps(recording.figures('steps', 'Steps', [table], {'PyTorch': '2.15.0'}, 'quiet', {'gpu': 'a card'})))";
    let run = std::process::Command::new("python3")
        .args(["-c", program])
        .current_dir(repository())
        .env("PYTHONPATH", "benches")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    let Ok(run) = run else {
        println!("SKIPPED: python3 is missing");
        return;
    };
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let record = Record::completed(&String::from_utf8(run.stdout).unwrap()).unwrap();
    assert_eq!(record.command.as_deref(), Some("python3 benches/steps.py --steps 3"));
    assert_eq!(record.machine.unwrap().gpu.as_deref(), Some("a card"));
    let table = "| model | step, s |\n|---|---|\n| U-Net | 0.500 (0.250 to 1.000) |\n| tiny-gpt |  |";
    assert_eq!(record.tables[0].markdown(), table);
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    let error = results(&["--chekc".to_owned()]).unwrap_err();
    assert!(error.contains("usage: cargo xtask results [--check]"), "{error}");
}

#[test]
fn the_page_of_this_repository_is_what_its_records_render_to() {
    assert_eq!(violations(), Vec::<String>::new());
}
