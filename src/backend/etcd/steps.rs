//! The transactions about records.
//!
//! # The protocol
//!
//! The record of a key stands beside its directory, `<prefix>rec/<key>`, with a lease of its own for its
//! ttl. Every change of it is one transaction that compares its revision, 0 where there is none: so it
//! holds only if the record is still what was seen when it was [decided](super::record), together
//! with who holds. Where it does not, the same transaction reads all anew, and it is decided again.
//!
//! 1. *Look*: the record, the own node and mark, and the first node of the directory.
//! 2. *Grant*, where there is no node at all: put the own one, and the open record, if the directory is
//!    empty and the record as seen.
//! 3. Else *wait* as for the lock: put a node, watch the one before it. And the record: a result is
//!    in what the watch tells, for all who wait in a process at once. They delete their nodes and
//!    return it; nobody is handed anything. With each look at who is before it comes the record.
//! 4. *Open*, once nobody is before it: write the record, if the node still stands and the record is
//!    as seen. The grant is this step, not the look before it; without an opening it is the look, which
//!    is a single step too.
//! 5. *Close*: write the result, or take the open record out, and delete the node, if the own node
//!    stands, or the directory is empty, and the record is as seen.
//! 6. *Withdraw*, the undo of a grant that nobody heard of: put back what was there, delete the node
//!    and leave a mark where an answer is missing, if the record is as seen.
//!
//! # What always holds
//!
//! Beside A to C and what follows from them for [nodes](super::nodes):
//!
//! - **D**. *Nobody is granted a key by this beside a result that is for it* (R4, R5). The transaction of
//!   the grant, 2 or 4, has the record at the revision that was decided upon; without an opening, 2
//!   has too, and the look of 4 reads both at one revision. From there on the node is the first one,
//!   so a save of anybody else is refused (E).
//! - **E**. *A save is fenced* (R2). 5 takes place under a node of the saver, which by B is the first one
//!   for as long as it stands, or in an empty directory. A successor that holds, or is about to, has a
//!   node. When that is gone, its record has its token, which is greater: as an open record, as a
//!   result, or as what it left when it forgot (`f`). A repeated save finds its own result, and writes
//!   nothing.
//! - **F**. *The token in a record never falls*: a grant writes its own, greater than all before; 5 refuses
//!   a smaller one; 6 puts back what the undone one had replaced, which wrote nothing meanwhile that
//!   anybody was told of.
//! - **G**. *Save and release are one step* (R10), as is the grant with its open record: no revision of the
//!   store has the one without the other.
//! - **H**. *What comes late has no effect*. A transaction whose answer got lost compares the record's
//!   revision. A repetition of it changed that, or did not need to. Behind an undo, a grant finds the mark
//!   of its owner, and an open finds its node gone, which never comes back with its revision.
//! - **I**. *A lease is for one record*, and what it was granted for goes on by it: an orphan whose place was
//!   taken is put back with its own. Who ends a record revokes its lease and those of what it took the
//!   place of, when it was told so: then nothing hangs on them, and no later step names them
//!   ([`lends`](super::lends)). A lease that is left over, since nobody was told, ends by itself, with
//!   nothing on it.
//!
//! The end of a record is that of its lease. It is the server's to keep, so no clock but that of the
//! leader counts; it ends up to a second late.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::{
    names::{self, Names},
    nodes,
    record::{Before, Change, Kept},
    trouble::Trouble,
};
use crate::{backend::Mode, key::LockKey, lease::OwnerToken};

/// What an owner of a lock and its record is about.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) names: Arc<Names>,
    /// In hexadecimal digits.
    pub(super) owner: String,
    pub(super) node: String,
    pub(super) mark: String,
    pub(super) record: String,
}

/// A record at a revision of the store.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// Of its last change; 0 if there is none.
    pub(super) revision: i64,
    pub(super) lease: i64,
    pub(super) kept: Option<Kept>,
}

