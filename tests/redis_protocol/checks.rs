//! What must hold on every day of the [`model`](super::model).

use std::{
    collections::HashMap,
    sync::LazyLock,
    time::{Instant, SystemTime},
};

use crate::{
    scripts::{ABANDON, Keys, LOOK, OPEN, SAVE, STEP, WITHDRAW, call},
    servers::{Reply, resp::Client},
    world::{Owner, Process, State},
};

const UNFAIR: f64 = 4.2e15;
const GATE: f64 = 9e15;

/// Watches every command, in one moment of the server with it.
pub(crate) struct Checks {
    client: Client,
    pub(crate) seed: u64,
    /// First token of each grant, and what it reserved.
    grants: HashMap<String, (u64, u64, bool)>,
    last: u64,
    /// The last token whose owner knows that its record is open.
    last_opened: u64,
    /// The wall clock as the day began.
    ahead: f64,
    /// Until when somebody else counts on the key.
    pub(crate) foreign_until: Instant,
}

#[derive(Debug)]
struct Moment {
    lock: String,
    /// Score and entry.
    queue: Vec<(f64, String)>,
    readers: Vec<String>,
    record: String,
}

impl Moment {
    fn of(replies: &[Reply]) -> Self {
        let queue = replies[1].texts();
        Self {
            lock: replies[0].to_string(),
            queue: queue
                .chunks(2)
                .map(|pair| (pair[1].parse().expect("a score"), pair[0].clone()))
                .collect(),
            readers: replies[2]
                .texts()
                .iter()
                .map(|who| who.split(' ').next().expect("an owner").to_owned())
                .collect(),
            record: replies[3].to_string(),
        }
    }

    /// The token of the record, and who opened it, if that is what it says.
    fn record(&self) -> Option<(u64, Option<&str>)> {
        let mut words = self.record.split(' ');
        let kind = words.next()?;
        let token = words.next()?.parse().ok()?;
        Some((token, words.next().filter(|_| kind == "o")))
    }

    /// Who holds alone.
    fn owner(&self) -> Option<&str> {
        let owner = self.lock.strip_prefix("1 ")?.split(' ').next()?;
        (owner != "*").then_some(owner)
    }
}

/// An owner that holds now, or may if it confirms, and the request that made it so.
struct Grant<'a> {
    got: &'a str,
    caller: &'a Owner,
    is_shared: bool,
    said: (&'a [String], &'a Moment),
}

struct Entry<'a> {
    is_offered: bool,
    owner: &'a str,
    inbox: &'a str,
    is_shared: bool,
}

fn read(entry: &str) -> Entry<'_> {
    let words: Vec<_> = entry.trim_start_matches('!').split(' ').collect();
    Entry {
        is_offered: entry.starts_with('!'),
        owner: words[0],
        inbox: words[1],
        is_shared: words[2] == "s",
    }
}

impl Checks {
    pub(crate) fn new(client: Client, seed: u64) -> Self {
        let (grants, last) = (HashMap::new(), 0);
        Self {
            client,
            seed,
            grants,
            last,
            last_opened: 0,
            ahead: wall_clock_ahead(),
            foreign_until: Instant::now(),
        }
    }

    pub(crate) fn grants(&self) -> usize {
        self.grants.len()
    }

