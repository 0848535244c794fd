//! Which server of a cluster has which slots, as far as is known, and what servers say when it is
//! not so.

use std::{fmt, sync::Arc};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::{
    answer::{int, list},
    connection::text,
    slots::SLOTS,
    trouble::Trouble,
};

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    /// A name or an IP address, the latter without brackets.
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl Address {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// One that a server gave, which may leave out the host where that is its own: there it is
    /// that of the server that was asked. `None` if the server does not know it.
    fn given(host: &str, port: u16, asked: &Self) -> Option<Self> {
        let host = match host {
            "?" => return None,
            "" | "0.0.0.0" | "::" => asked.host.clone(),
            host => host.into(),
        };
        Some(Self { host, port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}"),
            false => write!(f, "{host}:{port}"),
        }
    }
}

/// The masters of the slots.
#[derive(Clone, Debug)]
pub(super) struct SlotMap {
    masters: Vec<Address>,
    /// By slot, the index of its master.
    slots: Box<[u16]>,
}

/// The index of no master.
const NONE: u16 = u16::MAX;

impl SlotMap {
    /// From what the server at `asked` answers to `CLUSTER SLOTS`, with ports of the kind (TLS or
    /// not) over which it was asked.
    pub(super) fn read(answer: &Value, asked: &Address) -> Result<Self, Trouble> {
        let mut this = Self {
            masters: Vec::new(),
            slots: vec![NONE; usize::from(SLOTS)].into(),
        };
        for range in list(answer)? {
            let [first, last, master, ..] = list(range)? else {
                return Err(Trouble::strange());
            };
            let (first, last) = (number(first)?, number(last)?);
            let [host, port, ..] = list(master)? else {
                return Err(Trouble::strange());
            };
            let host = match host {
                Value::Nil => "",
                host => text(host).ok_or_else(Trouble::strange)?,
            };
            let slots = this.slots.get_mut(first.into()..=last.into());
            let slots = slots.ok_or_else(Trouble::strange)?;
            // Nobody can be sent to one whose name is not known.
            if let Some(master) = Address::given(host, number(port)?, asked) {
                slots.fill(index_of(&mut this.masters, &master));
            }
        }
        Ok(this)
    }

    /// Every server that has slots, and those to which some were [`moved`](Self::moved). Their
    /// indexes are of this map alone.
    pub(super) fn masters(&self) -> &[Address] {
        &self.masters
    }

    /// The index of the master of a slot, if it has one.
    pub(super) fn master_of(&self, slot: u16) -> Option<usize> {
        let index = self.slots[usize::from(slot)];
        (index != NONE).then_some(index.into())
    }

    /// Where to ask for a slot.
    pub(super) fn address_of(&self, slot: u16) -> Option<&Address> {
        self.master_of(slot).map(|index| &self.masters[index])
    }

    /// Whether every slot has a master.
    pub(super) fn is_complete(&self) -> bool {
        !self.slots.contains(&NONE)
    }

    /// Learns that a slot is at another server, and returns the index of that.
    pub(super) fn moved(&mut self, slot: u16, to: &Address) -> usize {
        let index = index_of(&mut self.masters, to);
        self.slots[usize::from(slot)] = index;
        index.into()
    }
}

/// The index of an address, which is added where it is new.
fn index_of(masters: &mut Vec<Address>, address: &Address) -> u16 {
    let known = masters.iter().position(|known| known == address);
    let index = known.unwrap_or_else(|| {
        masters.push(address.clone());
        masters.len() - 1
    });
    // Each has at least one slot, or replaced one that had.
    index.try_into().unwrap_or(NONE)
}

fn number(value: &Value) -> Result<u16, Trouble> {
    int(value)?.try_into().map_err(|_| Trouble::strange())
}

/// Why a server of a cluster did not do what it was asked for. It did nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is at another server, from now on.
    Moved { slot: u16, to: Address },
    /// The slot is on its way to another server, and what was asked for is not here: it is to be
    /// asked for there, right after `ASKING`. The next time is to begin here again.
    Ask { slot: u16, to: Address },
    /// The slot is on its way, and some of the keys are here and some are there.
    TryAgain,
    /// Nobody serves the slot, or this server does not know enough of the others.
    ClusterDown,
}

impl Redirect {
    /// What an error of the server at `asked` says; `None` if it is about something else, or sends
    /// to a server whose name nobody knows.
    pub(super) fn of(error: &RedisError, asked: &Address) -> Option<Self> {
        let ErrorKind::Server(kind) = error.kind() else {
            return None;
        };
        match kind {
            ServerErrorKind::TryAgain => return Some(Self::TryAgain),
            ServerErrorKind::ClusterDown => return Some(Self::ClusterDown),
            ServerErrorKind::Moved | ServerErrorKind::Ask => {}
            _ => return None,
        }
        let (address, slot) = error.redirect_node()?;
        // IPv6 addresses come without brackets.
        let (host, port) = address.rsplit_once(':')?;
        let to = Address::given(host, port.parse().ok()?, asked)?;
        if slot >= SLOTS {
            return None;
        }
        Some(match kind {
            ServerErrorKind::Moved => Self::Moved { slot, to },
            _ => Self::Ask { slot, to },
        })
    }
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn asked() -> Address {
        Address::new("asked", 1)
    }