/// A key and its record at a revision of the store.
pub(super) struct State {
    pub(super) now: i64,
    pub(super) seen: Seen,
    /// Creation and lease of the own node.
    pub(super) own: Option<(i64, i64)>,
    /// Name and creation of the node of the one who holds, or is about to.
    pub(super) first: Option<(Vec<u8>, i64)>,
    pub(super) marked: bool,
}

/// Under which lock a save takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    Nobody,
    /// By the node of this revision.
    Me(i64),
    Another,
}

/// What is written to a record with a step.
pub(super) enum Write {
    /// With a lease.
    Put(Vec<u8>, i64),
    Change(Change),
}

impl Seen {
    pub(super) fn of(answer: &GetResponse) -> Result<Self, Trouble> {
        match answer.kvs().first() {
            None => Ok(Self::default()),
            Some(kv) => Ok(Self {
                revision: kv.mod_revision(),
                lease: kv.lease(),
                kept: Some(Kept::read(kv.value(), kv.mod_revision())?),
            }),
        }
    }

    /// Of what a record of this owner takes the place, and the leases that nothing needs then.
    pub(super) fn before(&self, by: &str) -> (Before, Vec<i64>) {
        Before::of(self.kept.as_ref(), self.lease, by)
    }

    /// All leases that end with it.
    pub(super) fn leases(&self) -> Vec<i64> {
        let mut leases = self.kept.as_ref().map(Kept::leases).unwrap_or_default();
        leases.push(self.lease);
        leases
    }

    fn is_still(&self, record: &str) -> Compare {
        Compare::mod_revision(record, CompareOp::Equal, self.revision)
    }
}

impl Place {
    pub(super) fn new(prefix: &str, key: &LockKey, owner: &OwnerToken) -> Self {
        let names = Names::new(prefix, key);
        Self {
            owner: names::hex(owner),
            node: names.node(owner, Mode::Exclusive),
            mark: names::mark(prefix, owner, key),
            record: names::record(prefix, key),
            names: names.into(),
        }
    }

    fn reads(&self) -> Vec<TxnOp> {
        let (from, to) = self.names.everybody();
        let first = GetOptions::new()
            .with_range(to)
            .with_sort(SortTarget::Create, SortOrder::Ascend)
            .with_limit(1)
            .with_keys_only();
        vec![
            TxnOp::get(&*self.record, None),
            TxnOp::get(&*self.node, None),
            TxnOp::get(&*self.mark, Some(GetOptions::new().with_count_only())),
            TxnOp::get(from, Some(first)),
        ]
    }

    pub(super) fn look(&self) -> Txn {
        Txn::new().and_then(self.reads())
    }

    /// 2.
    pub(super) fn grant(
        &self,
        seen: &Seen,
        (value, lease): (&str, i64),
        open: Option<(Vec<u8>, i64)>,
    ) -> Txn {
        let put = |lease| Some(PutOptions::new().with_lease(lease));
        let mut steps = vec![TxnOp::put(&*self.node, value, put(lease))];
        if let Some((text, lease)) = open {
            steps.push(TxnOp::put(&*self.record, text, put(lease)));
        }
        Txn::new()
            .when([
                nodes::absent(&self.mark),
                // The own one too.
                nodes::nobody(self.names.everybody()),
                seen.is_still(&self.record),
            ])
            .and_then(steps)
            .or_else(self.reads())
    }

    /// 4.
    pub(super) fn open(&self, seen: &Seen, node: i64, text: Vec<u8>, lease: i64) -> Txn {
        let put = PutOptions::new().with_lease(lease);
        Txn::new()
            .when([
                nodes::absent(&self.mark),
                Compare::create_revision(&*self.node, CompareOp::Equal, node),
                seen.is_still(&self.record),
            ])
            .and_then([TxnOp::put(&*self.record, text, Some(put))])
            .or_else(self.reads())
    }

