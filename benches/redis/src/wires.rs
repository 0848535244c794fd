//! Connections to servers that are further away: what is sent over them arrives later.
//!
//! One thread carries all of them, since what the wires of five servers take of two cores would
//! count as the servers'. Each chunk has a moment at which it is due, and many are under way at
//! once. An async timer would be too coarse: its tick is a millisecond.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::{AsFd, OwnedFd},
};

/// A port for each server; ended on drop.
pub(crate) struct Wires {
    addresses: Vec<SocketAddr>,
    /// Closing it stops the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

struct Pump {
    /// Of the stop, the listeners, and both ends of each link, in this order.
    ready: OwnedFd,
    listeners: Vec<(TcpListener, SocketAddr)>,
    stopped: UnixStream,
    links: Vec<Link>,
    buffer: Box<[u8]>,
    /// In the order in which it is due, as everything takes as long.
    under_way: VecDeque<Chunk>,
    each_way: Duration,
}

/// The client's end and the server's.
struct Link([TcpStream; 2]);

struct Chunk {
    due: Instant,
    link: usize,
    to: usize,
    /// Nothing is the end.
    bytes: Vec<u8>,
}

impl Wires {
    /// To each of these, with so much added to each way.
    pub(crate) fn to(targets: impl IntoIterator<Item = SocketAddr>, each_way: Duration) -> Self {
        let listeners: Vec<_> = targets
            .into_iter()
            .map(|target| {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
                (listener, target)
            })
            .collect();
        let addresses = listeners
            .iter()
            .map(|(listener, _)| listener.local_addr().expect("it is bound"))
            .collect();
        let (stop, stopped) = UnixStream::pair().expect("a pair of sockets");
        let mut pump = Pump {
            ready: epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll"),
            listeners,
            stopped,
            links: Vec::new(),
            buffer: vec![0; 16 << 10].into(),
            under_way: VecDeque::new(),
            each_way,
        };
        let thread = thread::Builder::new()
            .name("wires".to_owned())
            .spawn(move || pump.run())
            .expect("a thread starts");
        Self {
            addresses,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self, of: usize) -> SocketAddr {
        self.addresses[of]
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let urls = self.addresses.iter();
        urls.map(|address| format!("redis://{address}")).collect()
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked, it has said so.
            let _ = thread.join();
        }
    }
}

impl Pump {
    fn run(&mut self) {
        // The kernel may wake sleepers 50 µs late by default.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).expect("a number");
        self.watch(&self.stopped, 0);
        for (n, (listener, _)) in self.listeners.iter().enumerate() {
            self.watch(listener, 1 + n);
        }
        let first = 1 + self.listeners.len();
        let mut events = Vec::with_capacity(64);
        loop {
            self.deliver();
            let timeout = self.under_way.front().map(|chunk| {
                let left = chunk.due.saturating_duration_since(Instant::now());
                Timespec::try_from(left).expect("it is short")
            });
            events.clear();
            match epoll::wait(&self.ready, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("epoll: {error}"),
            }
            for event in &events {
                match event.data.u64() as usize {
                    0 => return,
                    n if n < first => self.accept(n - 1),
                    n => self.take((n - first) / 2, (n - first) % 2),
                }
            }
        }
    }

    fn watch(&self, socket: impl AsFd, number: usize) {
        let number = epoll::EventData::new_u64(number as u64);
        epoll::add(&self.ready, socket, number, epoll::EventFlags::IN).expect("it is watched");
    }

    fn accept(&mut self, listener: usize) {
        let (listener, target) = &self.listeners[listener];
        let (client, _) = listener.accept().expect("somebody connects");
        let server = TcpStream::connect(target).expect("the server takes a connection");
        let ends = [client, server];
        let first = 1 + self.listeners.len() + 2 * self.links.len();
        for (n, end) in ends.iter().enumerate() {
            end.set_nodelay(true).expect("a TCP socket");
            self.watch(end, first + n);
        }
        self.links.push(Link(ends));
    }

    /// What an end has sent.
    fn take(&mut self, link: usize, from: usize) {
        let Link(ends) = &mut self.links[link];
        // A reset ends it just as well.
        let length = ends[from].read(&mut self.buffer).unwrap_or(0);
        if length == 0 {
            epoll::delete(&self.ready, &ends[from]).expect("it was watched");
        }
        self.under_way.push_back(Chunk {
            due: Instant::now() + self.each_way,
            link,
            to: 1 - from,
            bytes: self.buffer[..length].to_vec(),
        });
    }

    fn deliver(&mut self) {
        let is_due = |chunk: &Chunk| chunk.due <= Instant::now();
        while self.under_way.front().is_some_and(is_due)
            && let Some(chunk) = self.under_way.pop_front()
        {
            let to = &mut self.links[chunk.link].0[chunk.to];
            // It may have gone meanwhile.
            let _ = match &*chunk.bytes {
                [] => to.shutdown(Shutdown::Write),
                bytes => to.write_all(bytes),
            };
        }
    }
}
