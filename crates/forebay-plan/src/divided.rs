//! Divided: a program with launches in parts, as the pass that cuts hands it on and the checker judges it.

use forebay_model::program::Program;

/// A program with launches in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The program.
    pub program: Program,
    /// By launch: the launch of the program as it was given that it is a part of.
    pub sources: Vec<usize>,
}
