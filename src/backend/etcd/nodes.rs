//! The transactions of the protocol: what is put, what is read with it, and what follows from the
//! answers.
//!
//! # The protocol
//!
//! A lock is a directory, each owner one node in it ([`names`](super::names)). The revision at which a
//! node was created is its place: revisions only grow, and two nodes never share one.
//!
//! 1. *Put.* If the owner has no node and no [mark](super::undo), put one with the process's lease for
//!    this ttl, and read the nearest node before it that is in its way: for an exclusive owner any, for
//!    a shared one the nearest that is not shared. All in one transaction.
//! 2. *Wait* for that node's deletion ([`hub`](super::hub)), then *look*: the own node, of this
//!    revision and lease, and who is before it now. Again 2 while somebody is.
//! 3. *Hold* once an answer, of 1 or 2, said that nobody is, until the earlier of two ends: that of the
//!    lock, counted from when this was sent, and that of the lease ([`session`](super::session)).
//! 4. *Release* by deleting the node of this revision.
//!
//! # What always holds
//!
//! - **A**. Nobody comes before a node that stands: a new one has a greater revision.
//! - **B**. Whoever holds has a node that stood when it was granted, with nobody before it who is in its
//!   way; by A that stays so for as long as it stands.
//! - **C**. A node goes only when its owner has given up holding (release, undo, its end by the clock of
//!   its process, each of which comes first), when its lease ends at the server, or when an operator
//!   takes it away. The lease ends at the server later than the process counts it, so there too the
//!   owner has given up before.
//! - **Exclusion**: of two owners in each other's way, both with nodes that stand, one came later and
//!   sees the other before it, so it does not hold (B). If the earlier one's node is gone, its owner does
//!   not hold (C).
//! - **Tokens** are revisions of creation. An exclusive grant comes after all that were before it have
//!   gone, so its token is greater than that of every grant before. Shared holders that hold
//!   together have tokens of their own, in the order in which they came.
//! - **Asking again** finds the node of the same name: the same place, the same token.
//! - **Leaving**: an undo waits for the answer of the put, or marks its owner, so that no node is put
//!   when nobody is there to delete it. Whatever is forgotten all the same ends with the lease.
//!
//! Reads are linearizable, and a stale one could do no harm: in the past of a node, those before it are
//! more and not fewer. Puts, and the reads in them, are decided by the majority.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};

use super::{
    names::{Names, Range},
    steps::Seen,
    trouble::Trouble,
};
use crate::backend::Mode;

/// What one owner wants of one lock.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) names: Arc<Names>,
    pub(super) mode: Mode,
    pub(super) node: String,
    pub(super) mark: String,
    pub(super) value: String,
    /// Whether it waits behind others, or leaves no node.
    pub(super) queues: bool,
    /// The record that is read with every look at who is before it.
    pub(super) record: Option<String>,
}

/// The nearest node before one's own that keeps it from holding.
#[derive(Clone, Debug)]
pub(super) struct Blocker {
    pub(super) node: Arc<str>,
    /// Of the read that saw it.
    pub(super) seen: i64,
}

/// What became of a put.
#[derive(Debug)]
pub(super) enum Put {
    /// A new node: of this revision, behind this one.
    Stands(i64, Option<Blocker>),
    /// The owner has a node from before, of this revision and lease.
    Stood(i64, i64),
    /// Another owner holds or waits, and this one did not want to.
    Contended,
}

/// What became of a node.
#[derive(Debug)]
pub(super) enum Look {
    Stands(Option<Blocker>),
    Gone,
}

pub(super) fn absent(key: &str) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, 0)
}

pub(super) fn nobody((from, to): Range) -> Compare {
    absent(&from).with_range(to)
}

/// Those who keep this mode from holding: for a shared owner only the others.
fn blocking(names: &Names, mode: Mode) -> Vec<Range> {
    match mode {
        Mode::Exclusive => vec![names.everybody()],
        Mode::Shared => names.exclusive().to_vec(),
    }
}

