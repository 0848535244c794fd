//! One round of asking: votes, and the token.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{
    client::Shared,
    node::Node,
    post::{Got, Post, Posts, Seat},
    quorum::{
        ballot::{Ballot, Next, Raise, Vote},
        renewal::Places,
    },
    scripts::{RAISE, VOTE},
};
use crate::backend::redis::{answer, trouble::Trouble};

/// A lease, as the votes have it.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) ballot: u32,
    pub(super) places: Places,
    pub(super) token: u64,
    pub(super) valid_until: Instant,
}

/// Why there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal {
    /// How many nodes said who has the key.
    pub(super) voted: usize,
    /// Which of them said that it is another's, a bit each.
    pub(super) held: u64,
    /// Which had the key to give, or may have.
    pub(super) got: Got,
    /// A holder among these that tells nobody when it leaves.
    pub(super) foreign: bool,
    /// How many have to wait before they vote.
    pub(super) abstained: usize,
    /// How long the key is held still, if somebody said so.
    pub(super) after: Option<Duration>,
    /// How many nodes cannot vote for a reason that does not pass.
    pub(super) barred: usize,
    /// Why a node could not vote that answered.
    pub(super) trouble: Option<Trouble>,
}

/// What one acquire asks for, in the words of the scripts.
pub(super) struct Wish {
    pub(super) ttl: Duration,
    pub(super) ttl_ms: u64,
    pub(super) tokens: u32,
    /// Whether it is told when the key is free.
    pub(super) waits: bool,
}

/// Asks all nodes for the key, and for a token once a majority gave it.
pub(super) async fn attempt(
    shared: &Arc<Shared>,
    seat: &Seat,
    posts: &mut Posts,
    wish: &Wish,
    number: u32,
) -> Result<Grant, Refusal> {
    let began = seat.began;
    let limit = shared.node_timeout(wish.ttl);
    let proposal = shared.propose(wish.tokens);
    let mut ballot = Ballot::new(shared.count(), wish.ttl, began.elapsed(), proposal);
    let mut refusal = Refusal::default();
    let mut next = Next::Wait;
    {
        let (ballot, refusal, next) = (&mut ballot, &mut refusal, &mut next);
        let ask = |post, node| vote(post, node, shared, seat, wish, (number, proposal));
        let heard = move |node, answer: Result<(Vote, bool), Trouble>| {
            let vote = refusal.count(node, answer);
            if vote == Vote::Abstains {
                shared.nodes[node].abstained(shared);
            }
            ballot.vote(node, vote);
            // What comes with the answer that decided it does not change it.
            if matches!(next, Next::Wait | Next::Refuse { .. }) {
                *next = ballot.next(began.elapsed());
            }
            match next {
                Next::Wait => false,
                // Held by others, or too few there: who is refused is told which.
                Next::Refuse { .. } => refusal.voted >= shared.majority(),
                Next::Grant { .. } | Next::Raise { .. } => true,
            }
        };
        posts.round(shared, limit, ask, heard).await;
    }
    if next == Next::Wait {
        ballot.close_votes();
        next = ballot.next(began.elapsed());
    }
    while let Next::Raise { token } = next {
        next = Next::Wait;
        {
            let mut asked = vec![false; shared.nodes.len()];
            ballot.raises().for_each(|node| asked[node] = true);
            let (ballot, next) = (&mut ballot, &mut next);
            let what = (number, token);
            let ask = |post, node| raise(post, node, shared, seat, wish, what, &asked);
            let heard = move |node, raised| {
                if *next == Next::Wait {
                    ballot.raised(node, raised);
                    *next = ballot.next(began.elapsed());
                }
                *next != Next::Wait
            };
            posts.round(shared, limit, ask, heard).await;
        }
        if next == Next::Wait {
            ballot.close_raise();
            next = ballot.next(began.elapsed());
        }
    }
    shared.saw(ballot.highest());
    match next {
        Next::Grant { token, valid_until } => {
            shared.saw(token + u64::from(wish.tokens) - 1);
            Ok(Grant {
                ballot: number,
                places: ballot.places(),
                token,
                valid_until: began + valid_until,
            })
        }
        Next::Refuse { after } => {
            refusal.after = after;
            Err(refusal)
        }
        // All answers are in, so it has decided.
        Next::Wait | Next::Raise { .. } => Err(refusal),
    }
}