    /// Runs a command, and checks what it did to the lock.
    pub(crate) fn run(
        &mut self,
        keys: &Keys,
        processes: &[Process],
        owners: &[Owner],
        by: usize,
        command: &[String],
    ) -> Reply {
        let text = |words: &[&str]| words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>();
        let look = [
            text(&["GET", keys.lock()]),
            text(&["ZRANGE", keys.queue(), "0", "-1", "WITHSCORES"]),
            text(&["ZRANGE", keys.readers(), "0", "-1"]),
            text(&["GET", &keys.record()]),
        ];
        call(&mut self.client, &text(&["MULTI"]));
        for question in &look {
            call(&mut self.client, question);
        }
        call(&mut self.client, command);
        for question in &look {
            call(&mut self.client, question);
        }
        let record = keys.record();
        let all = || keys.0.iter().chain([&record]);
        for key in all() {
            call(&mut self.client, &text(&["PTTL", key]));
        }
        let Reply::List(replies) = call(&mut self.client, &text(&["EXEC"])) else {
            panic!("it runs all or nothing");
        };
        let (mut before, after) = (Moment::of(&replies[..4]), Moment::of(&replies[5..9]));
        let answer = &replies[4];
        for (key, ttl) in all().zip(&replies[9..]) {
            assert_ne!(ttl.int(), -1, "seed {}: {key} has no end", self.seed);
        }
        self.record(&before, &after, &owners[by], command, answer);
        let found = matches!(answer, Reply::List(items) if items[0].to_string() == "=");
        if found || command[1] == *ABANDON || command[1] == *WITHDRAW {
            // It steps aside itself.
            let gone = &owners[by].name;
            before
                .queue
                .retain(|(_, entry)| read(entry).is_offered || read(entry).owner != gone);
        }
        if command[1] == *SAVE && after.record.starts_with("c ") {
            // There is what they wait for.
            before.queue.retain(|(_, entry)| !entry.ends_with(" r"));
        }
        let listens = |inbox: &str| {
            let listener = processes.iter().find(|p| p.channel == inbox);
            listener.is_some_and(|p| p.inbox.is_some())
        };
        let caller = &owners[by];
        let said = (&command[2..], &after);
        if let Some(owner) = after.owner()
            && before.owner() != Some(owner)
        {
            self.in_order(
                &before,
                &Grant {
                    got: owner,
                    caller,
                    is_shared: false,
                    said,
                },
                &listens,
            );
        }
        for reader in &after.readers {
            if after.lock.starts_with("1 *") && !before.readers.contains(reader) {
                self.in_order(
                    &before,
                    &Grant {
                        got: reader,
                        caller,
                        is_shared: true,
                        said,
                    },
                    &listens,
                );
            }
        }
        // Whoever is first and could be served has been served.
        let first = after.queue.iter().find(|(score, _)| *score < UNFAIR);
        if after.lock == "(nil)"
            && before.lock == "(nil)"
            && *answer != Reply::List(vec![Reply::Int(-1)])
            && [&*STEP, &*OPEN, &*LOOK, &*ABANDON, &*WITHDRAW].contains(&&command[1])
            && let Some((_, entry)) = first
            && !read(entry).is_offered
            && listens(read(entry).inbox)
        {
            panic!(
                "seed {}: nobody holds, and the first was not served: {entry}\n{}\n{said:?}\n{:?}",
                self.seed, caller.name, answer,
            );
        }
        answer.clone()
    }

    /// What a command may do to the record.
    fn record(
        &self,
        before: &Moment,
        after: &Moment,
        caller: &Owner,
        command: &[String],
        answer: &Reply,
    ) {
        let seed = self.seed;
        let said = format!(
            "seed {seed}: {}\n{command:?}\n{before:?}\n{after:?}",
            caller.name
        );
        let (was, is) = (before.record(), after.record());
        if command[1] == *OPEN {
            let granted = matches!(answer, Reply::List(items) if items[0].to_string() == "+");
            assert!(
                !granted || !before.record.starts_with("c "),
                "granted under a result: {said}"
            );
            if granted {
                let opened = is.and_then(|(_, opener)| opener);
                assert_eq!(opened, Some(&*caller.name), "nothing is open: {said}");
                assert_eq!(
                    after.owner(),
                    Some(&*caller.name),
                    "it does not hold: {said}"
                );
            } else {
                assert_eq!(before.record, after.record, "{said}");
            }
        } else if command[1] == *SAVE {
            if before.record != after.record {
                let keys: usize = command[2].parse().expect("a number");
                let token: u64 = command[keys + 4].parse().expect("a token");
                let mine = before.lock == "(nil)" || before.owner() == Some(&*caller.name);
                assert!(mine, "saved under another's lock: {said}");
                assert!(
                    token >= self.last_opened || !after.record.starts_with("c "),
                    "a stale save, after {}: {said}",
                    self.last_opened
                );
            }
        } else if command[1] != *WITHDRAW {
            assert_eq!(before.record, after.record, "{said}");
        }
        if let (Some((was, _)), Some((is, _))) = (was, is)
            && command[1] != *WITHDRAW
        {
            assert!(was <= is, "the token fell: {said}");
        }
    }

    /// A result has had its time, and with it what it knew of tokens.
    pub(crate) fn end_result(&mut self, keys: &Keys) {
        let record = keys.record();
        let get = ["GET", &record].map(str::to_owned);
        if call(&mut self.client, &get).to_string().starts_with("c ") {
            call(&mut self.client, &["DEL", &record].map(str::to_owned));
            self.last_opened = 0;
        }
    }

    /// Whoever left an open record may have begun.
    pub(crate) fn in_the_end(&self, record: &Reply, owners: &[Owner]) {
        let record = record.to_string();
        if let Some(opener) = record.strip_prefix("o ").and_then(|r| r.split(' ').nth(1)) {
            let opener = owners.iter().find(|owner| owner.name == opener);
            let opener = opener.expect("an owner");
            assert!(
                opener.told || opener.crashed,
                "seed {}: it never began: {record}",
                self.seed
            );
        }
    }

