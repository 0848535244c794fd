//! What happened: events as the processes wrote them down, and the attempts that they tell of.
//!
//! Times are nanoseconds of the machine's monotonic clock, which all processes share.

mod attempts;
mod event;

pub(crate) use self::{
    attempts::{Attempt, End, Grant, History, Outcome},
    event::{AttemptId, Event, Nanos, Order, What, now},
};
