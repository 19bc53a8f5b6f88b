//! The results of Forebay's benches as data: every bench writes a [`Record`], and `cargo xtask results` renders them all.
//!
//! ```
//! use forebay_bench_record::{Column, Record, Table};
//!
//! let mut table = Table::new("allocation", [Column::text("sizes"), Column::number("time", "ns", 0)]);
//! table.push(["mixed".into(), 145.2.into()]);
//! assert_eq!(table.header(), "| sizes | time, ns |\n|---|---|");
//! assert_eq!(table.line(&table.rows[0]), "| mixed | 145 |");
//!
//! let record = Record::new("allocator", "An allocation and a release", "cargo bench -p forebay-memory", &[]);
//! assert!(record.with(table).text().unwrap().contains("\"bench\": \"allocator\""));
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | figures in rows, and how they are shown |
//! | [`machine`] | the machine that a bench ran on |
//! | [`record`] | a whole record: what, when, where, how, and the tables; reading and checking it |
//! | [`mod@file`] | the text of a record, and where it is written |

pub mod file;
pub mod machine;
pub mod record;
pub mod table;

pub use file::{Arguments, arguments, repository, results_folder};
pub use machine::Machine;
pub use record::Record;
pub use table::{Cell, Column, Quantity, Table};
