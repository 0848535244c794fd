//! Stands between a client and a real server, and spoils the server's replies as an input says.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::{AbortHandle, JoinSet},
};

use super::super::input::Input;

/// How much of what the client was told is kept.
const KEPT: usize = 4 << 20;

/// How a protocol is cut into frames, and how one of them is made wrong in a plausible way.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// The length of the frame at the beginning, once all of it is there.
    pub frame: fn(&[u8]) -> Option<usize>,
    /// The same frame with something else in it, chosen by two bytes.
    pub mistype: fn(frame: &[u8], which: u8, what: u8) -> Vec<u8>,
}

/// What mutations of an input put into it, where frames are many and most of them small: the steps
/// below.
pub const FRAMED: &[&str] = &[
    "m\x03\x01",
    "m\x04",
    "m\0",
    "m\x05\x02",
    ".",
    "\x03",
    "\x07",
    "\x0f",
    "x",
    "_",
    "d",
    "t\x02",
    "T\x14",
];

/// What is done to replies: a list of steps, one for each frame, over all connections in the order
/// in which they answer. When it is at its end, everything passes.
///
/// | byte | what |
/// |---|---|
/// | `.` | it passes |
/// | `_` | it is swallowed |
/// | `d` | it comes twice |
/// | `x` | the connection ends instead |
/// | `t` n | only n of its bytes come |
/// | `T` n | only n of its bytes come, and the connection ends |
/// | `f` n m | the bits m of its byte n are turned over |
/// | `i` n .. | these n bytes come before it |
/// | `r` n .. | these n bytes come instead |
/// | `g` n m | n garbage bytes, by the seed m, come instead |
/// | `m` n m | it is of a wrong kind, see [`Wire::mistype`] |
/// | any other | so many pass as its low six bits say, and one |
struct Plan {
    steps: Vec<u8>,
    at: usize,
    passing: u8,
    healed: bool,
    /// Something else was told in its place, which may have been in good form.
    lied: bool,
}

enum Step {
    Send(Vec<u8>),
    SendAndEnd(Vec<u8>),
}

impl Plan {
    fn of(&mut self, wire: Wire, frame: &[u8]) -> Step {
        if self.healed || self.at >= self.steps.len() {
            return Step::Send(frame.to_vec());
        }
        if self.passing > 0 {
            self.passing -= 1;
            return Step::Send(frame.to_vec());
        }
        let mut input = Input::new(&self.steps[self.at..]);
        let before = input.clone().rest().len();
        let op = input.byte();
        self.lied |= b"dfirgm".contains(&op);
        let step = match op {
            b'.' => Step::Send(frame.to_vec()),
            b'_' => Step::Send(Vec::new()),
            b'd' => Step::Send([frame, frame].concat()),
            b'x' => Step::SendAndEnd(Vec::new()),
            b't' => Step::Send(frame[..frame.len().min(input.byte().into())].to_vec()),
            b'T' => Step::SendAndEnd(frame[..frame.len().min(input.byte().into())].to_vec()),
            b'f' => {
                let (at, bits) = (usize::from(input.byte()), input.byte());
                let mut frame = frame.to_vec();
                let at = at % frame.len().max(1);
                if let Some(byte) = frame.get_mut(at) {
                    *byte ^= bits;
                }
                Step::Send(frame)
            }
            b'i' => {
                let length = input.byte().into();
                Step::Send([input.bytes(length), frame].concat())
            }
            b'r' => {
                let length = input.byte().into();
                Step::Send(input.bytes(length).to_vec())
            }
            b'g' => {
                let (length, seed) = (input.byte(), input.byte());
                let mut random = fastrand::Rng::with_seed(seed.into());
                Step::Send((0..length).map(|_| random.u8(..)).collect())
            }
            b'm' => Step::Send((wire.mistype)(frame, input.byte(), input.byte())),
            other => {
                self.passing = other & 0x3f;
                Step::Send(frame.to_vec())
            }
        };
        self.at += before - input.rest().len();
        step
    }
}

/// The relay. All that it does ends with it.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    wire: Wire,
    server: SocketAddr,
    plan: Mutex<Plan>,
    told: Mutex<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}

impl Relay {
    pub async fn start(wire: Wire, server: SocketAddr, steps: &[u8]) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            wire,
            server,
            plan: Mutex::new(Plan {
                steps: steps.to_vec(),
                at: 0,
                passing: 0,
                healed: false,
                lied: false,
            }),
            told: Mutex::default(),
        });
        let relayed = shared.clone();
        let task = tokio::spawn(async move {
            // Ended with this task.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        connections.spawn(relayed.clone().relay(client));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Self {
            address,
            shared,
            task: task.abort_handle(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on everything passes. What connections have lost they do not get back.
    pub fn heal(&self) {
        lock(&self.shared.plan).healed = true;
    }

    /// Whether the client was told what the server did not say, other than that it said less.
    pub fn lied(&self) -> bool {
        lock(&self.shared.plan).lied
    }

    /// Whether the client was ever told these bytes, as far as is known: it may have been told more
    /// than was kept.
    pub fn told(&self, bytes: &[u8]) -> bool {
        let told = lock(&self.shared.told);
        told.len() >= KEPT || told.windows(bytes.len()).any(|part| part == bytes)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn relay(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server).await else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        // One end ends both.
        tokio::select! {
            () = up(client_reads, server_writes) => {}
            () = self.down(server_reads, client_writes) => {}
        }
    }

    async fn down(&self, mut server: OwnedReadHalf, mut client: OwnedWriteHalf) {
        let mut buffer = Vec::new();
        loop {
            while let Some(length) = (self.wire.frame)(&buffer) {
                let frame: Vec<u8> = buffer.drain(..length).collect();
                let step = lock(&self.plan).of(self.wire, &frame);
                let (bytes, ends) = match step {
                    Step::Send(bytes) => (bytes, false),
                    Step::SendAndEnd(bytes) => (bytes, true),
                };
                {
                    let mut told = lock(&self.told);
                    if told.len() < KEPT {
                        told.extend(&bytes);
                    }
                }
                if client.write_all(&bytes).await.is_err() || ends {
                    return;
                }
            }
            match server.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

async fn up(mut client: OwnedReadHalf, mut server: OwnedWriteHalf) {
    let _ = tokio::io::copy(&mut client, &mut server).await;
}
