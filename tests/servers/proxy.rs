//! A TCP proxy with faults, in this process.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    sync::{
        Mutex,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use self::pump::Pump;

#[path = "proxy_pump.rs"]
mod pump;

/// Stands between a client and a server, and does to their bytes what a network does.
///
/// It runs on a thread of its own, so that blocked runtimes do not stop it, without async timers,
/// whose millisecond is too coarse. Up is from client to server. Every method returns when what it
/// asks for is in force.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    orders: Mutex<Sender<(Order, Sender<usize>)>>,
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// What becomes of the bytes of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Pass,
    /// Swallowed. A connection that lost some is never mended.
    Drop,
    /// Kept until the network heals, as those that TCP sends again.
    Hold,
}

/// What the proxy's thread is asked to do.
#[derive(Clone, Debug)]
enum Order {
    Aim(Option<Vec<u32>>),
    Latency([Duration; 2]),
    Fate([Option<Fate>; 2]),
    Strand,
    Refuse,
    Reset,
    Close,
    Heal,
    Mend,
    Count,
    Broken,
    Total,
    Stop,
}

impl TcpProxy {
    /// A proxy on a free loopback port in front of `target`.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (waker, wake) = UnixStream::pair().unwrap();
        let (orders, received) = channel();
        let mut pump = Pump::new(listener, target, wake, received);
        let thread = thread::Builder::new()
            .name("tcp-proxy".to_owned())
            .spawn(move || pump.run())
            .unwrap();
        Self {
            address,
            orders: Mutex::new(orders),
            waker,
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a Redis URL.
    pub fn redis_url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on what is asked for befalls the connections of these processes alone, and passes by
    /// all others, until it is aimed at [everybody](Self::aim_at_all) again. For servers that say
    /// themselves where they are, so that everybody comes by the same way.
    ///
    /// A process is known by its number: one that is started later is another.
    pub fn aim_at(&self, processes: &[u32]) {
        self.order(Order::Aim(Some(processes.to_vec())));
    }

    /// As at the start.
    pub fn aim_at_all(&self) {
        self.order(Order::Aim(None));
    }

    /// Delays what is read from now on, in order; exact to some 10 µs on an idle machine.
    pub fn set_latency(&self, up: Duration, down: Duration) {
        self.order(Order::Latency([up, down]));
    }

    /// Swallows requests in silence.
    pub fn drop_up(&self) {
        self.order(Order::Fate([Some(Fate::Drop), None]));
    }

    /// Swallows replies in silence: what was asked is done, and nobody hears of it.
    pub fn drop_down(&self) {
        self.order(Order::Fate([None, Some(Fate::Drop)]));
    }

    /// Swallows everything in silence: no reset, no end.
    pub fn black_hole(&self) {
        self.order(Order::Fate([Some(Fate::Drop); 2]));
    }

    /// Keeps requests until [`heal`](Self::heal), also when their connection is closed meanwhile:
    /// they reach the server late.
    pub fn hold_up(&self) {
        self.order(Order::Fate([Some(Fate::Hold), None]));
    }

    /// Keeps replies until [`heal`](Self::heal).
    pub fn hold_down(&self) {
        self.order(Order::Fate([None, Some(Fate::Hold)]));
    }

    /// Keeps the requests of the connections that there are now until [`heal`](Self::heal); new
    /// ones pass. What a client sent and gave up arrives after what it sent later elsewhere.
    pub fn strand(&self) {
        self.order(Order::Strand);
    }

    /// Resets new connections at once.
    pub fn refuse(&self) {
        self.order(Order::Refuse);
    }

    /// Resets every connection, both ends, now.
    pub fn reset(&self) {
        self.order(Order::Reset);
    }

    /// Ends every connection, both ends, now.
    pub fn close(&self) {
        self.order(Order::Close);
    }

    /// Ends every fault and latency: what was held is delivered. A connection that lost bytes
    /// stays silent; if one of its ends is closed, the other is reset.
    pub fn heal(&self) {
        self.order(Order::Heal);
    }

    /// Lets nothing pass between these processes and the server, in silence.
    pub fn cut(&self, processes: &[u32]) {
        self.aim_at(processes);
        self.black_hole();
    }

    /// Lets nothing pass from these processes to the server, in silence.
    pub fn cut_up(&self, processes: &[u32]) {
        self.aim_at(processes);
        self.drop_up();
    }

    /// Lets nothing pass from the server to these processes, in silence.
    pub fn cut_down(&self, processes: &[u32]) {
        self.aim_at(processes);
        self.drop_down();
    }

    /// Ends every fault, for everybody. Connections that lost something are reset: they would stay
    /// silent.
    pub fn mend(&self) {
        self.order(Order::Mend);
    }

    /// How many connections are open, at either end.
    pub fn connections(&self) -> usize {
        self.order(Order::Count)
    }

    /// How many directions of open connections have lost something.
    pub fn broken(&self) -> usize {
        self.order(Order::Broken)
    }

    /// How many connections were ever accepted, refused ones included.
    pub fn accepted(&self) -> usize {
        self.order(Order::Total)
    }

    fn order(&self, order: Order) -> usize {
        let (reply, done) = channel();
        let sent = self.orders.lock().unwrap().send((order, reply));
        sent.expect("the proxy runs");
        std::io::Write::write_all(&mut &self.waker, &[0]).expect("the proxy runs");
        done.recv().expect("the proxy runs")
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        // A proxy that panicked has said so.
        if let Some(thread) = self.thread.take()
            && !thread.is_finished()
        {
            self.order(Order::Stop);
            let _ = thread.join();
        }
    }
}
