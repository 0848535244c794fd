//! How a leader ended.

use http::response;

use super::flight::GiveUp;
use crate::web::Refusal;

/// What the leader's response means to those who wait for it.
///
/// | response | |
/// |---|---|
/// | has [`GiveUp`] in its extensions, or the layer's predicate says so | [`GaveUp`](Self::GaveUp) |
/// | 5xx, 401, 403, 408, 409, 425, 429, or a [`Refusal`] of a layer inside | [`Failed`](Self::Failed): it says nothing about them |
/// | any other | [`Done`](Self::Done) |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Landing {
    /// What they wait for is there: they run together, or get the response.
    Done,
    /// It will not be there: they run together.
    GaveUp,
    /// The next of them leads.
    Failed,
}

impl Landing {
    /// Of a response, by the table above without a predicate.
    pub fn of(head: &response::Parts) -> Self {
        if head.extensions.get::<GiveUp>().is_some() {
            return Self::GaveUp;
        }
        if head.extensions.get::<Refusal>().is_some() {
            return Self::Failed;
        }
        match head.status.as_u16() {
            401 | 403 | 408 | 409 | 425 | 429 | 500.. => Self::Failed,
            _ => Self::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Response, StatusCode};

    use super::*;
    use crate::web::RefusalKind;

    fn landing(status: u16, change: impl FnOnce(&mut http::Extensions)) -> Landing {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        change(response.extensions_mut());
        Landing::of(&response.into_parts().0)
    }

    #[test]
    fn what_says_nothing_about_others_is_a_failure() {
        for status in [200, 204, 206, 301, 304, 400, 404, 410, 422] {
            assert_eq!(landing(status, |_| {}), Landing::Done, "{status}");
        }
        for status in [401, 403, 408, 409, 425, 429, 500, 503, 599, 799] {
            assert_eq!(landing(status, |_| {}), Landing::Failed, "{status}");
        }
    }

    #[test]
    fn a_handler_has_the_last_word() {
        for status in [200, 404, 500] {
            let landing = landing(status, |extensions| {
                extensions.insert(GiveUp);
            });
            assert_eq!(landing, Landing::GaveUp, "{status}");
        }
        let refused = landing(200, |extensions| {
            extensions.insert(Refusal::new(RefusalKind::LockBusy, Some("order")));
        });
        assert_eq!(refused, Landing::Failed);
    }
}
