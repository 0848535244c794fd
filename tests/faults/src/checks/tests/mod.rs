//! Every check passes histories that are right and fails ones that are not, one mistake each.

mod batches;
mod brute;
mod model;
mod mutants;
mod orders;
mod safety;
mod script;
mod spans;
mod speed;
mod waits;
