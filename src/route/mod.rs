//! What the layers have in common that a route gets: the manager it asks, the policy it asks by, and
//! how it refuses.

mod config;
mod refuse;

pub(crate) use self::{
    config::{Config, Stats, Terms, Told, must},
    refuse::{Answer, tell_applied},
};
