//! What is fed with arbitrary bytes: each entry point takes an input and panics where a property
//! does not hold. By the public API alone.
//!
//! Two runners share them: `tests/fuzz`, which runs every one a bounded number of times, and the
//! targets of `cargo fuzz` in `fuzz/`, which go on for as long as one likes. Both also name
//! `tests/servers` as `crate::servers`.

pub mod headers;
pub mod input;
pub mod keys;
pub mod servers;
pub mod stored;
pub mod urls;
pub mod watch;

/// An entry point.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Also of its corpus and of its target.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// What its inputs are made of, beside what is in the corpus.
    pub words: &'static [&'static str],
}

/// Those of one process.
pub const PURE: [Entry; 4] = [keys::ENTRY, headers::ENTRY, stored::ENTRY, urls::ENTRY];

/// Those that talk to a server whose replies are spoilt.
pub const SERVERS: [Entry; 4] = [
    servers::redis::ENTRY,
    servers::redlock::ENTRY,
    servers::zookeeper::ENTRY,
    servers::etcd::ENTRY,
];

/// Runs the entry of this name, for a target.
pub fn run(name: &str, data: &[u8]) {
    let entry = PURE.iter().chain(&SERVERS).find(|entry| entry.name == name);
    let entry = entry.unwrap_or_else(|| panic!("no entry point is called {name}"));
    watch::begin();
    (entry.run)(data);
    let seen = watch::seen();
    assert!(seen.is_empty(), "behind the caller's back: {seen:#?}");
}
