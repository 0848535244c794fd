//! From what the client library reports to errors that say what to do.

use std::borrow::Cow;

use crate::error::{BackendError, BackendErrorKind};

/// The status codes of gRPC that make a difference here.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// An error that several callers may get. Its text holds no key, no secret and nothing that a
/// server wrote.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    kind: BackendErrorKind,
    context: Cow<'static, str>,
    /// Whether the server itself said so: what was asked has not been done, and will not be done
    /// later.
    pub(super) answered: bool,
    /// Whether a new connection may fare better: with a fresh token, or to another member.
    pub(super) elsewhere: bool,
    /// The server does not know the lease that was named.
    pub(super) lease_gone: bool,
    /// It has one of the number that was to be given.
    pub(super) lease_exists: bool,
}

impl Trouble {
    pub(super) fn unavailable(context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: BackendErrorKind::Unavailable,
            context: context.into(),
            answered: false,
            elsewhere: false,
            lease_gone: false,
            lease_exists: false,
        }
    }

    /// The server said so, and will say so again.
    pub(super) fn misconfigured(context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: BackendErrorKind::Misconfigured,
            answered: true,
            ..Self::unavailable(context)
        }
    }

    fn answered(context: &'static str) -> Self {
        Self {
            answered: true,
            ..Self::unavailable(context)
        }
    }

    pub(super) fn no_answer() -> Self {
        Self::unavailable("etcd did not answer within the operation timeout")
    }

    pub(super) fn lease_gone() -> Self {
        Self {
            lease_gone: true,
            ..Self::answered("the lease at the server has ended")
        }
    }

    /// The server knows that this owner may not have the key any more.
    pub(super) fn undone() -> Self {
        Self::answered("this owner was undone")
    }

    /// The wait is over without the key.
    pub(super) fn replaced() -> Self {
        Self {
            kind: BackendErrorKind::WaitTimedOut,
            ..Self::answered("another acquire of the same owner took its place")
        }
    }

    /// An answer in a form that etcd does not give.
    pub(super) fn strange() -> Self {
        Self::misconfigured("etcd answered in a form that is not known")
    }

    /// Of the first connection, which may never be had: servers that want something else of TLS
    /// just break off.
    pub(super) fn at_first(self) -> Self {
        if self.kind != BackendErrorKind::Unavailable || !self.elsewhere || self.answered {
            return self;
        }
        Self {
            context: "no connection to etcd can be had: is it there, and does it want TLS \
                      (`etcds://`) or a client certificate?"
                .into(),
            ..self
        }
    }

    /// Whether the same may be answered otherwise later.
    pub(super) fn may_pass(&self) -> bool {
        self.kind == BackendErrorKind::Unavailable
    }

    fn of_status(code: i32, message: &str) -> Self {
        let says = |part: &str| message.contains(part);
        // A refusal that a newer token, or a look at newer rights, ends.
        let stale = || Self {
            elsewhere: true,
            ..Self::answered("etcd asks for a new authentication")
        };
        match code {
            code::UNAUTHENTICATED => stale(),
            code::INVALID_ARGUMENT if says("revision of auth store") => stale(),
            code::INVALID_ARGUMENT if says("invalid auth token") => stale(),
            code::INVALID_ARGUMENT if says("user name is empty") => {
                Self::misconfigured("etcd asks for a user and a password: the URL has none")
            }
            code::INVALID_ARGUMENT if says("authentication failed") => {
                Self::misconfigured("etcd refused the user or its password")
            }
            code::FAILED_PRECONDITION if says("authentication is not enabled") => {
                Self::misconfigured(
                    "the URL has a user, but authentication is not enabled in this etcd",
                )
            }
            code::PERMISSION_DENIED => Self::misconfigured(
                "the etcd user may not read and write everything under the prefix \
                 (`etcdctl role grant-permission ROLE readwrite PREFIX --prefix`)",
            ),
            code::NOT_FOUND if says("lease not found") => Self::lease_gone(),
            code::FAILED_PRECONDITION if says("lease already exists") => Self {
                lease_exists: true,
                ..Self::answered("there is a lease of this number")
            },
            code::RESOURCE_EXHAUSTED if says("space exceeded") => Self::answered(
                "the database of etcd is full (NOSPACE): compact, defragment and disarm the alarm",
            ),
            code::RESOURCE_EXHAUSTED => Self::answered("etcd has too many requests at the moment"),
            code::UNIMPLEMENTED => Self::misconfigured(
                "this server does not know what etcd 3.4 and newer do: is it one?",
            ),
            code::INVALID_ARGUMENT
            | code::NOT_FOUND
            | code::FAILED_PRECONDITION
            | code::OUT_OF_RANGE => Self::answered("etcd refused the request"),
            _ if says("no leader") => Self {
                elsewhere: true,
                ..Self::unavailable("this member of etcd has no leader")
            },
            // Among others: a leader that changed, a proposal that timed out, a broken connection.
            _ => Self {
                elsewhere: true,
                ..Self::unavailable("the connection to etcd failed, or its leader changed")
            },
        }
    }
}

