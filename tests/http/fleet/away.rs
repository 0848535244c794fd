//! A Redis server that is down, hangs, forgets or cuts connections, and instances that are too
//! busy to talk to it. Nobody is started again but the server.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use super::{Fleet, LATE, Settings, TTL, assert_refusal, body, instance::THREADS, status};
use crate::{
    servers::{RedisServer, scratch::ScratchDir},
    support::{SOON, soon},
};

/// How long an answer of Redis may take here.
const OPERATION: Duration = Duration::from_secs(1);

/// So many processes on a server of their own, which the test may harm.
async fn fleet(instances: usize) -> Fleet {
    let settings = Settings {
        operation: OPERATION,
        grace: SOON,
    };
    Fleet::with(Some(RedisServer::start()), instances, settings).await
}

/// Every thread of an instance is blocked by its handlers for two leases: it keeps both locks, as
/// another instance sees at every moment, and so do the handlers when they go on.
#[tokio::test]
async fn a_blocked_instance_keeps_its_locks() {
    let mut fleet = Fleet::of(2).await;
    let mut callers = Vec::new();
    let mut actors = Vec::new();
    for id in 0..THREADS {
        let route = format!("mortal/{id}");
        callers.push(fleet.caller(0, &route, id).await);
        actors.push(fleet.stage.entered().await);
    }
    let blocked = Instant::now();
    let until = TTL * 2;
    for actor in &mut actors {
        actor.block(until.as_millis()).await;
    }
    let mut looks = 0;
    while blocked.elapsed() < until * 7 / 8 {
        for id in 0..THREADS {
            let path = format!("/try/{id}");
            let answer = fleet.ask(1, "POST", &path).await.expect("no panic");
            // A look that was itself delayed says nothing.
            if blocked.elapsed() < until * 7 / 8 {
                assert_refusal(&answer, 409, "lock-busy");
                looks += 1;
            }
        }
        tokio::time::sleep(TTL / 20).await;
    }
    assert!(looks > THREADS * 4, "it was looked at");
    for mut actor in actors {
        assert_eq!(actor.says().await, "true", "held all the time");
        actor.go().await;
    }
    for mut caller in callers {
        assert_eq!(caller.status().await, 200);
    }
    fleet.all_free().await;
}

/// No server: requests are refused within the operation timeout, as problems that say when to come
/// again, and a route that fails open runs unlocked. A holder is stopped, or told, before its
/// lease could have ended. With the server back, all is as before.
#[tokio::test]
async fn while_redis_is_down() {
    let mut fleet = fleet(2).await;
    for hangs in [true, false] {
        let mut stopped = fleet.caller(0, "mortal/7", "stopped").await;
        let dropped = fleet.stage.enters("stopped").await;
        let mut warned = fleet.caller(1, "told/8", "warned").await;
        let mut told = fleet.stage.enters("warned").await;
        let tokens = [dropped.token, told.token];
        let gone = Instant::now();
        if hangs {
            fleet.server().pause();
        } else {
            fleet.server().kill();
        }
        // Those that wait, those that do not, and one that does without.
        let refused = ["fifo", "try", "brief", "fifo"].map(|route| {
            let answer = fleet.ask(0, "POST", &format!("/{route}/9"));
            (route, answer)
        });
        let open = fleet.ask(1, "POST", "/open/9");
        let report = fleet.ask(1, "GET", "/report/9");
        for (route, answer) in refused {
            let answer = answer.await.expect("no panic");
            assert_refusal(&answer, 503, "backend-unavailable");
            let took = gone.elapsed();
            assert!(took < OPERATION + LATE, "{route}: {took:?}");
            let text = answer.to_lowercase();
            assert!(
                !text.contains("redis") && !text.contains("127.0.0.1:"),
                "{text}"
            );
        }
        let open = open.await.expect("no panic");
        assert_eq!((status(&open), body(&open)), (200, "0"), "without a lock");
        let report = report.await.expect("no panic");
        assert_eq!((status(&report), body(&report)), (200, "0"), "alone");

        dropped.over().await;
        assert!(told.says().await.starts_with("lost "));
        let lost = gone.elapsed();
        assert!(lost < TTL + LATE, "{lost:?}");
        assert_eq!(stopped.status().await, 500, "hangs: {hangs}");
        told.go().await;
        assert_eq!(warned.status().await, 200);

        // Once that is known it takes no time.
        soon("it is known", async {
            loop {
                let begun = Instant::now();
                let answer = fleet.ask(0, "POST", "/fifo/9").await.expect("no panic");
                assert_refusal(&answer, 503, "backend-unavailable");
                let took = begun.elapsed();
                assert!(took < OPERATION + LATE, "{took:?}");
                if took < OPERATION / 4 {
                    break;
                }
            }
        })
        .await;

        if hangs {
            fleet.server().resume();
        } else {
            fleet.server().restart();
        }
        for (at, id, token) in [(0, 7, tokens[0]), (1, 8, tokens[1]), (0, 9, 0)] {
            fleet.recovers(at, id, token).await;
        }
        fleet.all_free().await;
    }
}

