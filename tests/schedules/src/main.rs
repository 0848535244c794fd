//! The hand-written synchronisation of tower-lock under schedules of shuttle.
//!
//! The files of the library are included as they are; what they take from `crate::sync` is
//! shuttle's here, so that every step of theirs may be the other thread's turn. Orderings weaker
//! than `SeqCst` are not seen: to shuttle all atomics are sequentially consistent.
//!
//! Each test has its controls: the same under a deliberate mistake, which must be found.

#[path = "../../../src/manager/admission.rs"]
#[allow(dead_code, reason = "not all of it is asked here")]
mod admission;
#[path = "../../../src/manager/agenda.rs"]
mod agenda;
#[path = "../../../src/manager/claim.rs"]
mod claim;
#[path = "../../../src/loss.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "public in the library; not all of it is asked here"
)]
mod loss;
#[path = "../../../src/manager/registry.rs"]
mod registry;
#[path = "../../../src/manager/seat.rs"]
mod seat;
#[path = "../../../src/manager/turns.rs"]
mod turns;

mod explore;
mod hold;
mod key;
mod sync;

mod admitted;
mod claimed;
mod reaped;
mod seated;
mod signalled;
mod turned;
