//! Plans of processes whose programs are alike, each made once.

use std::sync::{Mutex, PoisonError};

use forebay_base::Kernel;
use forebay_model::program::Program;
use forebay_plan::Plan;
use forebay_plan::cost::Costs;

/// Plans of one process that also tell what others do when: their programs differ only in where within a buffer their share is, and in whom
/// they send what of it. Such a plan predicts times and memory; it must not run in another process.
#[derive(Debug, Default)]
pub(crate) struct AlikePlans(Mutex<Vec<(Program, Costs, Plan)>>);

impl AlikePlans {
    /// Returns the plan of a process whose program is like this one and takes the same time.
    pub(crate) fn find(&self, program: &Program, costs: &Costs) -> Option<Plan> {
        let program = without_places(program);
        let plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = plans.iter().find(|(other, of_other, _)| of_other == costs && *other == program);
        known.map(|(.., plan)| plan.clone())
    }

    /// Keeps the plan of a program.
    pub(crate) fn add(&self, program: &Program, costs: &Costs, plan: &Plan) {
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plans.push((without_places(program), costs.clone(), plan.clone()));
    }
}

/// Returns a program without what depends on the position of its process. Whether an operand is at the beginning of its buffer, at the end
/// or in between stays, because passes such as aliasing depend on it.
fn without_places(program: &Program) -> Program {
    let mut launches = program.launches.clone();
    for launch in &mut launches {
        if let Kernel::Exchange(exchange) = &mut launch.kernel {
            exchange.sends.clear();
            exchange.receives.clear();
        }
        for operand in launch.reads.iter_mut().chain(&mut launch.writes) {
            let is_at_end = operand.range().end >= program.buffer(operand.buffer).size_bytes;
            operand.offset_bytes = if is_at_end { operand.offset_bytes.min(2) } else { operand.offset_bytes.min(1) };
        }
    }
    Program { launches, contents: Default::default(), ..program.clone() }
}
