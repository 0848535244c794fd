//! The demonstration.
fn main() {}
