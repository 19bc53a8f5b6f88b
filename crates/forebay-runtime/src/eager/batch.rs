//! Commands that are submitted together, with the names of the operations that they belong to.

use std::sync::Arc;

use forebay_base::Command;

/// Commands that are submitted together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    commands: Vec<Command>,
    names: Vec<Option<Arc<str>>>,
}

impl Batch {
    /// Adds a command that does an operation's work.
    pub fn work(&mut self, command: Command, name: &Arc<str>) {
        self.commands.push(command);
        self.names.push(Some(name.clone()));
    }

    /// Adds a command that orders or maps.
    pub fn order(&mut self, command: Command) {
        self.commands.push(command);
        self.names.push(None);
    }

    /// The commands, in order.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// The operation of each command.
    pub fn names(&self) -> &[Option<Arc<str>>] {
        &self.names
    }
}

impl From<Vec<Command>> for Batch {
    fn from(commands: Vec<Command>) -> Batch {
        let names = vec![None; commands.len()];
        Batch { commands, names }
    }
}
