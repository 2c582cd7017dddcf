//! The `autoreg` binary: words typed at the terminal, turned into calls of the rooms below.
fn main() {}
