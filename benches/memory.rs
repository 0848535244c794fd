//! What a lock costs in memory. See `benches/README.md`.

mod support;

fn main() {}
