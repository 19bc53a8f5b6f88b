//! Records commands.
