//! What the processes of the [`model`](super::model) make of answers and news.

use std::time::{Duration, Instant};

use crate::{
    model::{CEILING, LOOKS, Model},
    servers::Reply,
    world::{Ask, Request, State},
};

impl Model<'_> {
    pub(crate) fn deliver_answer(&mut self, n: usize) {
        if !self.runs(n) {
            return;
        }
        let Some((Request { ask, by, sent, .. }, answer)) = self.processes[n].answers.pop_front()
        else {
            return;
        };
        if let Reply::Error(error) = &answer {
            panic!("seed {}: {ask:?}: {error}", self.checks.seed);
        }
        let owner = &mut self.owners[by];
        let until = owner.counts_on(sent);
        match ask {
            Ask::Step { queues } => {
                owner.open = false;
                if owner.state != State::Waits {
                    return;
                }
                let answer = match answer {
                    Reply::List(answer) => answer,
                    token => vec![Reply::Text("+".to_owned()), token],
                };
                if answer[0] == Reply::Text("+".to_owned()) {
                    let token = answer[1].int() as u64;
                    owner.state = State::Holds { token, until };
                    owner.told = true;
                    owner.paused_until = Instant::now() + Duration::from_millis(owner.pause);
                    self.checks.granted(&self.owners[by], token, until);
                    return;
                } else if answer[0] == Reply::Text("=".to_owned()) {
                    owner.state = State::Gone;
                    if owner.tainted {
                        owner.state = State::Leaves;
                        self.send(by, Ask::Abandon);
                    }
                    return;
                }
                match (answer[0].int(), queues) {
                    (0, true) => {
                        owner.ticket = answer[2].text().to_owned();
                        owner.ask_at = Instant::now() + CEILING;
                    }
                    (0, false) => {
                        owner.state = State::Leaves;
                        self.send(by, Ask::Abandon);
                    }
                    _ => panic!("seed {}: undone while it waits", self.checks.seed),
                }
            }
            Ask::Confirm(token) => {
                owner.open = false;
                if owner.state != State::Waits {
                    return;
                }
                if answer.int() == 1 {
                    let token = token.parse().expect("a number");
                    owner.state = State::Holds { token, until };
                    self.checks.granted(&self.owners[by], token, until);
                } else {
                    owner.asks = true;
                }
            }
            Ask::Renew(_) => {
                owner.renews = false;
                if let State::Holds {
                    token,
                    until: before,
                } = owner.state
                {
                    let held = match answer {
                        Reply::List(each) => each[0].int(),
                        one => one.int(),
                    };
                    let until = if held == 1 { until.max(before) } else { before };
                    owner.state = State::Holds { token, until };
                }
            }
            Ask::Release(_) | Ask::Save { .. } | Ask::Abandon => owner.state = State::Gone,
            Ask::ForceRelease | Ask::Gate => {}
            Ask::Look => {
                let Reply::List(answer) = answer else {
                    panic!("a list");
                };
                let ms = answer[0].int();
                let soon = Duration::from_millis(if ms < 0 { 10 } else { ms as u64 + 2 });
                self.processes[n].look_at = Instant::now() + soon.min(LOOKS);
                if answer[3].int() == 0 {
                    self.all_ask(n);
                }
            }
        }
    }

    pub(crate) fn all_ask(&mut self, n: usize) {
        for owner in &mut self.owners {
            owner.asks |= owner.process == n;
        }
    }

    pub(crate) fn deliver_news(&mut self, n: usize) {
        if !self.runs(n) {
            return;
        }
        let Some(news) = self.processes[n].news.pop_front() else {
            return;
        };
        let words: Vec<_> = news.split(' ').collect();
        let owner = self
            .owners
            .iter_mut()
            .find(|o| words.len() > 1 && o.name == words[1]);
        match (words[0], owner) {
            ("r", Some(_)) => {}
            ("g", Some(owner)) => owner.offer = words.last().map(|&token| token.to_owned()),
            ("w", Some(owner)) => owner.asks = true,
            ("x", None) => self.all_ask(n),
            ("d", None) => self.all_ask(n),
            ("n" | "f", None) => {}
            other => panic!("seed {}: news {other:?}", self.checks.seed),
        }
    }
}
