//! How a route locks: waiting, fairness, lifetimes, and what happens when things end badly.

mod check;
mod knobs;
mod lock_policy;

pub(crate) use self::check::within;
pub use self::{
    knobs::{Fairness, Guarantee, OnDisconnect, OnLost, ReleaseOn, Wait},
    lock_policy::LockPolicy,
};
