//! How compactly and how fast instances of static placement are placed: `cargo bench -p forebay-memory --bench placement -- FILE...`
//!
//! Files are MiniMalloc's, named `NAME.CAPACITY.csv`, with the columns `id,lower,upper,size`. Without files, the instances in `tests/data`
//! are used.

use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_base::ByteRange;
use forebay_bench_record::{Cell, Column, Record, Table};
use forebay_memory::{Effort, Item, Piece, load_bound_bytes, place, verify};

fn main() -> Result<(), String> {
    let given = forebay_bench_record::arguments()?;
    let mut files: Vec<PathBuf> =
        given.words.iter().filter(|file| !file.starts_with("--")).map(PathBuf::from).collect();
    if files.is_empty() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let entries = std::fs::read_dir(folder).expect("the folder tests/data");
        files = entries.map(|entry| entry.expect("an entry of tests/data").path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
        files.sort();
    }
    let columns = [
        Column::text("instance"),
        Column::count("buffers"),
        Column::count("capacity"),
        Column::count("lower bound"),
        Column::count("height"),
        Column::ratio("passes alone / capacity", 2),
        Column::number("time", "s", 3),
    ];
    let mut table = Table::new("placement", columns);
    for file in files {
        table.print(measure(&file));
    }
    let record = Record::new(
        "placement",
        "Static placement",
        "cargo bench -p forebay-memory --bench placement --",
        &given.words,
    );
    record.with(table).save(given.output.as_deref()).map(drop)
}

/// A row of the table.
fn measure(file: &Path) -> Vec<Cell> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let items: Vec<Item> = text.lines().skip(1).map(item).collect();
    let name = file.file_stem().map(|name| name.to_string_lossy()).unwrap_or_default();
    let (name, capacity) = name.rsplit_once('.').expect("a file named NAME.CAPACITY.csv");
    let capacity_bytes: u64 = capacity.parse().expect("a capacity in bytes");
    let started = Instant::now();
    let placement = place(&items, Some(capacity_bytes), Effort::THOROUGH);
    let seconds = started.elapsed().as_secs_f64();
    let height = match &placement {
        Ok(placement) => {
            verify(&items, placement).expect("a placement without faults");
            placement.height_bytes.into()
        }
        Err(error) => error.to_string().into(),
    };
    let passes = place(&items, None, Effort::default()).expect("a placement").height_bytes as f64;
    vec![
        name.into(),
        items.len().into(),
        capacity_bytes.into(),
        load_bound_bytes(&items).into(),
        height,
        (passes / capacity_bytes as f64).into(),
        seconds.into(),
    ]
}

/// The item of a line `id,lower,upper,size`.
fn item(line: &str) -> Item {
    let numbers: Vec<u64> = line.split(',').map(|field| field.trim().parse().expect("a whole number")).collect();
    let time = numbers[1] as u32..numbers[2] as u32;
    Item::new(1, vec![Piece { time, bytes: ByteRange::new(0, numbers[3]) }])
}
