//! From what the client library reports to errors that say what to do.

use std::borrow::Cow;

use zookeeper_client as zk;

use crate::error::{BackendError, BackendErrorKind};

/// An error that several callers may get. Its text holds no key, no secret and nothing that a
/// server said.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    kind: BackendErrorKind,
    context: Cow<'static, str>,
    /// Whether the server itself said so: what was asked has not been done, and will not be later.
    pub(super) answered: bool,
}

impl Trouble {
    fn new(kind: BackendErrorKind, context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            context: context.into(),
            answered: false,
        }
    }

    pub(super) fn unavailable(context: impl Into<Cow<'static, str>>) -> Self {
        Self::new(BackendErrorKind::Unavailable, context)
    }

    pub(super) fn misconfigured(context: impl Into<Cow<'static, str>>) -> Self {
        Self::new(BackendErrorKind::Misconfigured, context)
    }

    pub(super) fn no_answer() -> Self {
        Self::unavailable("ZooKeeper did not answer within the operation timeout")
    }

    pub(super) fn no_connection() -> Self {
        Self::unavailable("there is no connection to a ZooKeeper server that serves")
    }

    pub(super) fn no_session() -> Self {
        Self::unavailable("the session with ZooKeeper has ended")
    }

    pub(super) fn contended() -> Self {
        Self::new(BackendErrorKind::Contended, "").answered()
    }

    pub(super) fn other_layout() -> Self {
        Self::misconfigured(
            "nodes of another layout stand under this key: all clients of a path need the same \
             (`with_layout`)",
        )
        .answered()
    }

    pub(super) fn used_up() -> Self {
        Self::unavailable(
            "the numbers of this key's nodes are used up: it can be had again when nobody has held \
             it or waited for it for a moment",
        )
        .answered()
    }

    pub(super) fn no_token() -> Self {
        Self::misconfigured("no token is left above this token floor: they end at `i64::MAX`")
            .answered()
    }

    pub(super) fn no_chroot() -> Self {
        Self::misconfigured(
            "the chroot of the connect string does not exist: create it, or mend the string",
        )
    }

    pub(super) fn answered(mut self) -> Self {
        self.answered = true;
        self
    }

    pub(super) fn is_contended(&self) -> bool {
        self.kind == BackendErrorKind::Contended
    }

    /// Whether the same may be answered otherwise later.
    pub(super) fn may_pass(&self) -> bool {
        self.kind == BackendErrorKind::Unavailable
    }
}

/// Whether no request of this session will be answered any more.
pub(super) fn ends_session(error: &zk::Error) -> bool {
    matches!(
        error,
        zk::Error::SessionExpired | zk::Error::AuthFailed | zk::Error::ClientClosed
    )
}

impl From<zk::Error> for Trouble {
    fn from(error: zk::Error) -> Self {
        use zk::Error;
        match error {
            Error::NoAuth | Error::InvalidAcl => Self::misconfigured(
                "the ZooKeeper user may not do this under the base path (NoAuth): it needs create, \
                 read, write and delete there",
            )
            .answered(),
            Error::AuthFailed => {
                Self::misconfigured("ZooKeeper refused the user or its password (AuthFailed)")
            }
            Error::Unimplemented => Self::misconfigured(
                "this ZooKeeper server is too old: 3.5.3 or newer is needed (container nodes)",
            )
            .answered(),
            Error::NotReadOnly => {
                Self::unavailable("this ZooKeeper server is read-only: it has lost the majority")
                    .answered()
            }
            Error::QuotaExceeded => {
                Self::unavailable("a quota of ZooKeeper nodes is used up (QuotaExceeded)")
                    .answered()
            }
            Error::Throttled => {
                Self::unavailable("ZooKeeper refused to serve for its load (Throttled)").answered()
            }
            Error::SessionExpired | Error::ClientClosed => Self::no_session(),
            Error::NoNode
            | Error::NodeExists
            | Error::NotEmpty
            | Error::BadVersion
            | Error::NoChildrenForEphemerals
            | Error::BadArguments(_) => Self::misconfigured(
                "nodes under the base path are not as this crate leaves them: does somebody else \
                 write there?",
            )
            .answered(),
            Error::NoHosts => Self::no_connection(),
            // Ephemeral nodes of a session that only one server knows.
            Error::UnexpectedErrorCode(-120) => Self::misconfigured(
                "ZooKeeper has local sessions without upgrading \
                 (localSessionsUpgradingEnabled): locks need it",
            )
            .answered(),
            Error::UnexpectedErrorCode(_) | Error::MarshallingError | Error::ReconfigDisabled => {
                Self::unavailable("ZooKeeper refused for a reason that is not known here")
                    .answered()
            }
            _ => Self::unavailable("the connection to ZooKeeper failed"),
        }
    }
}

impl From<Trouble> for BackendError {
    fn from(trouble: Trouble) -> Self {
        Self::new(trouble.kind, trouble.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What may have been done must never count as refused.
    #[test]
    fn only_refusals_count_as_answered() {
        for (error, answered) in [
            (zk::Error::NoAuth, true),
            (zk::Error::Throttled, true),
            (zk::Error::UnexpectedErrorCode(-120), true),
            (zk::Error::ConnectionLoss, false),
            (zk::Error::SessionMoved, false),
            (zk::Error::SessionExpired, false),
            (zk::Error::Timeout, false),
            (zk::Error::UnexpectedError("/secret/path".into()), false),
        ] {
            let trouble = Trouble::from(error.clone());
            assert_eq!(trouble.answered, answered, "{error}");
            let text = BackendError::from(trouble).to_string();
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
