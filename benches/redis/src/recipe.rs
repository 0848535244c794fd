//! The very commands that `RedisBackend` sends for an uncontended pair, to be sent by others: so
//! the scripts cost the same and what differs is the client.

use std::sync::Arc;

use redis::{Cmd, Value, aio::MultiplexedConnection};
use tokio::runtime::Runtime;
use tower_lock::Lease;

use crate::{
    locks::{Lock, Ours, connect},
    server::{Sent, Server},
    socket::pack,
};

/// An acquire and a release, seen by the server.
#[derive(Debug)]
pub(crate) struct Recipe {
    acquire: Sent,
    release: Sent,
    token: String,
}

/// The key of the pair that was seen.
const KEY: &str = "the-key-that-is-copied";

impl Recipe {
    pub(crate) fn learn(server: &Server, runtime: &Runtime) -> Arc<Self> {
        let ours = runtime.block_on(Ours::ready(&server.url()));
        let pair = || {
            runtime.block_on(async {
                let lease = ours.lease(KEY).await;
                let token = lease.fencing_token().to_string();
                ours.release(lease).await;
                token
            })
        };
        pair();
        let (token, sent) = server.sent(pair);
        let scripts = sent.into_iter().filter(|command| command[0] == b"EVALSHA");
        match <[Sent; 2]>::try_from(scripts.collect::<Vec<_>>()) {
            Ok([acquire, release]) => Arc::new(Self {
                acquire,
                release,
                token,
            }),
            Err(other) => panic!("a pair is two scripts, not {}", other.len()),
        }
    }

    /// The pair for this key.
    pub(crate) fn pair(&self, key: &str) -> Pair {
        let of_key = |sent: &Sent| -> Sent { sent.iter().map(|arg| swap(arg, KEY, key)).collect() };
        let acquire = of_key(&self.acquire);
        Pair {
            packed_acquire: pack(&acquire),
            acquire: command(&acquire),
            acquire_args: acquire,
            release: of_key(&self.release),
            token: self.token.clone(),
        }
    }
}

/// What is sent for one key; the release says the token of its grant.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) packed_acquire: Vec<u8>,
    pub(crate) acquire_args: Sent,
    acquire: Cmd,
    release: Sent,
    token: String,
}

impl Pair {
    pub(crate) fn release(&self, token: &str) -> Sent {
        let args = self.release.iter();
        args.map(|arg| swap(arg, &self.token, token)).collect()
    }
}

fn swap(arg: &[u8], from: &str, to: &str) -> Vec<u8> {
    match std::str::from_utf8(arg) {
        Ok(text) if text.contains(from) => text.replace(from, to).into_bytes(),
        _ => arg.to_vec(),
    }
}

pub(crate) fn command(args: &[Vec<u8>]) -> Cmd {
    let mut cmd = Cmd::with_capacity(args.len(), args.iter().map(Vec::len).sum());
    for arg in args {
        cmd.arg(&arg[..]);
    }
    cmd
}

/// The recipe, sent over a connection of redis-rs.
#[derive(Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    recipe: Arc<Recipe>,
    pair: Arc<Pair>,
}

impl Raw {
    pub(crate) async fn connect(url: &str, recipe: &Arc<Recipe>) -> Self {
        Self {
            connection: connect(url).await,
            recipe: recipe.clone(),
            pair: Arc::new(recipe.pair(KEY)),
        }
    }
}

impl Lock for Raw {
    /// The token.
    type Held = String;

    fn for_key(&self, key: &str) -> Self {
        Self {
            pair: Arc::new(self.recipe.pair(key)),
            ..self.clone()
        }
    }

    async fn acquire(&self, _key: &str) -> String {
        let mut connection = self.connection.clone();
        let reply = connection.send_packed_command(&self.pair.acquire).await;
        match reply.expect("an answer") {
            Value::BulkString(token) => String::from_utf8_lossy(&token).into_owned(),
            other => panic!("no token: {other:?}"),
        }
    }

    async fn release(&self, token: String) {
        let release = command(&self.pair.release(&token));
        let reply = self.connection.clone().send_packed_command(&release).await;
        assert_eq!(reply.expect("an answer"), Value::Int(1), "it was held");
    }
}
