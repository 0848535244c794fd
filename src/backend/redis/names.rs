//! What things are called on the server.

use std::{fmt::Write as _, sync::Arc};

use super::slots;
use crate::{
    backend::{AcquireRequest, Mode, Order},
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::OwnerToken,
};

/// How many token counters there are, so that none is left per key.
pub(in crate::backend) const COUNTERS: u32 = 256;

/// How the keys of a lock begin, unless the builder says otherwise.
pub(in crate::backend) const PREFIX: &str = "tower-lock:";

/// The names of one lock. All but the counter hash to the slot of the lock itself.
#[derive(Debug)]
pub(super) struct Names {
    /// The lock: a string, as other clients of `SET key value NX PX` know it.
    pub(super) lock: Arc<str>,
    /// Who waits, by ticket.
    pub(super) queue: Box<str>,
    /// Who reads, by the end of the lease.
    pub(super) readers: Box<str>,
    /// The last token or ticket given, shared with other locks.
    pub(super) counter: Box<str>,
    /// The channel by which this process hears of the lock.
    pub(super) inbox: Arc<str>,
    /// Of a Cluster.
    pub(super) slot: Option<u16>,
}

impl Names {
    pub(super) fn new(prefix: &str, key: &LockKey, inbox: &Arc<str>) -> Self {
        // Joined rather than formatted: this is a third of what an acquire costs on our side.
        let lock = [prefix, key.as_str()].concat();
        let counter = fnv1a(lock.as_bytes()) % COUNTERS;
        // The canonical form of a key has no braces, so these collide with no lock.
        let beside = |part: &str| ["{", &lock, "}:", part].concat().into();
        Self {
            queue: beside("q"),
            readers: beside("r"),
            counter: [prefix, "token:", &counter.to_string()].concat().into(),
            inbox: inbox.clone(),
            slot: None,
            lock: lock.into(),
        }
    }

    /// In a Cluster everything of a lock is in its slot: there is a counter and a channel for each.
    pub(super) fn in_slot(prefix: &str, key: &LockKey, inbox: &str) -> Self {
        let lock = [prefix, key.as_str()].concat();
        let slot = slots::slot(lock.as_bytes());
        let tag = slots::tag(slot);
        Self {
            queue: format!("{{{lock}}}:q").into(),
            readers: format!("{{{lock}}}:r").into(),
            counter: format!("{prefix}token:{{{tag}}}").into(),
            inbox: channel(inbox, slot).into(),
            slot: Some(slot),
            lock: lock.into(),
        }
    }

    /// Says that an owner was undone, where its attempt could not be stopped otherwise.
    pub(super) fn tombstone(&self, owner: &str) -> String {
        format!("{{{}}}:u:{owner}", self.lock)
    }

    /// As the scripts take them.
    pub(super) fn keys(&self) -> [&str; 4] {
        [&self.lock, &self.queue, &self.counter, &self.readers]
    }
}

/// The channel of a process for a slot.
pub(super) fn channel(inbox: &str, slot: u16) -> String {
    format!("{inbox}:{{{}}}", slots::tag(slot))
}

/// Every process must find the same counter, so this never changes.
/// <http://www.isthe.com/chongo/tech/comp/fnv/>
pub(in crate::backend) fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Whether keys may begin like this: braces would choose the slot, the rest would be ambiguous.
pub(in crate::backend) fn check_prefix(prefix: &str) -> Result<(), BackendError> {
    let good = prefix
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}'));
    if good && prefix.len() <= 128 {
        return Ok(());
    }
    Err(BackendError::new(
        BackendErrorKind::Misconfigured,
        "the prefix of keys is not usable: up to 128 visible ASCII characters except `{` and `}` are",
    ))
}

fn push_hex(text: &mut String, owner: &OwnerToken) {
    let _ = write!(text, "{:032x}", u128::from_be_bytes(*owner.as_bytes()));
}

pub(in crate::backend) fn unhex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 {
        return None;
    }
    Some(u128::from_str_radix(text, 16).ok()?.to_be_bytes())
}

/// One owner's wish in the words of the scripts.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    /// The owner and the inbox that it hears of.
    pub(super) who: String,
    pub(super) mode: &'static str,
    pub(super) unfair: bool,
    /// Milliseconds.
    pub(super) ttl: u64,
    pub(super) tokens: u32,
}