impl Fleet {
    /// An instance gets this key again, without having been started again, with a greater token.
    async fn recovers(&self, at: usize, id: u32, before: u64) {
        let path = format!("/fifo/{id}");
        let begun = Instant::now();
        loop {
            let answer = self.ask(at, "POST", &path).await.expect("no panic");
            if status(&answer) == 200 {
                let token: u64 = body(&answer).parse().expect("a token");
                assert!(token > before, "{token} after {before}");
                return;
            }
            assert_refusal(&answer, 503, "backend-unavailable");
            assert!(begun.elapsed() < SOON, "{answer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The server is killed under load and comes back with nothing: holders learn that they have lost
/// their locks, waiters are served, tokens grow over it, storage refuses who is stale, and the
/// instances go on without being started again.
#[tokio::test]
async fn redis_forgets_everything_under_load() {
    let mut fleet = fleet(2).await;
    let mut stopped = fleet.caller(0, "mortal/7", "stopped").await;
    let dropped = fleet.stage.enters("stopped").await;
    let mut warned = fleet.caller(1, "told/8", "warned").await;
    let mut told = fleet.stage.enters("warned").await;
    let mut storage = told.token;
    let mut waiter = fleet.caller(1, "fifo/7", "waiter").await;
    fleet.waiters("7", 1).await;
    let load = Load::start(&fleet).await;

    let forgot = Instant::now();
    fleet.server().restart_empty();
    dropped.over().await;
    assert_eq!(stopped.status().await, 500, "lost");
    assert!(told.says().await.starts_with("lost "));
    assert!(forgot.elapsed() < TTL + LATE * 2, "{:?}", forgot.elapsed());

    // It stood behind the one that was stopped.
    fleet.stage.enters("waiter").await.go().await;
    assert_eq!(waiter.status().await, 200);

    fleet.recovers(0, 8, storage).await;
    let mut next = fleet.caller(0, "fifo/8", "next").await;
    let next_in = fleet.stage.enters("next").await;
    assert!(next_in.token > storage, "although the server forgot");
    storage = next_in.token;
    assert!(told.token < storage, "a stale write is refused");
    assert_eq!(told.ask("held").await, "false");
    told.go().await;
    assert_eq!(warned.status().await, 200);
    next_in.go().await;
    assert_eq!(next.status().await, 200);

    load.end().await;
    fleet.all_free().await;
}

/// Requests to all instances that add to one number each, until told to stop.
struct Load {
    tasks: JoinSet<Vec<u64>>,
    stop: tokio_util::sync::CancellationToken,
    file: std::path::PathBuf,
    _dir: ScratchDir,
}

impl Load {
    async fn start(fleet: &Fleet) -> Self {
        let dir = ScratchDir::new();
        let file = dir.path().join("sum");
        std::fs::write(&file, "0").expect("a file");
        let stop = tokio_util::sync::CancellationToken::new();
        let mut tasks = JoinSet::new();
        for n in 0..8 {
            let (stop, at) = (stop.clone(), fleet.instances[n % 2].address);
            let head =
                crate::support::h1_head("POST", &format!("/fifo/5?counter={}", file.display()));
            tasks.spawn(async move {
                let mut tokens = Vec::new();
                while !stop.is_cancelled() {
                    let mut stream = crate::support::h1(at, &head).await;
                    let answer = crate::support::h1_answer(&mut stream).await;
                    match status(&answer) {
                        200 => tokens.push(body(&answer).parse().expect("a token")),
                        // The lease was lost under the handler, or the server is away.
                        500 | 503 => {}
                        _ => panic!("{answer}"),
                    }
                }
                tokens
            });
        }
        let load = Self {
            tasks,
            stop,
            file,
            _dir: dir,
        };
        load.goes_on().await;
        load
    }

    fn sum(&self) -> usize {
        let sum = std::fs::read_to_string(&self.file).expect("a file");
        sum.parse().expect("a number")
    }

    /// More and more is done.
    async fn goes_on(&self) {
        let before = self.sum();
        soon("the load goes on", async {
            while self.sum() < before + 20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn end(mut self) {
        self.goes_on().await;
        self.stop.cancel();
        let mut all = Vec::new();
        while let Some(tokens) = soon("the load ends", self.tasks.join_next()).await {
            let tokens = tokens.expect("no panic");
            assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
            all.extend(tokens);
        }
        all.sort_unstable();
        assert!(all.is_sorted_by(|a, b| a < b), "a token was given twice");
        assert!(all.len() > 30, "{}", all.len());
    }
}

/// Connections that are cut while requests wait and hold cost nobody the key: who waits asks again
/// at its place, and who holds goes on.
#[tokio::test]
async fn cut_connections_cost_no_lock() {
    let mut fleet = fleet(2).await;
    for kind in ["pubsub", "normal"] {
        let mut holder = fleet.caller(0, "mortal/7", "holder").await;
        let mut holding = fleet.stage.enters("holder").await;
        let mut callers = Vec::new();
        for n in 0..3 {
            callers.push(fleet.caller(1, "fifo/7", n).await);
            fleet.waiters("7", n + 1).await;
        }
        fleet.server().command(&["CLIENT", "KILL", "TYPE", kind]);
        fleet.waiters("7", 3).await;
        tokio::time::sleep(TTL).await;
        assert_eq!(holding.ask("held").await, "true", "{kind}");
        let mut before = holding.token;
        holding.go().await;
        let freed = Instant::now();
        for n in 0..3 {
            let actor = fleet.stage.enters(&n.to_string()).await;
            assert!(actor.token > before);
            before = actor.token;
            actor.go().await;
        }
        assert!(freed.elapsed() < LATE * 2, "{kind}: {:?}", freed.elapsed());
        for caller in callers.iter_mut().chain([&mut holder]) {
            assert_eq!(caller.status().await, 200, "{kind}");
        }
        fleet.all_free().await;
    }
}
