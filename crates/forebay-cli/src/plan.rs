//! `forebay plan`: how a model would run, without running it.

use forebay::serde_json::{self, Value};
use forebay::{
    command_lines, memory_picture, Explanation, Model, Plan, Session, SessionOptions, Trainer, TrainerOptions,
};

use crate::arguments::{MemoryKind, PlanArguments};
use crate::failure::Failure;
use crate::output;
use crate::report::{say_json, Report};
use crate::training_options::training_options;

/// Explains a plan.
///
/// # Errors
/// A model that cannot run as asked, or budgets that are too small.
pub fn plan(arguments: &PlanArguments) -> Result<(), Failure> {
    if arguments.device.memory != MemoryKind::Planned {
        let reason =
            "only --memory planned has a plan; in the other modes what moves is decided while steps run, and `train` \
                      and `run` report it";
        return Err(Failure::Usage(reason.to_owned()));
    }
    if let Some(path) = &arguments.memory_svg {
        output::check_writable(path)?;
    }
    let model = Model::from_file(&arguments.model)?;
    let device = arguments.device.options(false);
    if arguments.train {
        let mut options = TrainerOptions::new(training_options(&arguments.training, 0)?);
        options.device = device;
        options.batch_size = arguments.training.batch_size;
        let trainer = Trainer::new(model, options)?;
        show(arguments, trainer.plan(), &trainer.explain())
    } else {
        let options = SessionOptions { device, batch_size: arguments.training.batch_size };
        let session = Session::new(&model, &options)?;
        show(arguments, session.plan(), &session.explain())
    }
}

fn show(arguments: &PlanArguments, plan: &Plan, explanation: &Explanation) -> Result<(), Failure> {
    if let Some(path) = &arguments.memory_svg {
        let title = format!("device memory of {} over a step", arguments.model.display());
        output::write(path, &memory_picture(plan, &title).svg())?;
    }
    if !arguments.report.json {
        output::say(explanation.to_string().trim_end());
        if arguments.commands {
            output::say("commands of a step:");
            command_lines(plan).iter().for_each(|line| output::say(&format!("  {line}")));
        }
        return Ok(());
    }
    let device_peak_bytes = plan.statistics.device_peak_bytes;
    let mut object = Report { steps: &[], statistics: &plan.statistics, device_peak_bytes }.json();
    let explained = serde_json::to_value(explanation);
    match explained.map_err(|error| Failure::Failed(format!("cannot write the plan: {error}")))? {
        Value::Object(explained) => object.extend(explained),
        other => unreachable!("an explanation is an object, not {other}"),
    }
    if arguments.commands {
        object.insert("commands".to_owned(), command_lines(plan).into());
    }
    say_json(object)
}