    fn array(items: Vec<Value>) -> Value {
        Value::Array(items)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    /// A range as Redis 7 gives it: master, one replica.
    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = |host, port| {
            let metadata = Value::Map(vec![(bulk("hostname"), bulk("ignored"))]);
            array(vec![host, Value::Int(port), bulk("id"), metadata])
        };
        let (first, last) = (Value::Int(first), Value::Int(last));
        array(vec![
            first,
            last,
            node(host, port),
            node(bulk("replica"), 9),
        ])
    }

    #[test]
    fn a_map_says_where_slots_are() {
        let answer = array(vec![
            range(0, 5_460, bulk("10.0.0.1"), 7_000),
            range(5_461, 10_922, bulk("::1"), 7_001),
            range(10_923, 16_383, bulk("10.0.0.1"), 7_000),
        ]);
        let mut map = SlotMap::read(&answer, &asked()).unwrap();
        let (one, two) = (Address::new("10.0.0.1", 7_000), Address::new("::1", 7_001));
        assert!(map.is_complete());
        assert_eq!(map.masters(), [one.clone(), two.clone()]);
        assert_eq!(
            [0, 5_460, 5_461, 16_383].map(|s| map.master_of(s)),
            [0, 0, 1, 0].map(Some)
        );
        assert_eq!(two.to_string(), "[::1]:7001");
        assert_eq!(one.to_string(), "10.0.0.1:7000");

        assert_eq!(map.moved(5_460, &two), 1);
        assert_eq!(map.moved(5_459, &asked()), 2);
        assert_eq!(
            [5_458, 5_459, 5_460].map(|s| map.master_of(s)),
            [0, 2, 1].map(Some)
        );
        assert_eq!(map.address_of(5_459), Some(&asked()));
    }

    #[test]
    fn a_host_that_is_left_out_is_the_one_that_was_asked() {
        for host in [Value::Nil, bulk(""), bulk("0.0.0.0"), bulk("::")] {
            let map = SlotMap::read(&array(vec![range(1, 1, host, 7)]), &asked()).unwrap();
            assert_eq!(map.address_of(1), Some(&Address::new("asked", 7)));
            assert_eq!(map.master_of(0), None);
            assert!(!map.is_complete());
        }
        let unknown = array(vec![range(0, 16_383, bulk("?"), 7)]);
        let map = SlotMap::read(&unknown, &asked()).unwrap();
        assert_eq!((map.address_of(0), map.masters()), (None, &[][..]));
        let map = SlotMap::read(&array(vec![]), &asked()).unwrap();
        assert_eq!(map.master_of(16_383), None);
    }

    #[test]
    fn other_answers_are_no_maps() {
        let host = || bulk("h");
        for answer in [
            Value::Nil,
            array(vec![Value::Nil]),
            array(vec![array(vec![Value::Int(0), Value::Int(1)])]),
            array(vec![array(vec![
                Value::Int(0),
                Value::Int(1),
                array(vec![host()]),
            ])]),
            array(vec![range(0, 16_384, host(), 7)]),
            array(vec![range(2, 0, host(), 7)]),
            array(vec![range(-1, 0, host(), 7)]),
            array(vec![range(0, 1, host(), 65_536)]),
            array(vec![range(0, 1, Value::Int(1), 7)]),
        ] {
            assert!(SlotMap::read(&answer, &asked()).is_err(), "{answer:?}");
        }
    }

    fn redirect(line: &str) -> Option<Redirect> {
        let answer = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        Redirect::of(&answer.extract_error().unwrap_err(), &asked())
    }

    #[test]
    fn redirections_are_read() {
        let to = Address::new("127.0.0.1", 6_381);
        let slot = 3_999;
        assert_eq!(
            redirect("MOVED 3999 127.0.0.1:6381"),
            Some(Redirect::Moved {
                slot,
                to: to.clone()
            }),
        );
        assert_eq!(
            redirect("ASK 3999 127.0.0.1:6381"),
            Some(Redirect::Ask { slot, to })
        );
        let to = Address::new("::1", 6_381);
        assert_eq!(
            redirect("MOVED 3999 ::1:6381"),
            Some(Redirect::Moved { slot, to })
        );
        let to = Address::new("asked", 6_381);
        assert_eq!(
            redirect("MOVED 3999 :6381"),
            Some(Redirect::Moved { slot, to })
        );
        let waits = "TRYAGAIN Multiple keys request during rehashing of slot";
        assert_eq!(redirect(waits), Some(Redirect::TryAgain));
        for down in [
            "CLUSTERDOWN The cluster is down",
            "CLUSTERDOWN Hash slot not served",
        ] {
            assert_eq!(redirect(down), Some(Redirect::ClusterDown));
        }
    }

    #[test]
    fn other_errors_are_no_redirections() {
        for line in [
            "ERR no",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "MOVED 3999 ?:6381",
            "MOVED 16384 a:6381",
            "MOVED 3999 a",
            "MOVED",
            "READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(redirect(line), None, "{line}");
        }
        let closed = RedisError::from(std::io::Error::other("closed"));
        assert_eq!(Redirect::of(&closed, &asked()), None);
    }
}
