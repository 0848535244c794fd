//! Renewals of exclusive leases: those that are due together go together, in one script.

use std::sync::Arc;

use redis::{Cmd, Value};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinSet, yield_now},
    time::Instant,
};

use super::{
    answer,
    client::{Shared, Via},
    lease::Inner,
    scripts::{RENEW, RENEW_SHARED, Script},
    trouble::Trouble,
};
use crate::backend::Mode;

/// How many locks one script renews: beyond that there is little to gain, and others wait.
const MOST: usize = 100;

/// One lease that wants to live on, and who wants to know.
pub(super) struct Renewal {
    pub(super) lease: Arc<Inner>,
    pub(super) done: oneshot::Sender<Result<bool, Trouble>>,
    /// It goes to a node to which its slot is being moved.
    pub(super) asking: bool,
}

impl Renewal {
    pub(super) fn new(lease: Arc<Inner>, done: oneshot::Sender<Result<bool, Trouble>>) -> Self {
        Self {
            lease,
            done,
            asking: false,
        }
    }

    pub(super) fn fails(self, trouble: Trouble) {
        // Whoever asked may have left.
        let _ = self.done.send(Err(trouble));
    }

    /// The command that renews this one alone.
    pub(super) fn command(&self, by_code: bool) -> Cmd {
        let lease = &self.lease;
        let mut cmd = match lease.mode {
            Mode::Exclusive => {
                let mut cmd = RENEW.call(by_code, &[&lease.names.lock]);
                cmd.arg(&lease.value);
                cmd
            }
            Mode::Shared => {
                let mut cmd = RENEW_SHARED.call_lock(by_code, &lease.names, None);
                cmd.arg(&lease.words.who);
                cmd
            }
        };
        cmd.arg(lease.words.ttl);
        cmd
    }
}

/// What the server answers to such a command: 1 if the lease is still there.
pub(super) fn held(answer: &Value) -> Result<i64, Trouble> {
    match answer {
        Value::Array(_) => answer::ints(answer)?
            .first()
            .copied()
            .ok_or_else(Trouble::strange),
        number => answer::int(number),
    }
}

pub(super) async fn renew_all(shared: Arc<Shared>, mut queue: mpsc::UnboundedReceiver<Renewal>) {
    let mut running = JoinSet::new();
    loop {
        let first = tokio::select! {
            biased;
            Some(_) = running.join_next() => continue,
            first = queue.recv() => match first {
                Some(first) => first,
                None => return,
            },
        };
        // Others that are due at this moment are about to ask too.
        yield_now().await;
        let mut batch = Vec::new();
        let mut next = Some(first);
        while let Some(renewal) = next {
            match renewal.lease.mode {
                Mode::Exclusive => batch.push(renewal),
                Mode::Shared => {
                    running.spawn(renew_shared(shared.clone(), renewal));
                }
            }
            // Beside another key of a Cluster's slot, one that is being moved could not be renewed.
            if batch.len() == MOST || (shared.cluster().is_some() && !batch.is_empty()) {
                break;
            }
            next = queue.try_recv().ok();
        }
        if !batch.is_empty() {
            running.spawn(renew(shared.clone(), batch));
        }
    }
}

async fn renew(shared: Arc<Shared>, batch: Vec<Renewal>) {
    let sent = Instant::now();
    let answers = ask(&shared, &batch).await;
    for (n, renewal) in batch.into_iter().enumerate() {
        let result = match &answers {
            Ok(answers) => answers.get(n).copied().ok_or_else(Trouble::strange),
            Err(trouble) => Err(trouble.clone()),
        };
        settle(renewal, sent, result);
    }
}

async fn ask(shared: &Arc<Shared>, batch: &[Renewal]) -> Result<Vec<i64>, Trouble> {
    let Some(first) = batch.first() else {
        return Ok(Vec::new());
    };
    let keys: Vec<_> = batch.iter().map(|r| &*r.lease.names.lock).collect();
    let answer = shared
        .run(Via::Lock, &first.lease.names, &RENEW, |script, by_code| {
            let mut cmd = script.call(by_code, &keys);
            for renewal in batch {
                cmd.arg(&renewal.lease.value).arg(renewal.lease.words.ttl);
            }
            cmd
        })
        .await?;
    answer::ints(&answer)
}

async fn renew_shared(shared: Arc<Shared>, renewal: Renewal) {
    let sent = Instant::now();
    let call = |_: &Script, by_code: bool| renewal.command(by_code);
    let names = &renewal.lease.names;
    let answer = shared.run(Via::Lock, names, &RENEW_SHARED, call).await;
    settle(renewal, sent, answer.and_then(|answer| held(&answer)));
}

/// `sent` is from before the request, so the lease ends here before it ends at the server.
pub(super) fn settle(renewal: Renewal, sent: Instant, result: Result<i64, Trouble>) {
    let result = result.map(|held| {
        if held == 1 {
            renewal.lease.extend(sent);
        } else {
            // Here, as whoever asked may have left. Unless an operator was the reason, who is heard
            // of first.
            renewal.lease.is_not_held();
        }
        held == 1
    });
    // Whoever asked may have left.
    let _ = renewal.done.send(result);
}
