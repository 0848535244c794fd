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

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A port for each server; ended on drop.
pub(crate) struct Wires {
    addresses: Vec<SocketAddr>,
    /// Closing it stops the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

struct Pump {
    listeners: Vec<(TcpListener, SocketAddr)>,
    stopped: UnixStream,
    links: Vec<Link>,
    /// In the order in which it is due, as everything takes as long.
    under_way: VecDeque<Chunk>,
    each_way: Duration,
}

struct Link {
    /// The client's and the server's.
    ends: [TcpStream; 2],
    /// Whose end was read.
    ended: [bool; 2],
}

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
            listeners,
            stopped,
            links: Vec::new(),
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
        #[cfg(target_os = "linux")]
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).expect("a number");
        loop {
            self.deliver();
            let ready = self.wait();
            let (first, links) = ready.split_at(1 + self.listeners.len());
            if first[0] {
                return;
            }
            for (n, _) in links.iter().enumerate().filter(|(_, ready)| **ready) {
                self.take(n / 2, n % 2);
            }
            for (n, _) in first[1..].iter().enumerate().filter(|(_, ready)| **ready) {
                self.accept(n);
            }
        }
    }

    /// Which of the stop, the listeners, and both ends of each link have something.
    fn wait(&self) -> Vec<bool> {
        let mut sockets = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        let listeners = self.listeners.iter();
        sockets.extend(listeners.map(|(it, _)| PollFd::new(it, PollFlags::IN)));
        let places: Vec<usize> = (0..self.links.len() * 2)
            .filter(|end| !self.links[end / 2].ended[end % 2])
            .collect();
        let first = sockets.len();
        let of_place = |end: &usize| PollFd::new(&self.links[end / 2].ends[end % 2], PollFlags::IN);
        sockets.extend(places.iter().map(of_place));
        let timeout = self.under_way.front().map(|chunk| {
            let left = chunk.due.saturating_duration_since(Instant::now());
            Timespec::try_from(left).expect("it is short")
        });
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return vec![false; first],
            Err(error) => panic!("poll: {error}"),
        }
        let has = |socket: &PollFd<'_>| !socket.revents().is_empty();
        let mut ready = vec![false; first + self.links.len() * 2];
        for (at, socket) in sockets.iter().enumerate() {
            let at = at.checked_sub(first).map_or(at, |n| first + places[n]);
            ready[at] = has(socket);
        }
        ready
    }

    fn accept(&mut self, listener: usize) {
        let (listener, target) = &self.listeners[listener];
        let (client, _) = listener.accept().expect("somebody connects");
        let server = TcpStream::connect(target).expect("the server takes a connection");
        let ends = [client, server];
        for end in &ends {
            end.set_nodelay(true).expect("a TCP socket");
        }
        self.links.push(Link {
            ends,
            ended: [false; 2],
        });
    }

    /// What an end has sent.
    fn take(&mut self, link: usize, from: usize) {
        let mut buffer = [0; 16 << 10];
        let Link { ends, ended } = &mut self.links[link];
        // A reset ends it just as well.
        let length = ends[from].read(&mut buffer).unwrap_or(0);
        ended[from] = length == 0;
        self.under_way.push_back(Chunk {
            due: Instant::now() + self.each_way,
            link,
            to: 1 - from,
            bytes: buffer[..length].to_vec(),
        });
    }

    fn deliver(&mut self) {
        let is_due = |chunk: &Chunk| chunk.due <= Instant::now();
        while self.under_way.front().is_some_and(is_due)
            && let Some(chunk) = self.under_way.pop_front()
        {
            let to = &mut self.links[chunk.link].ends[chunk.to];
            // It may have gone meanwhile.
            let _ = match &*chunk.bytes {
                [] => to.shutdown(Shutdown::Write),
                bytes => to.write_all(bytes),
            };
        }
    }
}
