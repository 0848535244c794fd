//! From what the client library reports to errors that say what to do.

use std::borrow::Cow;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::{cluster::redirected, url::Address};
use crate::error::{BackendError, BackendErrorKind};

/// The commands of the scripts and the others, as a refusal names them: what else stands there was not
/// written by a Redis that we know, and is not repeated.
const COMMANDS: &str = "asking client client|id client|kill cluster cluster|nodes cluster|slots del eval evalsha \
    exists get hdel hello hget hgetall hkeys hmget hset info mget pexpire ping pttl publish \
    script|load select sentinel|master sentinel|get-master-addr-by-name set spublish \
    ssubscribe subscribe time wait waitaof zadd zcount zrange zrem zremrangebyscore zscore";

fn known(command: &str) -> Option<&'static str> {
    let mut commands = COMMANDS.split(' ');
    commands.find(|known| known.eq_ignore_ascii_case(command))
}

/// An error that several callers may get. Its text holds no key and no secret.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Trouble {
    kind: BackendErrorKind,
    context: Cow<'static, str>,
    source: Option<RedisError>,
    /// Whether the server itself said so: what was asked has been done in part at most, and will
    /// not be done later.
    pub(in crate::backend) answered: bool,
    /// Where it would be done, if the server did nothing for that reason.
    elsewhere: Option<Elsewhere>,
}

/// Why a server did nothing that another will do, or the same one later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// It is not the master any more.
    OtherMaster,
    /// Another node has this slot of a Cluster, perhaps this one.
    Moved(u16, Option<Address>),
    /// The slot is being moved; for keys that are not here any more that node is to be asked.
    AskAt(Address),
    /// The slot is being moved, and keys of it are here and there.
    BeingMoved,
    /// No node has the slot, or too few of the Cluster are there.
    Nowhere,
}

impl Elsewhere {
    fn of(error: &RedisError) -> Option<Self> {
        use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
        let ErrorKind::Server(kind) = error.kind() else {
            return None;
        };
        let node = || error.redirect_node();
        Some(match kind {
            Moved => {
                let (address, slot) = node()?;
                Self::Moved(slot, redirected(address))
            }
            // A node that does not say where sends us on when the move has ended.
            Ask => node()
                .and_then(|(address, _)| redirected(address))
                .map_or(Self::BeingMoved, Self::AskAt),
            TryAgain => Self::BeingMoved,
            ClusterDown => Self::Nowhere,
            // A script at the source of a slot that is being moved, once it has emptied a key. What
            // it did before that stays; asking again by the same owner ends the same.
            ServerErrorKind::ResponseError => {
                let detail = error.detail()?;
                if detail.contains("non local key") {
                    Self::BeingMoved
                } else if detail.contains("while the cluster is down") {
                    Self::Nowhere
                } else {
                    return None;
                }
            }
            _ => return None,
        })
    }

    fn context(&self) -> &'static str {
        match self {
            Self::OtherMaster => "this Redis server is not the master any more",
            Self::Moved(..) => "nodes of the Redis Cluster do not agree who has the key's slot",
            Self::AskAt(_) | Self::BeingMoved => "the Redis Cluster is moving the key's slot",
            Self::Nowhere => "the Redis Cluster is down, or the key's slot is (CLUSTERDOWN)",
        }
    }
}