/// The last ones of a range that came before `revision`, if that is not 0.
fn last_of((from, to): Range, count: i64, revision: i64) -> TxnOp {
    let options = GetOptions::new()
        .with_range(to)
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_max_create_revision(revision)
        .with_limit(count)
        .with_keys_only();
    TxnOp::get(from, Some(options))
}

/// With its value, which is short: of keys alone, etcd 3.7 does not say which lease they have.
fn get(key: &str) -> TxnOp {
    TxnOp::get(key, None)
}

impl Wish {
    /// Puts the node and reads who is before it, in one step: nobody comes between the two. A
    /// queue is joined behind everybody; without a wish to wait, nothing is put unless nobody is
    /// in the way. Where the owner was undone, nothing is put at all.
    pub(super) fn put(&self, lease: i64) -> Txn {
        let ranges = blocking(&self.names, self.mode);
        let mut conditions = vec![absent(&self.node), absent(&self.mark)];
        let put = PutOptions::new().with_lease(lease);
        let mut steps = vec![TxnOp::put(&*self.node, &*self.value, Some(put))];
        if self.queues {
            // An exclusive owner's own node is the last one of all.
            let count = if self.mode == Mode::Exclusive { 2 } else { 1 };
            steps.extend(ranges.into_iter().map(|range| last_of(range, count, 0)));
        } else {
            conditions.extend(ranges.into_iter().map(nobody));
        }
        steps.extend(self.record.as_deref().map(get));
        Txn::new()
            .when(conditions)
            .and_then(steps)
            .or_else([get(&self.node), get(&self.mark)])
    }

    pub(super) fn was_put(&self, answer: &TxnResponse) -> Result<Put, Trouble> {
        let now = revision(answer)?;
        let answers = answer.op_responses();
        if answer.succeeded() {
            return Ok(Put::Stands(now, self.nearest(&answers, now, now)?));
        }
        let [own, mark] = gets(&answers)?;
        if mark.count() > 0 {
            return Err(Trouble::undone());
        }
        match own.kvs().first() {
            Some(own) => Ok(Put::Stood(own.create_revision(), own.lease())),
            None if self.queues => Err(Trouble::strange()),
            None => Ok(Put::Contended),
        }
    }

    /// Reads whether the node of this revision still stands, and who is before it.
    pub(super) fn look(&self, revision: i64) -> Txn {
        let ranges = blocking(&self.names, self.mode).into_iter();
        let mut steps = vec![get(&self.node)];
        steps.extend(ranges.map(|range| last_of(range, 1, revision - 1)));
        steps.extend(self.record.as_deref().map(get));
        // Reads alone, and linearizable: no write at the server, and none that is missed.
        Txn::new().and_then(steps)
    }

    pub(super) fn was_seen(
        &self,
        revision: i64,
        lease: i64,
        answer: &TxnResponse,
    ) -> Result<Look, Trouble> {
        let now = self::revision(answer)?;
        let answers = answer.op_responses();
        let Some(TxnOpResponse::Get(own)) = answers.first() else {
            return Err(Trouble::strange());
        };
        // Of this revision and lease: a node that somebody put there since is not this one.
        let is_it =
            |kv: &etcd_client::KeyValue| kv.create_revision() == revision && kv.lease() == lease;
        if !own.kvs().first().is_some_and(is_it) {
            return Ok(Look::Gone);
        }
        Ok(Look::Stands(self.nearest(&answers, revision, now)?))
    }

    /// The record, where it was read with a node that stands.
    pub(super) fn was_recorded(&self, answer: &TxnResponse) -> Result<Option<Seen>, Trouble> {
        match (&self.record, answer.op_responses().last()) {
            (None, _) => Ok(None),
            (Some(_), Some(TxnOpResponse::Get(record))) => Seen::of(record).map(Some),
            _ => Err(Trouble::strange()),
        }
    }

