//! Ports for servers, each of which one server gets.
//!
//! A server binds its port a second after it was chosen, and lets go of it while it is down. So the
//! test processes that run beside each other choose from blocks of their own: who has bound the
//! first port of a block has the block, until its process ends.
//!
//! All are below the range from which outgoing connections get theirs (32768 and up on Linux):
//! while a server is down, a client that tries to reach it cannot end up connected to itself.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// From the port of a node of Redis' Cluster to that of its bus.
pub(super) const BUS: u16 = 10_000;

const FIRST: u16 = 12_000;
/// So many ports are a block, and as many that are higher by [`BUS`].
const SIZE: u16 = 100;
const BLOCKS: u16 = BUS / SIZE;
/// So many for a process: when all their ports have been given, the first servers that got some
/// have ended long ago.
const ENOUGH: usize = 20;

/// A loopback port that is free, and that nobody else of us gets.
///
/// A program that is none of ours may take it first, so its user tries again.
pub fn free_port() -> u16 {
    ours().port()
}

/// The same for a node that has a bus.
pub(super) fn free_port_with_bus() -> u16 {
    ours().pair()
}

fn ours() -> MutexGuard<'static, Ports> {
    static OURS: Mutex<Ports> = Mutex::new(Ports::of_blocks(ENOUGH));
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ports of one process.
#[derive(Debug)]
pub struct Ports {
    most: usize,
    /// The blocks that are ours, by their first ports.
    blocks: Vec<(u16, TcpListener)>,
    /// Not given away yet, each with that of its bus.
    pairs: Vec<u16>,
    /// Where one of a pair was enough.
    spare: Vec<u16>,
}

impl Ports {
    /// Of so many blocks at most, then of these again.
    pub const fn of_blocks(most: usize) -> Self {
        Self {
            most,
            blocks: Vec::new(),
            pairs: Vec::new(),
            spare: Vec::new(),
        }
    }

    pub fn port(&mut self) -> u16 {
        while let Some(port) = self.spare.pop() {
            if is_free(port) {
                return port;
            }
        }
        let port = self.pair();
        self.spare.push(port + BUS);
        port
    }

    fn pair(&mut self) -> u16 {
        for _ in 0..2 * self.most * usize::from(SIZE) {
            match self.pairs.pop() {
                Some(port) if is_free(port) && is_free(port + BUS) => return port,
                Some(_) => {}
                None => self.replenish(),
            }
        }
        panic!("all ports of this process are in use");
    }

    /// With one more block, or with all of ours once more.
    fn replenish(&mut self) {
        let begin = fastrand::u16(..BLOCKS);
        let firsts = (0..BLOCKS).map(|n| FIRST + (begin + n) % BLOCKS * SIZE);
        let mut firsts = firsts.filter(|_| self.blocks.len() < self.most);
        let ports = |first: u16| first + 1..first + SIZE;
        match firsts.find_map(|first| Some((first, listener(first)?))) {
            Some(block) => {
                self.pairs.extend(ports(block.0));
                self.blocks.push(block);
            }
            None => {
                let blocks = self.blocks.iter();
                self.pairs.extend(blocks.flat_map(|block| ports(block.0)));
            }
        }
        assert!(
            !self.pairs.is_empty(),
            "other test processes have all {BLOCKS} blocks of ports"
        );
    }
}

fn is_free(port: u16) -> bool {
    listener(port).is_some()
}

/// On all addresses, as some servers listen on all.
fn listener(port: u16) -> Option<TcpListener> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok()
}