impl Trouble {
    pub(in crate::backend) fn unavailable(context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: BackendErrorKind::Unavailable,
            context: context.into(),
            source: None,
            answered: false,
            elsewhere: None,
        }
    }

    pub(in crate::backend) fn misconfigured(context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind: BackendErrorKind::Misconfigured,
            ..Self::unavailable(context)
        }
    }

    pub(in crate::backend) fn no_answer() -> Self {
        Self::unavailable("Redis did not answer within the operation timeout")
    }

    pub(super) fn nowhere() -> Self {
        Self {
            answered: true,
            elsewhere: Some(Elsewhere::Nowhere),
            ..Self::unavailable("no node of the Redis Cluster has the key's slot")
        }
    }

    /// The connection ended, so an answer on it is not to be relied on.
    pub(super) fn ended() -> Self {
        Self::unavailable("the connection to Redis has ended")
    }

    pub(super) fn not_replicated() -> Self {
        Self {
            kind: BackendErrorKind::NotReplicated,
            answered: true,
            ..Self::unavailable("too few replicas of Redis have it in time")
        }
    }

    /// The server knows that this owner may not have the key any more.
    pub(super) fn undone(context: &'static str) -> Self {
        Self {
            answered: true,
            ..Self::unavailable(context)
        }
    }

    /// The wait is over without the key.
    pub(super) fn replaced() -> Self {
        Self {
            kind: BackendErrorKind::WaitTimedOut,
            answered: true,
            ..Self::unavailable("another acquire of the same owner took its place")
        }
    }

    /// An answer in a form that no script of ours gives.
    pub(in crate::backend) fn strange() -> Self {
        Self {
            answered: true,
            ..Self::misconfigured("Redis answered in a form that is not known")
        }
    }

    /// A refusal inside of a script that tried this command.
    pub(in crate::backend) fn refused_command(refusal: &str) -> Self {
        let (command, reason) = refusal.split_once(':').unwrap_or((refusal, ""));
        if let Some(state) = Self::of_state(reason) {
            return state;
        }
        if reason.contains("syntax error") {
            return Self::too_old();
        }
        let what = if command == "PUBLISH" && !reason.contains("can't run") {
            "publish to the inbox channel (give it `&<prefix>inbox:*`)".to_owned()
        } else if reason.contains("key") {
            "use the keys of locks (give it `~<prefix>*` and `~{<prefix>*`)".to_owned()
        } else {
            match known(command) {
                Some(command) => {
                    format!("run {} (give it `+{command}`)", command.to_uppercase())
                }
                None => return Self::strange(),
            }
        };
        Self::misconfigured(format!("the Redis user may not {what}"))
    }

    /// The same, of one server of several.
    #[cfg(feature = "redlock")]
    pub(in crate::backend) fn of_node(mut self, number: usize) -> Self {
        self.context = format!("node {number} of the list: {}", self.context).into();
        self
    }

    /// Whether what was asked did not run, and may run elsewhere.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    pub(super) fn elsewhere(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// Whether the same may be answered otherwise later.
    pub(in crate::backend) fn may_pass(&self) -> bool {
        self.kind == BackendErrorKind::Unavailable
    }

    pub(super) fn is_server(&self, kind: ServerErrorKind) -> bool {
        self.source
            .as_ref()
            .is_some_and(|source| source.kind() == ErrorKind::Server(kind))
    }

    fn too_old() -> Self {
        Self::misconfigured("this Redis server is too old: 6.2 or newer is needed")
    }

    /// A state of the server, which answers commands in scripts with its code somewhere in the
    /// text.
    fn of_state(text: &str) -> Option<Self> {
        const STATES: [&str; 7] = [
            "OOM",
            "READONLY",
            "NOREPLICAS",
            "MISCONF",
            "LOADING",
            "BUSY",
            "MASTERDOWN",
        ];
        let state = STATES.into_iter().find(|state| text.contains(state))?;
        Self::of_text(state)
    }

    fn of_text(code: &str) -> Option<Self> {
        Some(match code {
            "OOM" => Self::unavailable(
                "Redis is out of memory (OOM): raise `maxmemory` or remove other keys",
            ),
            "READONLY" => Self {
                elsewhere: Some(Elsewhere::OtherMaster),
                ..Self::unavailable(
                    "this Redis server is a read-only replica by now (READONLY): its master is \
                     another",
                )
            },
            "NOREPLICAS" => Self::unavailable(
                "Redis has too few connected replicas to accept writes (NOREPLICAS)",
            ),
            "MISCONF" => Self::unavailable(
                "Redis cannot persist and so accepts no writes (MISCONF): look into its log",
            ),
            "LOADING" => Self::unavailable("Redis is still loading its data (LOADING)"),
            "BUSY" => Self::unavailable("Redis is busy with somebody's long script (BUSY)"),
            "MASTERDOWN" => {
                Self::unavailable("this Redis replica has lost its master (MASTERDOWN)")
            }
            "NOAUTH" => Self::misconfigured("Redis asks for a password (NOAUTH): none was given"),
            "WRONGPASS" => {
                Self::misconfigured("Redis refused the user or its password (WRONGPASS)")
            }
            _ => return None,
        })
    }
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Self {
        let detail = error.detail().unwrap_or_default();
        let code = error.code().unwrap_or_default();
        let answered = !code.is_empty();
        if let Some(elsewhere) = Elsewhere::of(&error) {
            return Self {
                answered: true,
                elsewhere: Some(elsewhere.clone()),
                source: Some(error),
                ..Self::unavailable(elsewhere.context())
            };
        }
        // An error inside of a script comes as one of the script, with the code in its text.
        let state = Self::of_state(code).or_else(|| Self::of_state(detail));
        let trouble = match (error.kind(), code) {
            (ErrorKind::Server(ServerErrorKind::NoPerm), _) => {
                Self::misconfigured(no_right(detail))
            }
            (ErrorKind::RESP3NotSupported, _) => Self::too_old(),
            (_, "NOAUTH" | "WRONGPASS") => Self::of_text(code).unwrap_or_else(Self::strange),
            (ErrorKind::AuthenticationFailed, _) => {
                Self::misconfigured("Redis refused the user or its password")
            }
            (ErrorKind::InvalidClientConfig, _) => {
                Self::misconfigured("the client cannot be set up as the URL says")
            }
            _ if state.is_some() => state.unwrap_or_else(Self::strange),
            _ if detail.contains("user executing the script") || detail.contains("NOPERM") => {
                Self::misconfigured(
                    "the Redis user lacks a right that a script needs: see the ACL in the docs",
                )
            }
            _ if code == "WRONGTYPE" || detail.contains("WRONGTYPE") => Self::misconfigured(
                "a key beside a lock holds what this crate did not write (WRONGTYPE)",
            ),
            _ if error.to_string().contains("switch database") => Self::misconfigured(
                "Redis refused the database of the URL: the user needs `+select`, and the server \
                 as many databases",
            ),
            (ErrorKind::Io, _) => Self::unavailable("the connection to Redis failed"),
            _ if answered => Self::unavailable("Redis answered with an error"),
            _ => Self::unavailable("Redis could not be asked"),
        };
        Self {
            answered,
            source: Some(error),
            ..trouble
        }
    }
}

