//! The thread of a proxy: one loop over all sockets.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::set_socket_linger,
};

use super::{super::sockets, Fate, Order};

/// A lane reads no further while it keeps so many bytes.
const KEPT: usize = 4 << 20;

pub(super) struct Pump {
    listener: TcpListener,
    target: SocketAddr,
    wake: UnixStream,
    orders: Receiver<(Order, Sender<usize>)>,
    links: Vec<Link>,
    accepted: usize,
    latency: [Duration; 2],
    fate: [Fate; 2],
    refuse: bool,
    /// The processes that all of this befalls; everybody, if it is `None`.
    aim: Option<Vec<u32>>,
}

/// A connection: the client's end and the server's, and what travels up and down between them.
struct Link {
    ends: [TcpStream; 2],
    lanes: [Lane; 2],
    /// Its requests are held, whatever passes elsewhere.
    stranded: bool,
    /// Whether faults befall it.
    aimed: bool,
}

/// What travels in one direction. Lane `i` reads from end `i`.
#[derive(Default)]
struct Lane {
    queue: VecDeque<(Instant, Parcel)>,
    kept: usize,
    /// Its source has ended, so nothing more is read.
    ended: bool,
    /// Its end was delivered.
    delivered: bool,
    /// Its destination takes nothing at the moment.
    blocked: bool,
    /// Something was swallowed: whatever follows is too.
    broken: bool,
}

enum Parcel {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// A link that is over; how it goes is already done or decided by how it is dropped.
struct Over;

impl Pump {
    pub(super) fn new(
        listener: TcpListener,
        target: SocketAddr,
        wake: UnixStream,
        orders: Receiver<(Order, Sender<usize>)>,
    ) -> Self {
        listener.set_nonblocking(true).unwrap();
        wake.set_nonblocking(true).unwrap();
        Self {
            listener,
            target,
            wake,
            orders,
            links: Vec::new(),
            accepted: 0,
            latency: [Duration::ZERO; 2],
            fate: [Fate::Pass; 2],
            refuse: false,
            aim: None,
        }
    }

    pub(super) fn run(&mut self) {
        // The kernel may wake sleepers 50 µs late by default; latencies are to be exact.
        #[cfg(target_os = "linux")]
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).unwrap();
        loop {
            let now = Instant::now();
            let fate = self.fate;
            self.links
                .retain_mut(|link| link.deliver(now, fate).is_ok());
            self.wait();
            let _ = self.wake.read(&mut [0; 64]);
            while let Ok((order, reply)) = self.orders.try_recv() {
                let stops = matches!(order, Order::Stop);
                let answer = self.obey(order);
                // The one who asks waits for it.
                let _ = reply.send(answer);
                if stops {
                    return;
                }
            }
            self.accept();
            let now = Instant::now();
            for link in &mut self.links {
                for (i, fate) in link.fate(self.fate).into_iter().enumerate() {
                    let latency = self.latency[i] * u32::from(link.aimed);
                    link.read(i, now + latency, fate);
                }
            }
        }
    }

    /// Waits for an order, for bytes, or until some are due.
    fn wait(&self) {
        let mut due = None;
        let mut sockets = vec![
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        for link in &self.links {
            for (i, lane) in link.lanes.iter().enumerate() {
                let mut interest = PollFlags::empty();
                interest.set(PollFlags::IN, lane.reads());
                interest.set(PollFlags::OUT, link.lanes[1 - i].blocked);
                // A closed socket without interest would wake the loop for ever.
                if !interest.is_empty() {
                    sockets.push(PollFd::new(&link.ends[i], interest));
                }
                if let Some(&(at, _)) = lane.queue.front()
                    && !lane.blocked
                    && link.fate(self.fate)[i] == Fate::Pass
                {
                    due = Some(due.map_or(at, |due: Instant| due.min(at)));
                }
            }
        }
        let timeout = due.map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec::try_from(left).expect("latencies are short")
        });
        match poll(&mut sockets, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }

    fn obey(&mut self, order: Order) -> usize {
        match order {
            Order::Latency(latency) => self.latency = latency,
            Order::Fate(fate) => {
                for (i, new) in fate.into_iter().enumerate() {
                    self.fate[i] = new.unwrap_or(self.fate[i]);
                    if new == Some(Fate::Drop) {
                        self.aimed().for_each(|link| link.lanes[i].swallow());
                    }
                }
            }
            Order::Aim(at) => {
                self.aim = at;
                for link in &mut self.links {
                    link.aimed = aims(self.aim.as_deref(), &link.ends[0]);
                }
            }
            Order::Strand => self.aimed().for_each(|link| link.stranded = true),
            Order::Refuse => self.refuse = true,
            Order::Reset => {
                for link in self.aimed() {
                    link.reset();
                }
                self.links.retain(|link| !link.aimed);
            }
            Order::Close => self.links.retain(|link| !link.aimed),
            Order::Stop => self.links.clear(),
            Order::Heal => self.heal(),
            Order::Mend => {
                self.heal();
                self.aim = None;
                self.links.retain_mut(|link| {
                    link.aimed = true;
                    let whole = link.lanes.iter().all(|lane| !lane.broken);
                    if !whole {
                        link.reset();
                    }
                    whole
                });
            }
            Order::Count => return self.links.len(),
            Order::Broken => {
                let lanes = self.links.iter().flat_map(|link| &link.lanes);
                return lanes.filter(|lane| lane.broken).count();
            }
            Order::Total => return self.accepted,
        }
        0
    }

