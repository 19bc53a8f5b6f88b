//! The orders that were chosen for the programs of a model. Searching for an order takes several plans, and it hardly depends on sizes: the
//! programs of a model at other sizes have the same launches, which depend on each other in the same way.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use forebay_model::program::{BufferId, Operand, Program};

use crate::error::PlanError;
use crate::order::suits;

const ORDERS_MAX: usize = 32;

/// Groups of launches, in their order; `None` for the order in which they come.
pub type Groups = Option<Arc<[Vec<usize>]>>;

/// The 32 orders that were chosen most recently, the oldest first, each with a hash of its program.
#[derive(Default)]
pub struct Orders(VecDeque<(u64, Groups)>);

impl Orders {
    /// Returns the order of a program: the one that was chosen for a program with the same launches at other sizes, or else the one that
    /// `choose` returns.
    ///
    /// # Errors
    /// Fails if `choose` fails.
    pub fn of(
        &mut self,
        program: &Program,
        choose: impl FnOnce() -> Result<Groups, PlanError>,
    ) -> Result<Groups, PlanError> {
        let key = key(program);
        let known = self.0.iter().find(|(other, _)| *other == key).map(|(_, groups)| groups);
        if let Some(groups) = known.filter(|groups| groups.as_ref().is_none_or(|groups| suits(program, groups))) {
            return Ok(groups.clone());
        }
        let groups = choose()?;
        self.0.retain(|(other, _)| *other != key);
        if self.0.len() == ORDERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((key, groups.clone()));
        Ok(groups)
    }
}

/// Returns a hash that is the same for programs whose launches run the same kernels on the same buffers, whatever their sizes.
fn key(program: &Program) -> u64 {
    let mut hasher = DefaultHasher::new();
    let buffers = |operands: &[Operand]| operands.iter().map(|operand| operand.buffer).collect::<Vec<BufferId>>();
    program.update_start.hash(&mut hasher);
    for launch in &program.launches {
        (launch.kernel.name(), buffers(&launch.reads), buffers(&launch.writes)).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, random_training_program, training_program};
    use forebay_model::program::Role;

    #[test]
    fn a_program_of_another_size_takes_over_an_order_and_another_program_does_not() {
        let layers = [(Role::Parameter, 0), (Role::Constant, 1)];
        let count = training_program(1 << 16, &layers).launches.len();
        let as_it_comes: Groups = Some((0..count).map(|launch| vec![launch]).collect());
        let (mut orders, mut chosen) = (Orders::default(), 0);
        let mut of = |program: &Program| {
            let choose = || {
                chosen += 1;
                Ok(as_it_comes.clone())
            };
            let found = orders.of(program, choose).unwrap();
            (found, chosen)
        };
        assert_eq!(of(&training_program(1 << 16, &layers)), (as_it_comes.clone(), 1));
        assert_eq!(of(&training_program(1 << 18, &layers)), (as_it_comes.clone(), 1));
        assert_eq!(of(&training_program(1 << 16, &layers[..1])).1, 2);
        assert_eq!(of(&training_program(1 << 18, &layers)).1, 2);
    }

    #[test]
    fn the_oldest_order_is_forgotten() {
        let (mut orders, mut chosen) = (Orders::default(), 0);
        let mut of = |depth: usize| {
            let layers: Vec<(Role, usize)> = (0..depth).map(|layer| (Role::Constant, layer)).collect();
            let choose = || {
                chosen += 1;
                Ok(None)
            };
            orders.of(&training_program(1 << 10, &layers), choose).unwrap();
            chosen
        };
        (1..=ORDERS_MAX + 1).for_each(|depth| assert_eq!(of(depth), depth));
        assert_eq!((of(ORDERS_MAX + 1), of(2), of(1)), (ORDERS_MAX + 1, ORDERS_MAX + 1, ORDERS_MAX + 2));
    }

    #[test]
    fn an_order_that_breaks_a_dependence_is_not_taken_over() {
        let program = random_training_program(&mut Random::new(1), 3);
        let backwards: Groups = Some((0..program.launches.len()).rev().map(|launch| vec![launch]).collect());
        let mut orders = Orders::default();
        assert_eq!(orders.of(&program, || Ok(backwards.clone())).unwrap(), backwards);
        assert_eq!(orders.of(&program, || Ok(None)).unwrap(), None);
        assert_eq!(orders.of(&program, || Ok(backwards.clone())).unwrap(), None);
    }
}
