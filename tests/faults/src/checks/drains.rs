//! A process that is asked to end does so within a bound.
//!
//! Time in which the whole machine stood still does not count.

use super::{
    Found, Kind,
    view::{Ms, View},
};
use crate::history::What;

pub(super) fn check(view: &View<'_>, found: &mut Found) {
    for event in &view.history.events {
        let What::Drains { process } = event.what else {
            continue;
        };
        let ended = view.course.gone(process).unwrap_or(view.course.end);
        let took = view.course.ran(event.at, ended);
        if took > view.rules.drain {
            let text = format!(
                "process {process} was asked to end at {} and had not for {}",
                view.ms(event.at),
                Ms::span(took),
            );
            found.add(Kind::SlowDrain, 0, ended, text);
        }
    }
}