    fn heal(&mut self) {
        self.latency = [Duration::ZERO; 2];
        self.fate = [Fate::Pass; 2];
        self.refuse = false;
        let now = Instant::now();
        for link in &mut self.links {
            link.stranded = false;
            for (due, _) in link.lanes.iter_mut().flat_map(|lane| &mut lane.queue) {
                *due = now;
            }
        }
    }

    fn aimed(&mut self) -> impl Iterator<Item = &mut Link> {
        self.links.iter_mut().filter(|link| link.aimed)
    }

    fn accept(&mut self) {
        while let Ok((client, _)) = self.listener.accept() {
            self.accepted += 1;
            let aimed = aims(self.aim.as_deref(), &client);
            // A server that is down answers with a reset here, one that hangs with silence.
            let server = match self.refuse && aimed {
                true => Err(ErrorKind::ConnectionRefused.into()),
                false => TcpStream::connect_timeout(&self.target, Duration::from_secs(1)),
            };
            match server {
                Ok(server) => self.links.push(Link::new([client, server], aimed)),
                Err(_) => abort(&client),
            }
        }
    }
}

impl Link {
    fn new(ends: [TcpStream; 2], aimed: bool) -> Self {
        for end in &ends {
            end.set_nonblocking(true).unwrap();
            end.set_nodelay(true).unwrap();
        }
        Self {
            ends,
            lanes: Default::default(),
            stranded: false,
            aimed,
        }
    }

    fn reset(&self) -> Over {
        self.ends.iter().for_each(abort);
        Over
    }

    /// Its own, where that of all is this one.
    fn fate(&self, [up, down]: [Fate; 2]) -> [Fate; 2] {
        if !self.aimed {
            return [Fate::Pass; 2];
        }
        [if self.stranded { Fate::Hold } else { up }, down]
    }

    /// Takes what end `i` sent.
    fn read(&mut self, i: usize, due: Instant, fate: Fate) {
        let lane = &mut self.lanes[i];
        while lane.reads() {
            let mut buffer = [0; 64 << 10];
            let parcel = match self.ends[i].read(&mut buffer) {
                Ok(0) => Parcel::End,
                Ok(length) => Parcel::Bytes(buffer[..length].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => Parcel::Reset,
            };
            lane.take(parcel, due, fate);
        }
    }

    /// Passes on what is due in both directions.
    fn deliver(&mut self, now: Instant, fate: [Fate; 2]) -> Result<(), Over> {
        for (i, fate) in self.fate(fate).into_iter().enumerate() {
            let lane = &mut self.lanes[i];
            lane.blocked = false;
            // Whoever still speaks into a connection with a hole and without a far end learns it.
            if fate == Fate::Pass && lane.broken && lane.ended && !lane.delivered {
                return Err(self.reset());
            }
            while fate == Fate::Pass
                && let Some((due, parcel)) = lane.queue.front_mut()
                && *due <= now
            {
                let to = &mut self.ends[1 - i];
                match parcel {
                    Parcel::Bytes(bytes) => match to.write(bytes) {
                        Ok(written) => {
                            lane.kept -= written;
                            bytes.drain(..written);
                            if !bytes.is_empty() {
                                continue;
                            }
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            lane.blocked = true;
                            break;
                        }
                        // It is gone, as its own lane says to the other end.
                        Err(_) => {
                            lane.swallow();
                            lane.delivered = true;
                            break;
                        }
                    },
                    Parcel::End => {
                        let _ = to.shutdown(Shutdown::Write);
                        lane.delivered = true;
                    }
                    Parcel::Reset => {
                        return Err(self.reset());
                    }
                }
                lane.queue.pop_front();
            }
        }
        match self.lanes.iter().all(|lane| lane.delivered) {
            true => Err(Over),
            false => Ok(()),
        }
    }
}

impl Lane {
    fn reads(&self) -> bool {
        !self.ended && self.kept < KEPT
    }

    /// Loses what is under way, and with it whatever follows.
    fn swallow(&mut self) {
        self.broken |= !self.queue.is_empty();
        self.queue.clear();
        self.kept = 0;
    }

    fn take(&mut self, parcel: Parcel, due: Instant, fate: Fate) {
        self.ended = !matches!(parcel, Parcel::Bytes(_));
        self.broken |= fate == Fate::Drop;
        if self.broken {
            return;
        }
        if let Parcel::Bytes(bytes) = &parcel {
            self.kept += bytes.len();
        }
        // In order, also where the latency was lowered.
        let due = self.queue.back().map_or(due, |&(last, _)| due.max(last));
        self.queue.push_back((due, parcel));
    }
}

/// Whether a connection is one of those that faults befall.
fn aims(processes: Option<&[u32]>, client: &TcpStream) -> bool {
    processes.is_none_or(|processes| sockets::is_of(client, processes))
}

/// Makes the end of this socket a reset.
fn abort(socket: &TcpStream) {
    // It may be gone already.
    let _ = set_socket_linger(socket, Some(Duration::ZERO));
}