    /// 5. `mark`: with which lease one is left. Nothing, where nothing is to be done.
    pub(super) fn close(
        &self,
        seen: &Seen,
        holding: Holding,
        write: Option<Write>,
        releases: bool,
        mark: Option<i64>,
    ) -> Option<Txn> {
        let mut conditions = Vec::new();
        let mut steps = Vec::new();
        if let Some(write) = write {
            conditions.push(seen.is_still(&self.record));
            steps.push(self.write(write));
        }
        match holding {
            Holding::Me(revision) => {
                let own = Compare::create_revision(&*self.node, CompareOp::Equal, revision);
                conditions.push(own);
                if releases {
                    steps.push(TxnOp::delete(&*self.node, None));
                }
            }
            Holding::Nobody => conditions.push(nodes::nobody(self.names.everybody())),
            Holding::Another => return None,
        }
        if steps.is_empty() {
            return None;
        }
        if let Some(lease) = mark {
            let put = PutOptions::new().with_lease(lease);
            steps.push(TxnOp::put(&*self.mark, "", Some(put)));
        }
        let txn = Txn::new().when(conditions).and_then(steps);
        Some(txn.or_else(self.reads()))
    }

    fn write(&self, write: Write) -> TxnOp {
        match write {
            Write::Put(text, lease) => {
                let put = PutOptions::new().with_lease(lease);
                TxnOp::put(&*self.record, text, Some(put))
            }
            Write::Change(change) => changed(&self.record, change),
        }
    }
}

fn changed(record: &str, change: Change) -> TxnOp {
    match change {
        Change::Write(text) => {
            let put = PutOptions::new().with_ignore_lease();
            TxnOp::put(record, text, Some(put))
        }
        Change::PutBack(text, lease) => {
            let put = PutOptions::new().with_lease(lease);
            TxnOp::put(record, text, Some(put))
        }
        Change::Delete => TxnOp::delete(record, None),
    }
}

/// 6. `mark`: its name and lease.
pub(super) fn withdraw(
    record: &str,
    seen: &Seen,
    change: Option<Change>,
    node: &str,
    mark: Option<(&str, i64)>,
) -> Txn {
    let mut steps = vec![TxnOp::delete(node, None)];
    steps.extend(change.map(|change| changed(record, change)));
    if let Some((mark, lease)) = mark {
        let put = PutOptions::new().with_lease(lease);
        steps.push(TxnOp::put(mark, "", Some(put)));
    }
    Txn::new().when([seen.is_still(record)]).and_then(steps)
}

/// The record alone.
pub(super) fn load(record: &str) -> Txn {
    Txn::new().and_then([TxnOp::get(record, None)])
}

pub(super) fn was_loaded(answer: &TxnResponse) -> Result<Seen, Trouble> {
    match answer.op_responses().last() {
        Some(TxnOpResponse::Get(record)) => Seen::of(record),
        _ => Err(Trouble::strange()),
    }
}

impl State {
    /// What was read by a step that did not take place.
    pub(super) fn of(answer: &TxnResponse) -> Result<Self, Trouble> {
        let now = nodes::revision(answer)?;
        let answers = answer.op_responses();
        let [
            TxnOpResponse::Get(record),
            TxnOpResponse::Get(own),
            TxnOpResponse::Get(mark),
            TxnOpResponse::Get(first),
        ] = answers.as_slice()
        else {
            return Err(Trouble::strange());
        };
        Ok(Self {
            now,
            seen: Seen::of(record)?,
            own: (own.kvs().first()).map(|kv| (kv.create_revision(), kv.lease())),
            first: (first.kvs().first()).map(|kv| (kv.key().to_vec(), kv.create_revision())),
            marked: mark.count() > 0,
        })
    }

    pub(super) fn holding(&self, place: &Place) -> Holding {
        match (&self.first, self.own) {
            (None, _) => Holding::Nobody,
            (Some((first, _)), Some((own, _))) if *first == place.node.as_bytes() => {
                Holding::Me(own)
            }
            _ => Holding::Another,
        }
    }
}