    /// The latest of those that came before `own`. The first of the answers is about the own node.
    fn nearest(
        &self,
        answers: &[TxnOpResponse],
        own: i64,
        seen: i64,
    ) -> Result<Option<Blocker>, Trouble> {
        let mut nearest = None;
        let end = answers.len() - usize::from(self.record.is_some()).min(answers.len());
        for answer in answers.get(1..end).unwrap_or_default() {
            let TxnOpResponse::Get(answer) = answer else {
                return Err(Trouble::strange());
            };
            let before = answer.kvs().iter().find(|kv| kv.create_revision() < own);
            nearest = nearest.max_by_revision(before);
        }
        let Some(kv) = nearest else { return Ok(None) };
        let node = std::str::from_utf8(kv.key()).map_err(|_| Trouble::strange())?;
        Ok(Some(Blocker {
            node: node.into(),
            seen,
        }))
    }
}

trait Later<'a> {
    fn max_by_revision(self, other: Option<&'a etcd_client::KeyValue>) -> Self;
}

impl<'a> Later<'a> for Option<&'a etcd_client::KeyValue> {
    fn max_by_revision(self, other: Option<&'a etcd_client::KeyValue>) -> Self {
        self.into_iter()
            .chain(other)
            .max_by_key(|kv| kv.create_revision())
    }
}

/// The last one of all who hold or wait for a lock, and the store's revision. `until`: only of those
/// who came until this revision, if it is not 0.
pub(super) fn last(names: &Names, until: i64) -> Txn {
    Txn::new().and_then([last_of(names.everybody(), 1, until)])
}

pub(super) fn was_last(answer: &TxnResponse) -> Result<(i64, Option<Arc<str>>), Trouble> {
    let now = revision(answer)?;
    let node = match answer.op_responses().first() {
        Some(TxnOpResponse::Get(nodes)) => match nodes.kvs().first() {
            Some(kv) => std::str::from_utf8(kv.key())
                .map_err(|_| Trouble::strange())?
                .into(),
            None => return Ok((now, None)),
        },
        _ => return Err(Trouble::strange()),
    };
    Ok((now, Some(node)))
}

/// The first ones who hold or wait for a lock, in the order in which they came.
pub(super) fn queue(names: &Names, limit: i64) -> Txn {
    let (from, to) = names.everybody();
    let options = GetOptions::new()
        .with_range(to)
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(limit);
    Txn::new().and_then([TxnOp::get(from, Some(options))])
}

/// Writes to a node that it is taken away, if it is still the one of this revision.
pub(super) fn take(node: &str, revision: i64) -> Txn {
    let put = PutOptions::new().with_ignore_lease();
    Txn::new()
        .when([Compare::create_revision(node, CompareOp::Equal, revision)])
        .and_then([TxnOp::put(node, "taken away", Some(put))])
}

/// Deletes a node, if it is still the one of this revision.
pub(super) fn delete(node: &str, revision: i64) -> Txn {
    Txn::new()
        .when([Compare::create_revision(node, CompareOp::Equal, revision)])
        .and_then([TxnOp::delete(node, None)])
}

/// Deletes a node, and marks its owner, so that no put of it takes effect any more. The mark has
/// the lease of the put: when that is gone, so is what the put could do.
pub(super) fn bury(node: &str, mark: &str, lease: i64) -> Txn {
    let put = PutOptions::new().with_lease(lease);
    Txn::new().and_then([TxnOp::put(mark, "", Some(put)), TxnOp::delete(node, None)])
}

pub(super) fn revision(answer: &TxnResponse) -> Result<i64, Trouble> {
    let header = answer.header().ok_or_else(Trouble::strange)?;
    Ok(header.revision())
}

fn gets(answers: &[TxnOpResponse]) -> Result<[&GetResponse; 2], Trouble> {
    match answers {
        [TxnOpResponse::Get(one), TxnOpResponse::Get(two)] => Ok([one, two]),
        _ => Err(Trouble::strange()),
    }
}
