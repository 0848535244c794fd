//! The scripts, each a moment of the server in which nobody else acts.
//!
//! # Invariants
//!
//! `K` is the lock, `Q` its queue, `R` its readers, `F` the counter, `D` its record.
//!
//! 1. *One truth.* Who holds is what `K` says: an owner of ours, a marker while `R` has readers, or
//!    a value that is not ours. Every grant is made where the same script found `K` absent, or
//!    found readers and grants to one, or takes `K` from the owner that gives it back. So there is
//!    one exclusive holder, or readers, never both, others' `SET NX` included (must 1).
//! 2. *The head is next.* A script that leaves `K` absent has served the queue, so `K` is absent
//!    under a queue only until an expiry is noticed, and then `look` serves it, on behalf of every
//!    process that waits. A newcomer that finds `K` absent serves the head first (must 5).
//!    With `Unfair` the head is woken and leaves the queue; whoever comes first has the key.
//! 3. *An offer is a short lease.* It stands in `K` (or `R`) for at most 1 s with the waiter's
//!    entry marked; its confirmation takes the entry out. A marked entry at the head of a key that
//!    nobody holds is of a process that hangs: all its entries go, so it costs one offer (must 4).
//! 4. *Tokens grow in the order of grants*, since a token is drawn in the script of its grant,
//!    above the counter and the clock, and the counter is written before the grant. An offer that
//!    lapses uses one up. Readers that hold together share one (must 3).
//! 5. *Every key has an end*: `K` its lease, `Q` 15 s since anybody asked, `R` the last reader's,
//!    `F` a day, after which the clock has passed it (must 9).
//! 6. *Undo is final.* `abandon` leaves neither entry, offer nor lease of its owner. It runs after
//!    the attempt: on its connection, or when that one was ended at the server, or it leaves a
//!    tombstone that the attempt looks for (must 6).
//!
//! Of records, which stand in `D`:
//!
//! 7. *A record changes in the moment of its lock.* `open` writes one where it grants, or takes the
//!    offer of, `K`; `save` where it found `K` absent or the saver's. No other script of a grant
//!    names `D`, so nobody is granted the key by `open` under a result that is for it (12): the
//!    script that grants has just looked (R4, R5).
//! 8. *The token in `D` never falls* while `D` lives: a grant writes the token that it has drawn,
//!    which is higher than all before (4), and `save` refuses one that is lower than what it finds.
//!    A grant that replaces an orphan or a result and is then forgotten leaves its token; one that is
//!    undone was never heard of: it puts an orphan back, and of a result the token.
//! 9. *A stale holder writes neither before nor over its successor.* Let A's lease end, and B be
//!    granted the key by `open`, so that B's token is higher (4). From the offer or grant until B
//!    gives the key back, or its own lease ends, `K` names B, so A's `save` finds another there and
//!    is refused. From B's grant on, `D` has B's token: as an open record, as its result, or as what
//!    it leaves when it forgets. So A's `save` is refused for its token (8) for as long as that
//!    stands, which is the ttl that B gave it. Where B opened nothing (`acquire`, or no opening),
//!    A's is refused while B holds, and after that if B saved; if B did not, there is nothing of B to
//!    write before or over (R2, R3).
//! 10. *An open record stands for a holder that may have begun.* It names its owner; `withdraw`,
//!     the undo of a grant that was not returned to its caller, takes out that owner's and no other,
//!     in the moment in which it takes the lock. A lease that was returned is released without it
//!     (R8, R12).
//! 11. *A result wakes all who wait for it, once.* The `save` that closes takes their entries out of
//!     `Q` in the moment in which the result is there, and tells their processes. Who asks later
//!     finds the result. A message that is lost delays until the patrol finds the queue empty (4).
//! 12. *A result for those who wait is theirs by its token.* Whoever has to wait is told the token
//!     that is held then, or its ticket, and a result of that token or a higher one was saved after it began to
//!     wait (4): by whom it waited for, or a later holder. A grant that takes the place of a result
//!     keeps it inside its own record, for those who were woken by the `save` and have not looked;
//!     a newcomer waits for a higher token, so it takes neither for its own (R4, R5).

use std::sync::LazyLock;

use redis::Cmd;

use super::names::Names;

/// A script and the digest by which the server knows it.
#[derive(Debug)]
pub(in crate::backend) struct Script {
    code: String,
    digest: String,
}

/// These stand in the scripts where what they name is needed, and not before: what a script
/// defines, it defines anew in every call.
const PARTS: [(&str, &str); 6] = [
    ("--- abandon\n", include_str!("scripts/abandon.lua")),
    ("--- ask\n", include_str!("scripts/ask.lua")),
    ("--- record\n", include_str!("scripts/record.lua")),
    ("--- loaders\n", include_str!("scripts/loaders.lua")),
    ("--- draw\n", include_str!("scripts/draw.lua")),
    ("--- lib\n", include_str!("scripts/lib.lua")),
];

impl Script {
    pub(in crate::backend) fn new(code: &str) -> Self {
        let code = PARTS.iter().fold(code.to_owned(), |code, (name, part)| {
            code.replace(name, part)
        });
        let digest = redis::Script::new(&code).get_hash().to_owned();
        Self { code, digest }
    }

    /// Has the server know it.
    #[cfg(feature = "redlock")]
    pub(in crate::backend) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(&self.code);
        cmd
    }

    /// A call by digest; `by_code` brings the script along for a server that has forgotten it.
    pub(in crate::backend) fn call(&self, by_code: bool, keys: &[&str]) -> Cmd {
        let mut cmd = Cmd::with_capacity(16, 512);
        if by_code {
            cmd.arg("EVAL").arg(&self.code);
        } else {
            cmd.arg("EVALSHA").arg(&self.digest);
        }
        cmd.arg(keys.len());
        for key in keys {
            cmd.arg(*key);
        }
        cmd
    }

    /// The same with the record beside the lock.
    pub(super) fn call_record(
        &self,
        by_code: bool,
        names: &Names,
        record: &str,
        tombstone: Option<&str>,
    ) -> Cmd {
        let [lock, queue, counter, readers] = names.keys();
        let keys = [lock, queue, counter, readers, record];
        match tombstone {
            None => self.call(by_code, &keys),
            Some(tombstone) => {
                let [lock, queue, counter, readers, record] = keys;
                self.call(by_code, &[lock, queue, counter, readers, record, tombstone])
            }
        }
    }

    /// The keys of a lock and, where its attempts must look for one, the tombstone of an owner.
    pub(super) fn call_lock(&self, by_code: bool, names: &Names, tombstone: Option<&str>) -> Cmd {
        let [lock, queue, counter, readers] = names.keys();
        match tombstone {
            None => self.call(by_code, &names.keys()),
            Some(tombstone) => self.call(by_code, &[lock, queue, counter, readers, tombstone]),
        }
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("scripts/", $file, ".lua"))));)*
    };
}

scripts! {
    STEP = "step";
    CONFIRM = "confirm";
    RENEW = "renew";
    RENEW_SHARED = "renew_shared";
    RELEASE = "release";
    ABANDON = "abandon";
    OPEN = "open";
    SAVE = "save";
    WITHDRAW = "withdraw";
    LOOK = "look";
    GATE = "gate";
    INSPECT = "inspect";
    FORCE_RELEASE = "force_release";
    PROBE = "probe";
}
