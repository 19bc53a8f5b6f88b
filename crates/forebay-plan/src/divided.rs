//! Divided: a program with launches in parts, as the pass that cuts them hands it on and as the checker sees it.

use forebay_model::program::Program;

/// A program with launches in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The program.
    pub program: Program,
    /// For each launch, the launch that it is a part of, in the given program or in the earlier one.
    pub sources: Vec<usize>,
    /// The program with fewer launches in parts, some of which are cut again here; `None` if that is the given program.
    pub earlier: Option<Box<Partition>>,
}

impl Partition {
    /// For each launch, the launch of the given program that it is a part of.
    pub fn origins(&self) -> Vec<usize> {
        match &self.earlier {
            None => self.sources.clone(),
            Some(earlier) => {
                let origins = earlier.origins();
                self.sources.iter().map(|&source| origins[source]).collect()
            }
        }
    }

    /// Returns the steps from the given program to this one, each as the program that is cut and its parts.
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