impl From<Trouble> for BackendError {
    fn from(trouble: Trouble) -> Self {
        let error = Self::new(trouble.kind, trouble.context);
        match trouble.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

/// The server names the command in quotes: "... permissions to run the 'evalsha' command".
fn no_right(detail: &str) -> String {
    match detail.split('\'').nth(1).and_then(known) {
        Some(command) => format!(
            "the Redis user may not run {} (give it `+{command}`)",
            command.to_uppercase()
        ),
        None if detail.contains("channel") => {
            "the Redis user may not use the inbox channel (give it `&<prefix>inbox:*`)".into()
        }
        None => {
            "the Redis user may not use the keys of locks (give it `~<prefix>*` and `~{<prefix>*`)"
                .into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn says(trouble: Trouble, kind: BackendErrorKind, part: &str) {
        let error = BackendError::from(trouble);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }

    /// What Redis 7 answers, and what is made of it.
    #[test]
    fn refusals_of_a_right_name_it() {
        use BackendErrorKind::{Misconfigured, Unavailable};
        says(
            Trouble::misconfigured(no_right(
                "User worker has no permissions to run the 'evalsha' command",
            )),
            Misconfigured,
            "may not run EVALSHA (give it `+evalsha`)",
        );
        says(
            Trouble::misconfigured(no_right("No permissions to access a channel")),
            Misconfigured,
            "&<prefix>inbox:*",
        );
        says(
            Trouble::misconfigured(no_right("No permissions to access a key")),
            Misconfigured,
            "~<prefix>*",
        );
        says(
            Trouble::refused_command(
                "ZADD: ERR The user executing the script can't run this command or subcommand",
            ),
            Misconfigured,
            "may not run ZADD (give it `+zadd`)",
        );
        says(
            Trouble::refused_command(
                "SET: OOM command not allowed when used memory > 'maxmemory'.",
            ),
            Unavailable,
            "maxmemory",
        );
    }

    /// The user's name in a refusal comes from the server's text and goes nowhere.
    #[test]
    fn names_in_quotes_that_are_no_commands_are_not_repeated() {
        for text in [
            "User 'it is secret' has no permissions",
            "User 'secret' may not run",
        ] {
            let text = no_right(text);
            assert!(!text.contains("secret"), "{text}");
        }
        for text in ["secret: secret", "secret", "SECRET:"] {
            let error = BackendError::from(Trouble::refused_command(text)).to_string();
            assert!(error.contains("form that is not known"), "{error}");
            assert!(!error.to_lowercase().contains("secret"), "{error}");
        }
    }
}
