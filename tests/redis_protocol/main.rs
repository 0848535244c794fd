//! The protocol of the Redis backend, attacked: by owners that ask in unusual ways, and by a
//! model of processes that lose messages, hang and crash.

#[path = "../servers/mod.rs"]
mod servers;

mod cancelled;
mod checks;
mod hearing;
mod model;
mod owners;
mod records;
mod scripts;
mod states;
mod world;
