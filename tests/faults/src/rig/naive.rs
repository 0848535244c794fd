//! The locks that the field writes by hand: `SET key owner NX PX ttl` on one server, on whatever
//! server is the master, or on a majority of several. No renewal, no look at the clock before the
//! work, no guard against servers that forgot.
//!
//! The harness must find what is wrong with them, or it would not find it in ours.

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tower_lock::{
    BackendError, BackendErrorKind, FencingToken, Lease, LockBackend, LockKey,
    backend::{AcquireRequest, Capabilities, KeyState, Scope, WaitBound},
    lease::LossSignal,
};

/// How often a key is asked for again.
const POLL: Duration = Duration::from_millis(20);

/// How long a node may take.
const NODE: Duration = Duration::from_millis(300);

/// Longer than any run: who holds never looks.
const EVER: Duration = Duration::from_secs(3600);

/// Takes the key, and draws a token: 0 if it is held. With a counter it is one more than the last
/// one; else it is the server's clock, if that is more, as ours is.
const TAKE: &str = "if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                    return 0 end \
                    local token = (tonumber(redis.call('GET', 'token')) or 0) + 1 \
                    if ARGV[3] == 'clock' then local time = redis.call('TIME') \
                    token = math.max(token, time[1] * 1000000 + time[2]) end \
                    redis.call('SET', 'token', string.format('%.0f', token)) return token";

const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                       return redis.call('DEL', KEYS[1]) end return 0";

/// What is locked where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Naive {
    pub(crate) nodes: Vec<SocketAddr>,
    /// On most of the nodes; else on the first one that takes it.
    pub(crate) majority: bool,
    /// Whether tokens are counted, and nothing else.
    pub(crate) counts: bool,
}

/// Locks by hand.
#[derive(Debug)]
pub(super) struct NaiveBackend(pub(super) Naive);

impl NaiveBackend {
    /// The token, if it is granted.
    async fn ask(&self, key: &str, owner: &str, ttl: Duration) -> Option<u64> {
        let Naive {
            nodes,
            majority,
            counts,
        } = &self.0;
        let ttl = ttl.as_millis().to_string();
        let token = if *counts { "counter" } else { "clock" };
        let take = ["EVAL", TAKE, "1", key, owner, &ttl, token];
        let mut votes = 0;
        let mut token = 0;
        for &node in nodes {
            let answer = call(node, &take).await;
            let number = answer.and_then(|answer| answer.strip_prefix(':')?.parse().ok());
            match number {
                // It is down, or no master.
                None => continue,
                Some(0) => {}
                Some(vote) => {
                    votes += 1;
                    token = token.max(vote);
                }
            }
            if !majority {
                break;
            }
        }
        let needed = if *majority { nodes.len() / 2 + 1 } else { 1 };
        if votes >= needed {
            return Some(token);
        }
        if votes > 0 {
            release(nodes, key, owner).await;
        }
        None
    }
}

async fn release(nodes: &[SocketAddr], key: &str, owner: &str) {
    for &node in nodes {
        call(node, &["EVAL", RELEASE, "1", key, owner]).await;
    }
}

/// The first line of the answer, if there is one in time.
async fn call(node: SocketAddr, command: &[&str]) -> Option<String> {
    let call = async {
        let mut stream = BufReader::new(TcpStream::connect(node).await?);
        let mut bytes = format!("*{}\r\n", command.len());
        for word in command {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        stream.write_all(bytes.as_bytes()).await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        std::io::Result::Ok(line.trim_end().to_owned())
    };
    timeout(NODE, call).await.ok()?.ok()
}

impl LockBackend for NaiveBackend {
    type Lease = NaiveLease;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("naive", Scope::Fleet)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<NaiveLease, BackendError> {
        let owner = format!("{:032x}", u128::from_be_bytes(*request.owner.as_bytes()));
        loop {
            if let Some(token) = self.ask(request.key.as_str(), &owner, request.ttl).await {
                return Ok(NaiveLease {
                    nodes: self.0.nodes.clone(),
                    key: request.key.as_str().to_owned(),
                    owner,
                    token: FencingToken::new(token).expect("it is counted from 1"),
                    until: Instant::now() + EVER,
                    lost: LossSignal::new(),
                });
            }
            match request.wait {
                WaitBound::Fail => {
                    return Err(BackendError::new(BackendErrorKind::Contended, "it is held"));
                }
                WaitBound::Until(end) if Instant::now() >= end => {
                    let kind = BackendErrorKind::WaitTimedOut;
                    return Err(BackendError::new(kind, "it is held still"));
                }
                _ => sleep(POLL).await,
            }
        }
    }
    async fn wait_free(&self, _: &LockKey, _: WaitBound) -> Result<(), BackendError> {
        Err(unsupported())
    }

    async fn inspect(&self, _: &LockKey) -> Result<KeyState, BackendError> {
        Err(unsupported())
    }

    async fn force_release(&self, _: &LockKey) -> Result<bool, BackendError> {
        Err(unsupported())
    }
}

fn unsupported() -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, "this lock is made by hand")
}

#[derive(Debug)]
pub(super) struct NaiveLease {
    nodes: Vec<SocketAddr>,
    key: String,
    owner: String,
    token: FencingToken,
    until: Instant,
    lost: LossSignal,
}

impl Lease for NaiveLease {
    fn fencing_token(&self) -> FencingToken {
        self.token
    }

    fn reserved_tokens(&self) -> u32 {
        1
    }

    fn valid_until(&self) -> Instant {
        self.until
    }

    /// There is none: who works for longer than the ttl has lost the key, and does not know.
    async fn renew(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn lost(&self) -> &LossSignal {
        &self.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        release(&self.nodes, &self.key, &self.owner).await;
        Ok(())
    }
}
