//! What the layers have in common that a route gets: the manager it asks, the policy it asks by, how
//! it refuses, and how it goes on without its caller.

mod config;
mod refuse;
mod work;

pub(crate) use self::{
    config::{Config, Stats, Terms, Told, must},
    refuse::{Answer, tell_applied},
    work::{Progress, Work, pass},
};
