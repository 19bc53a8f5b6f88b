//! `forebay place`: offsets for buffers with known lifetimes, without a model.

use std::time::Instant;

use forebay::MemorySize;
use forebay::format_bytes;
use forebay_limits::read_text;
use forebay_memory::{Effort, Placement, PlacementError, height_bound_bytes, place as find_placement, verify};
use serde_json::{Value, json};

use crate::arguments::PlaceArguments;
use crate::buffer_table::BufferTable;
use crate::failure::Failure;
use crate::output;

/// The maximum length of a table in bytes; a table of ten million buffers is shorter.
const TABLE_BYTES_MAX: u64 = 1 << 30;

/// Places the buffers of a file.
///
/// # Errors
/// Fails if a file cannot be read or written, or if the buffers do not fit.
pub fn place(arguments: &PlaceArguments) -> Result<(), Failure> {
    let capacity_bytes = match arguments.capacity {
        Some(MemorySize::Bytes(bytes)) => Some(bytes),
        Some(MemorySize::Percent(_)) => {
            let reason = "--capacity must be a number of bytes or a size such as 1MiB, not a percentage";
            return Err(Failure::Usage(reason.to_owned()));
        }
        None => None,
    };
    if let Some(path) = &arguments.output {
        output::check_writable(path)?;
    }
    let name = arguments.file.display();
    let text = read_text(&arguments.file, TABLE_BYTES_MAX)
        .map_err(|error| Failure::Failed(format!("cannot read {name}: {error}")))?;
    let table = BufferTable::parse(&text).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
    let started = Instant::now();
    let found = find_placement(&table.items, capacity_bytes, Effort::THOROUGH);
    let seconds = started.elapsed().as_secs_f64();
    let bound_bytes = height_bound_bytes(&table.items);
    let placement = found.map_err(|error| Failure::Failed(format!("{name}: {}", refusal(&error, bound_bytes))))?;
    verify(&table.items, &placement)
        .map_err(|fault| Failure::Failed(format!("{name}: the placement is invalid: {fault}")))?;
    if let Some(path) = &arguments.output {
        output::write(path, &table.with_offsets(&placement.offsets))?;
    }
    let result = Placed { table: &table, placement: &placement, capacity_bytes, bound_bytes, seconds };
    if arguments.json {
        output::say(&format!("{:#}", result.json()));
    } else {
        result.lines().iter().for_each(|line| output::say(line));
    }
    Ok(())
}

/// Explains why there is no placement, with a remedy. No placement is lower than `bound_bytes`.
fn refusal(error: &PlacementError, bound_bytes: u64) -> String {
    match error {
        PlacementError::Search { capacity_bytes, .. } if *capacity_bytes >= bound_bytes => {
            format!("{error}; a lower placement may exist; without --capacity, the lowest one found is printed")
        }
        PlacementError::Load { .. } | PlacementError::Search { .. } => {
            format!("{error}; --capacity must be at least {bound_bytes}")
        }
        PlacementError::Fixed(_) | PlacementError::TooLarge { .. } => error.to_string(),
    }
}

/// The output of the command.
struct Placed<'a> {
    table: &'a BufferTable,
    placement: &'a Placement,
    capacity_bytes: Option<u64>,
    bound_bytes: u64,
    seconds: f64,
}

impl Placed<'_> {
    fn lines(&self) -> Vec<String> {
        let width = self.table.ids.iter().map(|id| id.chars().count()).max().unwrap_or(0).max("id".len());
        let mut lines = vec![format!("{:<width$} {:>16} {:>16}", "id", "offset", "size")];
        for ((id, item), offset) in self.table.ids.iter().zip(&self.table.items).zip(&self.placement.offsets) {
            lines.push(format!("{id:<width$} {offset:>16} {:>16}", item.size_bytes()));
        }
        let size = |bytes: u64| match format_bytes(bytes) {
            text if bytes < 1024 => text,
            text => format!("{bytes} bytes ({text})"),
        };
        lines.push(format!("height       {}", size(self.placement.height_bytes)));
        lines.push(format!("capacity     {}", self.capacity_bytes.map_or("none given".to_owned(), size)));
        lines.push(format!("lower bound  {}", size(self.bound_bytes)));
        lines.push(format!("time         {:.3} s", self.seconds));
        lines
    }

    fn json(&self) -> Value {
        let buffer = |(id, &offset): (&String, &u64)| json!({ "id": id, "offset": offset });
        json!({
            "offsets": self.table.ids.iter().zip(&self.placement.offsets).map(buffer).collect::<Vec<_>>(),
            "height": self.placement.height_bytes,
            "capacity": self.capacity_bytes,
            "lower_bound": self.bound_bytes,
            "seconds": self.seconds,
        })
    }
}
