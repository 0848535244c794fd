//! What the targets share: the entry points of the tests, and the servers that some of them start.

#[path = "../../tests/fuzz/entries/mod.rs"]
pub mod entries;
#[path = "../../tests/servers/mod.rs"]
mod servers;
