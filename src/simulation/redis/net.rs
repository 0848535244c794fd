//! The network between processes and the server.
//!
//! A message takes at least a window, so all that arrives in a window is known when it begins.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::Time;
use crate::{backend::redis::sim::Dialer, sync::lock};

pub(super) struct Net {
    random: fastrand::Rng,
    /// How long a message takes, at least and at most.
    pub(super) takes: (Time, Time),
    pub(super) lines: BTreeMap<u64, Line>,
    next: u64,
    /// Until when nothing gets through, from and to a process.
    holes: BTreeMap<usize, (Time, Time)>,
    /// Until when nobody is there to connect to.
    pub(super) down_until: Time,
    /// Messages of channels in a thousand that are lost.
    pub(super) loses: u64,
}

/// A connection.
pub(super) struct Line {
    pub(super) process: usize,
    up: VecDeque<Packet>,
    down: VecDeque<Packet>,
    reader: Option<Waker>,
    /// The client is told so.
    broken: bool,
    pub(super) client_gone: bool,
}

struct Packet {
    at: Time,
    /// `None`: the other side has closed.
    bytes: Option<Vec<u8>>,
}

/// What comes to the server.
pub(super) struct Arrival {
    pub(super) at: Time,
    pub(super) line: u64,
    pub(super) bytes: Option<Vec<u8>>,
}

/// The time of a process: its own clock, which is that of the world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) base: Instant,
    pub(super) born: Time,
}

impl Clock {
    pub(super) fn now(&self) -> Time {
        self.born + self.base.elapsed().as_micros() as Time
    }

    pub(super) fn instant(&self, at: Time) -> Instant {
        self.base + Duration::from_micros(at.saturating_sub(self.born))
    }
}

impl Net {
    pub(super) fn new(random: fastrand::Rng, takes: (Time, Time)) -> Self {
        Self {
            random,
            takes,
            lines: BTreeMap::new(),
            // As clients are numbered: from one.
            next: 1,
            holes: BTreeMap::new(),
            down_until: 0,
            loses: 0,
        }
    }

    fn latency(&mut self) -> Time {
        let (least, most) = self.takes;
        // Few take long.
        let part = self.random.f64().powi(4);
        least + ((most - least) as f64 * part) as Time / 1000 * 1000
    }

    pub(super) fn cut(&mut self, process: usize, up: Time, down: Time) {
        let hole = self.holes.entry(process).or_default();
        hole.0 = hole.0.max(up);
        hole.1 = hole.1.max(down);
    }

    fn send_up(&mut self, line: u64, now: Time, bytes: Option<Vec<u8>>) {
        let latency = self.latency();
        let Some(line) = self.lines.get_mut(&line) else {
            return;
        };
        let open = self.holes.get(&line.process).map_or(0, |hole| hole.0);
        let last = line.up.back().map_or(0, |packet| packet.at);
        let at = now.max(open).saturating_add(latency).max(last);
        line.up.push_back(Packet { at, bytes });
    }

    pub(super) fn send_down(&mut self, line: u64, now: Time, bytes: Option<Vec<u8>>) {
        let is_message = bytes
            .as_ref()
            .is_some_and(|b| b.starts_with(b">3\r\n$7\r\nmessage"));
        if is_message && self.random.u64(0..1000) < self.loses {
            return;
        }
        let latency = self.latency();
        let Some(line) = self.lines.get_mut(&line) else {
            return;
        };
        let open = self.holes.get(&line.process).map_or(0, |hole| hole.1);
        let last = line.down.back().map_or(0, |packet| packet.at);
        let at = now.max(open).saturating_add(latency).max(last);
        line.down.push_back(Packet { at, bytes });
        if let Some(reader) = line.reader.take() {
            reader.wake();
        }
    }

