//! What can go wrong, and where.

use crate::stage::Backend;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// None: what is found then is wrong without any.
    Calm,

    // Processes.
    KillClient,
    StopClient,
    BlockThreads,
    Cancel,
    Drain,
    Storm,
    ClientClock,

    // Their connections.
    Reset,
    KillConnections,
    BlackHole,
    LoseRequests,
    LoseReplies,
    Late,
    Slow,
    Lossy,

    // Servers.
    KillServer,
    KillLeader,
    KillAll,
    Empty,
    EmptyMajority,
    StopServer,
    StopLeader,
    FailOver,
    UnreplicatedFailOver,
    CutServers,
    Split,
    MuteLeader,
    ServerClock,
    MajorityClock,
    DiskFull,
    MemoryFull,
    MinorityFull,

    /// Any of those that apply, one after the other.
    Any,
}

impl Fault {
    pub(crate) const ALL: [Self; 34] = [
        Self::Calm,
        Self::KillClient,
        Self::StopClient,
        Self::BlockThreads,
        Self::Cancel,
        Self::Drain,
        Self::Storm,
        Self::ClientClock,
        Self::Reset,
        Self::KillConnections,
        Self::BlackHole,
        Self::LoseRequests,
        Self::LoseReplies,
        Self::Late,
        Self::Slow,
        Self::Lossy,
        Self::KillServer,
        Self::KillLeader,
        Self::KillAll,
        Self::Empty,
        Self::EmptyMajority,
        Self::StopServer,
        Self::StopLeader,
        Self::FailOver,
        Self::UnreplicatedFailOver,
        Self::CutServers,
        Self::Split,
        Self::MuteLeader,
        Self::ServerClock,
        Self::MajorityClock,
        Self::DiskFull,
        Self::MemoryFull,
        Self::MinorityFull,
        Self::Any,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::KillClient => "kill-client",
            Self::StopClient => "stop-client",
            Self::BlockThreads => "block-threads",
            Self::Cancel => "cancel",
            Self::Drain => "drain",
            Self::Storm => "storm",
            Self::ClientClock => "client-clock",
            Self::Reset => "reset",
            Self::KillConnections => "kill-connections",
            Self::BlackHole => "black-hole",
            Self::LoseRequests => "lose-requests",
            Self::LoseReplies => "lose-replies",
            Self::Late => "late",
            Self::Slow => "slow",
            Self::Lossy => "lossy",
            Self::KillServer => "kill-server",
            Self::KillLeader => "kill-leader",
            Self::KillAll => "kill-all",
            Self::Empty => "empty",
            Self::EmptyMajority => "empty-majority",
            Self::StopServer => "stop-server",
            Self::StopLeader => "stop-leader",
            Self::FailOver => "fail-over",
            Self::UnreplicatedFailOver => "unreplicated-fail-over",
            Self::CutServers => "cut-servers",
            Self::Split => "split",
            Self::MuteLeader => "mute-leader",
            Self::ServerClock => "server-clock",
            Self::MajorityClock => "majority-clock",
            Self::DiskFull => "disk-full",
            Self::MemoryFull => "memory-full",
            Self::MinorityFull => "minority-full",
            Self::Any => "any",
        }
    }

    /// What it is, for those who read the table.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::Calm => "nothing",
            Self::KillClient => "a process is killed (SIGKILL) and another one started",
            Self::StopClient => "a process is stopped (SIGSTOP) for longer than the ttl",
            Self::BlockThreads => "handlers block all threads of a process for twice the ttl",
            Self::Cancel => "a third of all requests is dropped at some moment",
            Self::Drain => {
                "a process is asked to end (SIGTERM) under load, and another one started"
            }
            Self::Storm => "10 000 more requests for one key at once",
            Self::ClientClock => {
                "the wall clocks of all processes jump by an hour, ahead and back, and against each other"
            }
            Self::Reset => "a process's connections are reset, again and again",
            Self::KillConnections => "the servers end all connections (`CLIENT KILL`)",
            Self::BlackHole => {
                "a process is cut off in silence, for shorter and longer than the ttl"
            }
            Self::LoseRequests => "only what a process sends is lost",
            Self::LoseReplies => "only what is sent to a process is lost",
            Self::Late => "what a process sent is kept, and arrives after what it sends later",
            Self::Slow => "5 to 60 ms more each way, changing",
            Self::Lossy => {
                "packets lost and sent again: what is sent waits for 50 to 400 ms, again and again"
            }
            Self::KillServer => "a server is killed and started again with its data",
            Self::KillLeader => "the leader is killed, and started again later",
            Self::KillAll => "all servers are killed and started again with their data",
            Self::Empty => "a server is killed and started again without data",
            Self::EmptyMajority => "a majority is killed and started again without data",
            Self::StopServer => "a server is stopped (SIGSTOP) for longer than the ttl",
            Self::StopLeader => "the leader is stopped for longer than the ttl",
            Self::FailOver => "another server is made the leader, as operators do",
            Self::UnreplicatedFailOver => "the leader dies with grants that no replica has",
            Self::CutServers => "the leader is cut off from the other servers",
            Self::Split => "the leader is cut off from the other servers, together with a process",
            Self::MuteLeader => {
                "what the leader sends to the other servers is lost, and not what they send"
            }
            Self::ServerClock => "a server's wall clock jumps by an hour, ahead and back",
            Self::MajorityClock => "the wall clocks of a majority jump by an hour, ahead and back",
            Self::DiskFull => {
                "the servers refuse to write, as their disk is full or their quota used up"
            }
            Self::MemoryFull => "the servers are out of memory, or over their quota",
            Self::MinorityFull => "one of three nodes is out of memory",
            Self::Any => "some of those that apply, one after the other",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Those that `any` may bring: all that apply and need nothing from the start.
    pub(crate) fn any_of(backend: Backend) -> Vec<Self> {
        let mut some = Self::ALL.to_vec();
        some.retain(|fault| {
            let needs = fault.needs_clocks() || *fault == Self::Cancel;
            let all = matches!(fault, Self::Calm | Self::Storm | Self::Any);
            !needs && !all && fault.applies(backend).is_ok()
        });
        some
    }

    /// Whether it befalls one process, so that it matters what that one does.
    pub(crate) fn is_of_one_process(self) -> bool {
        matches!(
            self,
            Self::KillClient
                | Self::StopClient
                | Self::BlockThreads
                | Self::Drain
                | Self::BlackHole
                | Self::LoseRequests
                | Self::LoseReplies
        )
    }

    /// Whether servers are gone for a moment, and may come back without what they knew: whoever holds
    /// then is to go on, or to be told.
    pub(crate) fn may_forget(self) -> bool {
        matches!(self, Self::KillAll | Self::Empty | Self::EmptyMajority)
    }

    /// Whether wall clocks are set, of servers or processes.
    pub(crate) fn needs_clocks(self) -> bool {
        matches!(
            self,
            Self::ClientClock | Self::ServerClock | Self::MajorityClock
        )
    }

    /// Whether it is about processes or their connections alone.
    fn is_of_clients(self) -> bool {
        self < Self::Reset
    }

    /// Whether this backend has what it takes; else, why not.
    pub(crate) fn applies(self, backend: Backend) -> Result<(), &'static str> {
        use Backend as B;
        let alone = "there is one process";
        let one = "there is one server";
        match (self, backend) {
            (Self::Calm, B::Naive | B::NaiveRedLock | B::Barging)
            | (Self::StopClient, B::Naive)
            | (Self::Empty, B::NaiveCounter)
            | (Self::EmptyMajority, B::NaiveRedLock)
            | (Self::UnreplicatedFailOver, B::NaiveSentinel) => Ok(()),
            (_, backend) if backend.is_control() => {
                Err("it is there to be found broken by another")
            }
            (Self::Any, _) => Ok(()),
            (Self::KillClient | Self::Drain, B::Memory) => Err(alone),
            (_, B::Memory) if !self.is_of_clients() => Err("there is no server"),
            (Self::KillConnections, B::Etcd | B::ZooKeeper) => Err("as `reset`"),
            (Self::KillConnections, _) => Ok(()),
            (Self::KillLeader | Self::StopLeader, B::Etcd | B::ZooKeeper) => Ok(()),
            (Self::KillLeader | Self::StopLeader, B::Redis) => Err(one),
            (Self::KillLeader | Self::StopLeader, B::RedLock) => Err("there is no leader"),
            (Self::KillLeader, _) => Err("as `kill-server`"),
            (Self::StopLeader, _) => Err("as `stop-server`"),
            (Self::FailOver, B::Sentinel | B::SentinelAcked | B::Cluster | B::Etcd) => Ok(()),
            (Self::FailOver, B::ZooKeeper) => Err("ZooKeeper has no command for it"),
            (Self::FailOver, _) => Err("there is no leader"),
            (Self::UnreplicatedFailOver, B::Sentinel | B::SentinelAcked | B::Cluster) => Ok(()),
            (Self::UnreplicatedFailOver, _) => Err("there are no replicas that lag"),
            (Self::CutServers | Self::Split | Self::MuteLeader, B::Redis) => Err(one),
            (Self::CutServers | Self::Split | Self::MuteLeader, B::RedLock) => {
                Err("nodes know nothing of each other")
            }
            (Self::CutServers | Self::Split | Self::MuteLeader, _) => Ok(()),
            (Self::KillAll, B::Redis) => Err("as `kill-server`"),
            (Self::Empty, B::Etcd) => Err("a member without data has to be added anew by hand"),
            (Self::Empty, _) => Ok(()),
            (Self::EmptyMajority, B::RedLock) => Ok(()),
            (Self::EmptyMajority, _) => Err("only nodes of RedLock are independent"),
            (Self::ServerClock, B::Redis | B::RedLock | B::ZooKeeper) => Ok(()),
            (Self::ServerClock, B::Etcd) => Err("etcd measures leases by its monotonic clock"),
            (Self::ServerClock, _) => Err("as with one server"),
            (Self::MajorityClock, B::RedLock) => Ok(()),
            (Self::MajorityClock, B::ZooKeeper) => Err("as `server-clock`: no clock matters"),
            (Self::MajorityClock, B::Etcd) => Err("as `server-clock`"),
            (Self::MajorityClock, B::Redis) => Err(one),
            (Self::MajorityClock, _) => Err("as with one server"),
            (Self::DiskFull, B::ZooKeeper) => {
                Err("a server that cannot write ends itself: as `kill-server`")
            }
            (Self::DiskFull, B::Cluster) => {
                Err("a node that cannot write whom it knows ends itself: as `kill-server`")
            }
            (Self::DiskFull, _) => Ok(()),
            (Self::MemoryFull, B::Etcd) => Err("its quota is that of its disk: as `disk-full`"),
            (Self::MemoryFull, B::ZooKeeper) => {
                Err("a server without memory ends itself: as `kill-server`")
            }
            (Self::MemoryFull, _) => Ok(()),
            (Self::MinorityFull, B::RedLock) => Ok(()),
            (Self::MinorityFull, _) => Err("only nodes of RedLock are independent"),
            _ => Ok(()),
        }
    }
}
