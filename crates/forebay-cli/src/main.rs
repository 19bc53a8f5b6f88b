//! The command line of Forebay.
fn main() {}