impl Refusal {
    fn count(&mut self, node: usize, answer: Result<(Vote, bool), Trouble>) -> Vote {
        let (vote, foreign) = match answer {
            Ok(answer) => answer,
            Err(trouble) => {
                self.barred += usize::from(!trouble.may_pass());
                if trouble.answered {
                    self.trouble = Some(trouble);
                }
                (Vote::Silent, false)
            }
        };
        self.foreign |= foreign;
        let bit = 1 << node;
        match vote {
            Vote::Granted { .. } => {
                self.voted += 1;
                self.got.granted |= bit;
            }
            Vote::Held { .. } => {
                self.voted += 1;
                self.held |= bit;
                self.got.refused |= bit;
            }
            Vote::Abstains => {
                self.abstained += 1;
                self.got.refused |= bit;
            }
            Vote::Silent => {}
        }
        vote
    }
}

/// A node's vote, and whether the holder of which it tells is none of ours.
async fn vote(
    post: &mut Post,
    node: &Node,
    shared: &Shared,
    seat: &Seat,
    wish: &Wish,
    (ballot, proposal): (u32, u64),
) -> Result<(Vote, bool), Trouble> {
    let before = post.left;
    let names = &seat.names;
    let answer = post.ask(node, &VOTE, false, |script, by_code, way| {
        let tombstone = way.looks.then(|| seat.tombstone());
        let mut keys = vec![&*names.lock, &*names.waiters, &*shared.node_name];
        keys.extend(tombstone.as_deref());
        let mut cmd = script.call(by_code, &keys);
        cmd.arg(&seat.owner).arg(&*seat.inbox).arg(ballot);
        cmd.arg(wish.ttl_ms).arg(&*names.counter);
        cmd.arg(proposal).arg(wish.tokens);
        if wish.waits {
            cmd.arg(seat.waited_ms());
        } else {
            cmd.arg("");
        }
        cmd
    });
    let (vote, foreign) = read_vote(&answer.await?)?;
    if matches!(vote, Vote::Held { .. } | Vote::Abstains) {
        // In line at most; and what was there before is known of.
        post.left = before || (wish.waits && vote != Vote::Abstains);
    }
    Ok((vote, foreign))
}

fn read_vote(answer: &Value) -> Result<(Vote, bool), Trouble> {
    let positive = |n: i64| u64::try_from(n).ok();
    Ok(match answer::ints(answer)?.as_slice() {
        [1, took, seen] => {
            let seen = positive(*seen).ok_or_else(Trouble::strange)?;
            let took = *took == 1;
            (Vote::Granted { took, seen }, false)
        }
        [0, ms, seen, foreign] => {
            let seen = positive(*seen).ok_or_else(Trouble::strange)?;
            let remaining = positive(*ms).map(Duration::from_millis);
            (Vote::Held { remaining, seen }, *foreign == 1)
        }
        [-2] => (Vote::Abstains, false),
        [-1] => {
            let mut undone = Trouble::unavailable("this owner was undone");
            undone.answered = true;
            return Err(undone);
        }
        _ => return Err(Trouble::strange()),
    })
}

async fn raise(
    post: &mut Post,
    node: &Node,
    shared: &Shared,
    seat: &Seat,
    wish: &Wish,
    (ballot, token): (u32, u64),
    asked: &[bool],
) -> Raise {
    if !asked[node.at] {
        return Raise::NotHeld;
    }
    let names = &seat.names;
    let answer = post.ask(node, &RAISE, false, |script, by_code, _| {
        let keys = [&*names.lock, &*shared.node_name];
        let mut cmd = script.call(by_code, &keys);
        cmd.arg(&seat.owner).arg(ballot).arg(&*names.counter);
        cmd.arg(token).arg(wish.tokens);
        cmd
    });
    let answer = answer.await.and_then(|answer| answer::ints(&answer));
    match answer.as_deref() {
        Ok([1]) => Raise::Took,
        Ok([0, seen]) => match u64::try_from(*seen) {
            Ok(seen) => Raise::TooLow { seen },
            Err(_) => Raise::Silent,
        },
        Ok([-1]) => Raise::NotHeld,
        _ => Raise::Silent,
    }
}