impl Words {
    pub(super) fn new(request: &AcquireRequest, inbox: &str, ttl: u64) -> Self {
        let mut who = String::with_capacity(33 + inbox.len());
        push_hex(&mut who, &request.owner);
        who.push(' ');
        who.push_str(inbox);
        Self {
            who,
            mode: match request.mode {
                Mode::Exclusive => "x",
                Mode::Shared => "s",
            },
            unfair: request.order == Order::Unfair,
            ttl,
            // Readers share a token, so there is no range to reserve.
            tokens: match request.mode {
                Mode::Exclusive => request.tokens.max(1),
                Mode::Shared => 1,
            },
        }
    }

    /// The owner alone.
    pub(super) fn owner(&self) -> &str {
        self.who.split(' ').next().unwrap_or_default()
    }

    /// Its entry in the queue.
    pub(super) fn entry(&self) -> String {
        let Self {
            who,
            mode,
            ttl,
            tokens,
            ..
        } = self;
        format!("{who} {mode} {ttl} {tokens}")
    }

    /// What stands in the lock while this owner holds it alone.
    pub(super) fn value(&self, token: u64) -> String {
        ["1 ", &self.who, " ", &token.to_string()].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Others rely on these names: clients of other languages, operators, other versions of us.
    #[test]
    fn names_are_as_documented() {
        let names = Names::new("shop:", &LockKey::new("order", 7), &"i".into());
        assert_eq!(&*names.lock, "shop:order:1.7;");
        assert_eq!(&*names.queue, "{shop:order:1.7;}:q");
        assert_eq!(&*names.readers, "{shop:order:1.7;}:r");
        assert_eq!(&*names.counter, "shop:token:242");
        assert_eq!(names.tombstone("00ff"), "{shop:order:1.7;}:u:00ff");
        let in_slot = Names::in_slot("shop:", &LockKey::new("order", 7), "shop:inbox:1");
        assert_eq!(in_slot.keys()[..2], names.keys()[..2]);
        let slot = in_slot.slot.unwrap();
        let tag = slots::tag(slot);
        assert_eq!(&*in_slot.counter, format!("shop:token:{{{tag}}}"));
        assert_eq!(&*in_slot.inbox, format!("shop:inbox:1:{{{tag}}}"));
        for name in in_slot.keys().iter().copied().chain([&*in_slot.inbox]) {
            assert_eq!(slots::slot(name.as_bytes()), slot, "{name}");
        }
        assert_eq!(slots::slot(in_slot.tombstone("00ff").as_bytes()), slot);
    }

    #[test]
    fn counters_are_few_and_all_used() {
        let counters: std::collections::HashSet<_> = (0..10_000)
            .map(|n| Names::new(PREFIX, &LockKey::new("order", n), &"i".into()).counter)
            .collect();
        assert_eq!(counters.len(), COUNTERS as usize);
    }

    #[test]
    fn prefixes_that_could_move_or_confuse_keys_are_refused() {
        for good in ["", "tower-lock:", "shop/lock.", &"x".repeat(128)] {
            assert!(check_prefix(good).is_ok(), "{good}");
        }
        for bad in ["{shop}:", "a b", "é", "a\n", &"x".repeat(129)] {
            let error = check_prefix(bad).expect_err("a bad prefix").to_string();
            assert!(error.contains("128 visible ASCII"), "{error}");
        }
    }

    #[test]
    fn owners_go_to_hex_and_back() {
        let owner = OwnerToken::from_bytes([1; 16]);
        let mut text = String::new();
        push_hex(&mut text, &owner);
        assert_eq!(text, "01".repeat(16));
        assert_eq!(unhex(&text).as_ref(), Some(owner.as_bytes()));
        for bad in ["", "00", &"g".repeat(32), &"+".repeat(32), &"0".repeat(33)] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_wish_in_words() {
        let request = AcquireRequest::new(LockKey::new("order", 7), Duration::from_secs(30))
            .with_mode(Mode::Shared)
            .with_tokens(0);
        let words = Words::new(&request, "shop:inbox:1", 30_000);
        let owner = words.owner();
        assert_eq!(words.who, format!("{owner} shop:inbox:1"));
        assert_eq!(words.entry(), format!("{owner} shop:inbox:1 s 30000 1"));
        assert_eq!(words.value(17), format!("1 {owner} shop:inbox:1 17"));
    }
}
