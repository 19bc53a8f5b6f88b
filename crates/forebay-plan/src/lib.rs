//! When and where: the passes that turn a program into a plan of commands.
