//! Which node has which slot, as the nodes say.

use std::{collections::HashMap, ops::RangeInclusive};

use redis::Value;

use super::super::{
    answer,
    connection::text,
    slots::SLOTS,
    trouble::Trouble,
    url::{self, Address},
};

/// What one node says of some slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) master: Address,
    /// Of the master's configuration: of two claims the one with the higher is newer.
    pub(super) epoch: u64,
}

/// Reads the answers to `CLUSTER SLOTS` and `CLUSTER NODES` of the node with this address.
pub(super) fn read(asked: &Address, slots: &Value, nodes: &Value) -> Result<Vec<Claim>, Trouble> {
    let epochs = epochs(answer::string(nodes)?);
    let mut claims = Vec::new();
    for range in answer::list(slots)? {
        let [first, last, master, ..] = answer::list(range)? else {
            return Err(Trouble::strange());
        };
        let [host, port, id, ..] = answer::list(master)? else {
            return Err(Trouble::strange());
        };
        let number = |value| {
            answer::int(value).and_then(|n| u16::try_from(n).map_err(|_| Trouble::strange()))
        };
        let (first, last) = (number(first)?, number(last)?);
        if last >= SLOTS {
            return Err(Trouble::strange());
        }
        let epoch = epochs.get(answer::string(id)?).copied();
        claims.push(Claim {
            slots: first..=last,
            master: Address {
                // A node that does not know how it is called is where it was asked.
                host: match text(host) {
                    None | Some("" | "0.0.0.0" | "::") => asked.host.clone(),
                    // Nobody knows: the node is to be met another way.
                    Some("?") => continue,
                    Some(host) => host.to_owned(),
                },
                port: number(port)?,
            },
            epoch: epoch.unwrap_or_default(),
        });
    }
    Ok(claims)
}

/// The configuration epoch of each node, by its id: the first and the seventh word of its line.
fn epochs(nodes: &str) -> HashMap<&str, u64> {
    let read = |line| {
        let mut words = str::split(line, ' ');
        Some((words.next()?, words.nth(5)?.parse().ok()?))
    };
    nodes.lines().filter_map(read).collect()
}

/// The master of each slot and its epoch, as the newest claim has it.
pub(super) fn masters(claims: &[Claim]) -> Vec<Option<(u64, &Address)>> {
    let mut newest = vec![None::<(u64, &Address)>; usize::from(SLOTS)];
    for claim in claims {
        for slot in claim.slots.clone() {
            let known = &mut newest[usize::from(slot)];
            if known.is_none_or(|(epoch, _)| epoch < claim.epoch) {
                *known = Some((claim.epoch, &claim.master));
            }
        }
    }
    newest
}

/// What a redirection names, if it says where: `host:port`, with an IPv6 address in brackets or
/// bare.
pub(in super::super) fn redirected(to: &str) -> Option<Address> {
    let (host, port) = to.rsplit_once(':')?;
    if host.contains(':') && !host.starts_with('[') {
        return url::address(&format!("[{host}]:{port}"), 0);
    }
    url::address(to, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(first: i64, last: i64, host: Value, port: i64, id: &str) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), bulk(id), Value::Array(vec![])]);
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            node.clone(),
            node,
        ])
    }

    #[test]
    fn claims_are_read_with_their_epochs() {
        let nodes = "aa 10.0.0.1:1@2 myself,master - 0 0 7 connected 0-5\n\
                     bb 10.0.0.2:1@2,name master - 0 0 9 connected 6-9 [6->-aa]\n";
        let slots = Value::Array(vec![
            range(0, 5, bulk(""), 1, "aa"),
            range(6, 8, bulk("10.0.0.2"), 1, "bb"),
            range(9, 9, Value::Nil, 3, "cc"),
            range(10, 10, bulk("?"), 3, "cc"),
        ]);
        let claims = read(&at("seed", 6379), &slots, &bulk(nodes)).unwrap();
        let read: Vec<_> = claims
            .iter()
            .map(|c| (c.slots.clone(), c.master.host.as_str(), c.epoch))
            .collect();
        assert_eq!(
            read,
            [
                (0..=5, "seed", 7),
                (6..=8, "10.0.0.2", 9),
                (9..=9, "seed", 0)
            ]
        );
        for strange in [Value::Nil, Value::Array(vec![Value::Int(1)])] {
            assert!(super::read(&at("seed", 1), &strange, &bulk(nodes)).is_err());
        }
        let beyond = Value::Array(vec![range(0, 16_384, bulk("a"), 1, "aa")]);
        assert!(super::read(&at("seed", 1), &beyond, &bulk(nodes)).is_err());
    }

    #[test]
    fn the_newest_claim_counts() {
        let claim = |slots, host, epoch| Claim {
            slots,
            master: at(host, 1),
            epoch,
        };
        let claims = [
            claim(0..=10, "old", 1),
            claim(5..=5, "new", 2),
            claim(5..=10, "old", 1),
        ];
        let masters = masters(&claims);
        let of = |slot: usize| masters[slot].map(|(epoch, master)| (epoch, master.host.as_str()));
        assert_eq!(of(4), Some((1, "old")));
        assert_eq!(of(5), Some((2, "new")));
        assert_eq!(of(6), Some((1, "old")));
        assert_eq!(of(11), None);
    }

    #[test]
    fn redirections_name_a_node_or_nothing() {
        assert_eq!(redirected("127.0.0.1:7000"), Some(at("127.0.0.1", 7000)));
        assert_eq!(redirected("::1:7000"), Some(at("::1", 7000)));
        assert_eq!(redirected("[::1]:7000"), Some(at("::1", 7000)));
        for nowhere in [":7000", "?:7000", "host", "host:0", "host:x"] {
            assert_eq!(redirected(nowhere), None, "{nowhere}");
        }
    }
}