    /// A grant or offer goes to nobody before whom another stands who could have had it.
    fn in_order(&self, before: &Moment, grant: &Grant<'_>, listens: &impl Fn(&str) -> bool) {
        let &Grant {
            got,
            caller: owner,
            is_shared,
            said,
        } = grant;
        let entry = before
            .queue
            .iter()
            .find(|(_, entry)| read(entry).owner == got);
        let place = match entry {
            Some((score, _)) => *score,
            None => {
                assert_eq!(
                    owner.name, got,
                    "seed {}: served although not there",
                    self.seed
                );
                let ticket = owner.ticket.parse().unwrap_or(GATE);
                if owner.unfair {
                    ticket + UNFAIR
                } else {
                    ticket
                }
            }
        };
        // A process with an offer that lapsed hangs, as far as anybody can see.
        let hangs = |inbox: &str| {
            let offered = before.queue.iter().map(|(_, entry)| read(entry));
            offered
                .into_iter()
                .any(|e| e.is_offered && e.inbox == inbox)
        };
        for (score, entry) in &before.queue {
            let other = read(entry);
            if *score < place.min(UNFAIR)
                && other.owner != got
                && !other.is_offered
                && !(is_shared && other.is_shared)
                && listens(other.inbox)
                && !hangs(other.inbox)
            {
                panic!(
                    "seed {}: {got} ({place}) before {entry} ({score})\n{before:?}\n{said:?}",
                    self.seed
                );
            }
        }
    }

    /// An owner knows that it holds.
    pub(crate) fn granted(&mut self, owner: &Owner, token: u64, until: Instant) {
        if owner.loads && until > Instant::now() {
            self.last_opened = self.last_opened.max(token);
        }
        // Readers that hold together share one.
        let reserved = if owner.shared { 1 } else { owner.tokens };
        let last = token + reserved - 1;
        for (name, (first, end, is_shared)) in &self.grants {
            let together = *name == owner.name || (*is_shared && owner.shared);
            assert!(
                together || last < *first || *end < token,
                "seed {}: {} got the tokens of {name}",
                self.seed,
                owner.name
            );
        }
        self.grants
            .insert(owner.name.clone(), (token, last, owner.shared));
        // Readers confirm in any order, and an answer may come too late to say anything.
        if !owner.shared && until > Instant::now() && owner.revoked != Some(token) {
            assert!(
                token > self.last,
                "seed {}: {} got {token} after {}",
                self.seed,
                owner.name,
                self.last
            );
        }
        self.last = self.last.max(last);
    }

    /// One holder alone, or readers, among those whose lease has not ended as they know it.
    pub(crate) fn holders(&self, owners: &[Owner]) {
        let now = Instant::now();
        let holds = |o: &&Owner| matches!(o.state, State::Holds { until, token } if now < until && o.revoked != Some(token));
        let holders: Vec<_> = owners.iter().filter(holds).collect();
        let alone = holders.iter().filter(|owner| !owner.shared).count();
        let good = holders.is_empty() || self.foreign_until <= now;
        if !(good && (alone == 0 || holders.len() == 1)) && self.wall_clock_stepped() {
            println!(
                "seed {}: the wall clock was set, so leases ended early",
                self.seed
            );
            return;
        }
        assert!(
            good,
            "seed {}: holders beside a foreign one: {holders:#?}",
            self.seed
        );
        assert!(
            alone == 0 || holders.len() == 1,
            "seed {}: holders together: {holders:#?}",
            self.seed
        );
    }

    /// Redis ends leases by the wall clock: where that is set they end early, as the docs say. The
    /// machines that tests run on do set it.
    fn wall_clock_stepped(&self) -> bool {
        let since = wall_clock_ahead() - self.ahead;
        since.abs() > 0.001
    }
}

/// Seconds of the wall clock beyond those of the one that is never set. A pause between the two
/// looks would count, so the shortest of several counts.
fn wall_clock_ahead() -> f64 {
    static ORIGIN: LazyLock<(Instant, SystemTime)> =
        LazyLock::new(|| (Instant::now(), SystemTime::now()));
    let look = || {
        let before = ORIGIN.0.elapsed().as_secs_f64();
        let wall = match SystemTime::now().duration_since(ORIGIN.1) {
            Ok(later) => later.as_secs_f64(),
            Err(earlier) => -earlier.duration().as_secs_f64(),
        };
        let after = ORIGIN.0.elapsed().as_secs_f64();
        (after - before, wall - before)
    };
    LazyLock::force(&ORIGIN);
    let looks = (0..20).map(|_| look());
    looks
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(0.0, |(_, ahead)| ahead)
}
