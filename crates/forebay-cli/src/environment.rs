//! Variables of the environment that stand for flags: which of them count.

use std::ffi::OsString;

use clap::{Arg, Command};

use crate::config_file::Given;

/// Makes the command that this command line names ignore variables of the environment that are empty, and those that its flags override:
/// a variable counts neither if its flag is given nor if a flag is given that conflicts with it.
pub fn settled(root: Command, arguments: &[OsString]) -> Command {
    let Some((name, arguments)) = arguments.get(1..).and_then(<[OsString]>::split_first) else { return root };
    root.mut_subcommands(|command| {
        if name != command.get_name() {
            return command;
        }
        let given = Given::of(arguments, &command);
        let is_empty =
            |arg: &Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value: OsString| value.is_empty());
        let ignored = command.get_arguments().filter(|arg| arg.get_env().is_some());
        let ignored = ignored.filter(|arg| is_empty(arg) || given.overrides(arg, &command));
        let ignored: Vec<_> = ignored.map(|arg| arg.get_id().clone()).collect();
        command.mut_args(|arg| match ignored.contains(arg.get_id()) {
            true => arg.env(None::<&'static str>),
            false => arg,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(words: &[&str], flag: &str) -> bool {
        let variable = Arg::new("limit").long("limit").env("PATH").conflicts_with("budget");
        let command = Command::new("plan").arg(variable).arg(Arg::new("budget").long("budget"));
        let mut root = Command::new("forebay").subcommand(command.arg(Arg::new("other").long("other")));
        root.build();
        let words: Vec<OsString> = ["forebay", "plan"].iter().chain(words).map(OsString::from).collect();
        let root = settled(root, &words);
        let arg =
            root.find_subcommand("plan").and_then(|command| command.get_arguments().find(|arg| arg.get_id() == flag));
        arg.is_some_and(|arg| arg.get_env().is_some())
    }

    #[test]
    fn flags_override_variables_of_conflicting_flags() {
        assert!(counts(&[], "limit") && counts(&["--other", "1"], "limit"));
        assert!(!counts(&["--budget", "1"], "limit") && !counts(&["--limit=1"], "limit"));
    }
}