    /// The first that has come before this time.
    pub(super) fn arrival(&mut self, before: Time) -> Option<Arrival> {
        let fronts = self.lines.iter().filter_map(|(id, line)| {
            let front = line.up.front()?;
            (front.at < before).then_some((front.at, *id))
        });
        let (at, line) = fronts.min()?;
        let packet = self.lines.get_mut(&line)?.up.pop_front()?;
        Some(Arrival {
            at,
            line,
            bytes: packet.bytes,
        })
    }

    /// Lines on which nothing more can come or go.
    pub(super) fn tidy(&mut self) {
        self.lines
            .retain(|_, line| !line.client_gone || !line.up.is_empty());
    }

    /// The client is told at once that the connection is gone. The server is told later, after
    /// whatever is on its way to it.
    pub(super) fn break_client_side(&mut self, line: u64, later: Time) {
        if let Some(line) = self.lines.get_mut(&line) {
            line.broken = true;
            line.down.clear();
            for packet in &mut line.up {
                packet.at = packet.at.max(later);
            }
            let bytes = None;
            line.up.push_back(Packet { at: later, bytes });
            if let Some(reader) = line.reader.take() {
                reader.wake();
            }
        }
    }

    /// Whatever is on its way is lost.
    pub(super) fn break_both(&mut self, line: u64) {
        if let Some(line) = self.lines.get_mut(&line) {
            line.broken = true;
            line.up.clear();
            line.down.clear();
            if let Some(reader) = line.reader.take() {
                reader.wake();
            }
        }
    }
}

pub(super) fn dialer(net: Arc<Mutex<Net>>, process: usize, clock: Clock) -> Dialer {
    Dialer::new(move || {
        let net = net.clone();
        Box::pin(async move {
            let (open, down) = {
                let net = lock(&net);
                let hole = net.holes.get(&process).copied().unwrap_or_default();
                (hole.0.max(hole.1), net.down_until)
            };
            sleep_until(clock.instant(open)).await;
            sleep(Duration::from_millis(5)).await;
            if clock.now() < down {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let line = {
                let mut net = lock(&net);
                let line = net.next;
                net.next += 1;
                net.lines.insert(
                    line,
                    Line {
                        process,
                        up: VecDeque::new(),
                        down: VecDeque::new(),
                        reader: None,
                        broken: false,
                        client_gone: false,
                    },
                );
                line
            };
            let stream = Stream {
                net,
                line,
                clock,
                next: None,
            };
            Ok(Box::new(stream) as Box<_>)
        })
    })
}

struct Stream {
    net: Arc<Mutex<Net>>,
    line: u64,
    clock: Clock,
    /// Until what is on its way is there.
    next: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let at = {
                let mut net = lock(&self.net);
                let Some(line) = net.lines.get_mut(&self.line) else {
                    return Poll::Ready(Ok(()));
                };
                if line.broken {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                line.reader = Some(cx.waker().clone());
                match line.down.front_mut() {
                    None => return Poll::Pending,
                    Some(packet) if packet.at <= self.clock.now() => {
                        let Some(bytes) = &mut packet.bytes else {
                            return Poll::Ready(Ok(()));
                        };
                        let n = bytes.len().min(buf.remaining());
                        buf.put_slice(&bytes[..n]);
                        bytes.drain(..n);
                        if bytes.is_empty() {
                            line.down.pop_front();
                        }
                        return Poll::Ready(Ok(()));
                    }
                    Some(packet) => packet.at,
                }
            };
            let at = self.clock.instant(at);
            let next = self.next.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if next.deadline() != at {
                next.as_mut().reset(at);
            }
            if next.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // A timer counts whole milliseconds, so what it waited for is there.
            self.next = None;
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut net = lock(&self.net);
        if net.lines.get(&self.line).is_none_or(|line| line.broken) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        net.send_up(self.line, self.clock.now(), Some(bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut net = lock(&self.net);
        // Where the whole process is dropped its clock is not to be had.
        if tokio::runtime::Handle::try_current().is_ok() {
            let now = self.clock.now();
            net.send_up(self.line, now, None);
        }
        if let Some(line) = net.lines.get_mut(&self.line) {
            line.client_gone = true;
            line.reader = None;
        }
    }
}