impl From<etcd_client::Error> for Trouble {
    fn from(error: etcd_client::Error) -> Self {
        use etcd_client::Error;
        match error {
            Error::GRpcStatus(status) => {
                if is_about_certificates(&status) {
                    return Self {
                        answered: true,
                        ..no_tls()
                    };
                }
                Self::of_status(status.code() as i32, status.message())
            }
            // The library's own word for a keep-alive that was answered with no time to live.
            Error::LeaseKeepAliveError(text) if text.contains("not found") => Self::lease_gone(),
            Error::TransportError(error) if is_about_certificates(&error) => no_tls(),
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                Self::misconfigured("the client cannot be set up as the URL says")
            }
            _ => Self {
                elsewhere: true,
                ..Self::unavailable("the connection to etcd failed")
            },
        }
    }
}

fn no_tls() -> Trouble {
    Trouble::misconfigured(
        "the TLS handshake with etcd failed: check the certificates, and that the server speaks TLS",
    )
}

/// The TLS library's error is somewhere at the bottom of those of the HTTP library.
fn is_about_certificates(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && let Some(inner) = io.get_ref()
            && inner.is::<rustls::Error>()
        {
            return true;
        }
        if error.is::<rustls::Error>() {
            return true;
        }
        next = error.source();
    }
    false
}

impl From<Trouble> for BackendError {
    fn from(trouble: Trouble) -> Self {
        Self::new(trouble.kind, trouble.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(code: i32, message: &str, kind: BackendErrorKind, part: &str) -> Trouble {
        let trouble = Trouble::of_status(code, message);
        let error = BackendError::from(trouble.clone());
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        trouble
    }

    /// What etcd 3.4 answers, and what is made of it.
    #[test]
    fn refusals_say_what_to_do() {
        use BackendErrorKind::{Misconfigured, Unavailable};
        let denied = says(
            7,
            "etcdserver: permission denied",
            Misconfigured,
            "readwrite",
        );
        assert!(denied.answered);
        says(
            3,
            "etcdserver: user name is empty",
            Misconfigured,
            "the URL has none",
        );
        says(
            3,
            "etcdserver: authentication failed, invalid user ID or password",
            Misconfigured,
            "refused the user",
        );
        says(
            9,
            "etcdserver: authentication is not enabled",
            Misconfigured,
            "not enabled",
        );
        says(
            8,
            "etcdserver: mvcc: database space exceeded",
            Unavailable,
            "NOSPACE",
        );
        let gone = says(
            5,
            "etcdserver: requested lease not found",
            Unavailable,
            "lease",
        );
        assert!(gone.lease_gone && gone.answered);
    }

    #[test]
    fn a_stale_token_and_a_lost_leader_are_tried_elsewhere() {
        for (code, message, answered) in [
            (16, "etcdserver: invalid auth token", true),
            (3, "etcdserver: revision of auth store is old", true),
            (14, "etcdserver: no leader", false),
            (14, "etcdserver: leader changed", false),
            (14, "etcdserver: request timed out", false),
        ] {
            let trouble = Trouble::of_status(code, message);
            assert!(trouble.elsewhere && trouble.may_pass(), "{message}");
            assert_eq!(trouble.answered, answered, "{message}");
        }
    }

    /// What a server writes may hold names of keys and users.
    #[test]
    fn nothing_of_a_server_is_repeated() {
        for code in 0..=16 {
            let trouble = Trouble::of_status(code, "it is secret");
            let error = BackendError::from(trouble.clone());
            assert!(!format!("{trouble:?} {error} {error:?}").contains("secret"));
        }
    }
}
