//! Who leads, who follows, and who has a response already.

use http::{Response, request};

use super::{
    flight::Flight,
    kept::{Kept, Shared},
    serve::Visit,
    settings::Settings,
    share::How,
};
use crate::{
    backend::WaitBound,
    key::LockKey,
    manager::{AcquireErrorKind, Beginning, Begun, observe::count_flight},
    record::{Opening, Results},
    route::Terms,
    web::ResponseBody,
};

/// What a request does.
pub(super) enum Place<R> {
    /// It works, for all.
    Leads(Box<Beginning>),
    /// It runs beside others.
    Runs(Flight),
    /// It gets another's response.
    Gets(Shared, How),
    /// It is refused.
    Refused(Response<ResponseBody<R>>),
}

impl Visit {
    /// What this request does: known at once, or when the leader is done, or when it has waited for
    /// as long as it may.
    ///
    /// Where responses are not shared this asks once. A free key is granted, whatever the one before
    /// left; who has to wait hears that the leader is done, together with all others, or leads next.
    /// Where they are shared, it looks first. What it meets at once that is no response was left
    /// for others, who waited: it asks as if nothing were there.
    pub(super) async fn find<R>(
        &self,
        key: &LockKey,
        parts: &request::Parts,
        terms: Terms,
    ) -> Place<R> {
        let Settings { route, policy, .. } = &*self.settings;
        let count = |outcome| count_flight(key.namespace(), &terms.route, outcome);
        let shares = policy.shared_for().is_some();
        let mut results = if shares {
            Results::ForAll
        } else {
            Results::ForWaiting
        };
        let mut waits = !shares;
        loop {
            let mut wish = route.wish(key.clone(), &terms);
            if !waits {
                wish.wait = WaitBound::Fail;
            }
            let opening = Opening::new("", self.settings.opening_ttl()).with_results(results);
            let begun = route.manager.shared().begin(&wish, Some(&opening)).await;
            let kept = match begun {
                Ok(Begun::First(beginning)) => return Place::Leads(Box::new(beginning)),
                Ok(Begun::Record(record)) => Kept::decode(record.bytes),
                Ok(Begun::Held { .. }) if !waits => {
                    waits = true;
                    continue;
                }
                Ok(Begun::Held { .. }) => {
                    count("alone_wait_timed_out");
                    return Place::Runs(Flight::Alone);
                }
                Err(error) => {
                    route.log(&error, key, parts);
                    return match error.kind() {
                        AcquireErrorKind::TooManyWaiters
                        | AcquireErrorKind::Overloaded
                        | AcquireErrorKind::Draining => {
                            count(error.kind().as_str());
                            let refused = route.refuse(&error, key, terms, parts);
                            Place::Refused(refused.into_response())
                        }
                        // The lock saves work; without it the work is done.
                        _ => {
                            count("alone_backend_unavailable");
                            Place::Runs(Flight::Alone)
                        }
                    };
                }
            };
            match kept {
                Some(Kept::Response(shared)) if shares && waits => {
                    return Place::Gets(shared, How::Collapsed);
                }
                Some(Kept::Response(shared)) if shares && self.may_serve(&shared) => {
                    return Place::Gets(shared, How::Hit);
                }
                // Of another's wait, too old for this policy, or of another version of this crate.
                _ if !waits => {
                    results = Results::ForWaiting;
                    waits = true;
                }
                _ => {
                    count("followed");
                    return Place::Runs(Flight::Follows);
                }
            }
        }
    }

    /// Whether a shared response is not older than this policy allows.
    fn may_serve(&self, shared: &Shared) -> bool {
        let fresh = self.settings.freshness(shared);
        shared.age() < fresh.saturating_add(self.settings.policy.stale_for())
    }
}
