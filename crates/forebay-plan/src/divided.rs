//! Divided: a program with launches in parts, as the pass that cuts hands it on and the checker judges it.

use forebay_model::program::Program;

/// A program with launches in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The program.
    pub program: Program,
    /// By launch: the launch that it is a part of, of the program as it was given, or of the earlier one.
    pub sources: Vec<usize>,
    /// The program with fewer launches in parts, of which some are in parts again here; none where that is the given one.
    pub earlier: Option<Box<Partition>>,
}

impl Partition {
    /// By launch: the launch of the program as it was given that it is a part of.
    pub fn origins(&self) -> Vec<usize> {
        match &self.earlier {
            None => self.sources.clone(),
            Some(earlier) => {
                let origins = earlier.origins();
                self.sources.iter().map(|&source| origins[source]).collect()
            }
        }
    }

    /// The steps from the program as it was given to this one, each as the program that is cut and its parts.
    pub fn steps<'a>(&'a self, given: &'a Program) -> Vec<(&'a Program, &'a Partition)> {
        match &self.earlier {
            None => vec![(given, self)],
            Some(earlier) => {
                let mut steps = earlier.steps(given);
                steps.push((&earlier.program, self));
                steps
            }
        }
    }
}
