//! What scripts do to a record in moments that hardly ever come.

use std::{thread::sleep, time::Duration};

use crate::{
    scripts::{ABANDON, Inbox, Keys, OPEN, SAVE, STEP, WITHDRAW, call},
    servers::{RedisServer, Reply, resp::Client},
};

struct Table {
    client: Client,
    keys: Keys,
    inbox: String,
}

impl Table {
    fn new(name: &str) -> Self {
        let keys = Keys::new(&format!("{name}-{:08x}", fastrand::u32(..)));
        Self {
            client: RedisServer::shared().client(),
            inbox: format!("{}:inbox", keys.lock()),
            keys,
        }
    }

    fn who(&self, owner: u32) -> String {
        format!("{owner:032x} {}", self.inbox)
    }

    fn run(&mut self, script: &str, args: &[&str]) -> Reply {
        call(&mut self.client, &self.keys.eval(script, None, args))
    }

    fn open(&mut self, owner: u32, ttl: &str, bytes: &str) -> Vec<String> {
        let who = self.who(owner);
        let args = [&*who, "x", ttl, "fq", "1", "", "r", "60000", bytes];
        self.run(&OPEN, &args).texts()
    }

    fn withdraw(&mut self, owner: u32, ttl: &str) {
        let who = self.who(owner);
        let entry = format!("{who} x {ttl} 1 r");
        self.run(&WITHDRAW, &[&who, &entry]);
    }

    fn save(&mut self, owner: u32, token: &str, verb: &str) -> i64 {
        let owner = format!("{owner:032x}");
        self.run(&SAVE, &[&owner, token, verb, "1", "60000", "done"])
            .int()
    }

    fn record(&mut self) -> String {
        let get = ["GET".to_owned(), self.keys.record()];
        call(&mut self.client, &get).to_string()
    }
}

/// A grant whose answer is late, and lapsed: its successor took it for an orphan. When it is undone
/// it is none any more, and its token stays for those before it.
#[test]
fn an_attempt_that_another_replaced_is_undone_inside_of_its_record() {
    let mut table = Table::new("replaced");
    let begun = table.open(1, "60000", "first")[1].clone();
    let who = table.who(1);
    table.run(&ABANDON, &[&who, &format!("{who} x 60000 1 r")]);
    table.open(2, "20", "unheard");
    sleep(Duration::from_millis(40));
    let third = table.open(3, "60000", "third");
    assert!(third[2].ends_with(" 0 unheard"), "{third:?}");
    table.withdraw(2, "20");
    let again = table.open(3, "60000", "third");
    assert_eq!(again[1], third[1]);
    assert!(again[2].starts_with("f "), "{again:?}");
    assert!(table.record().ends_with("third"));
    assert_eq!(table.save(3, &third[1], "f"), 1);
    assert_eq!(table.record(), format!("f {} ", third[1]));
    assert_eq!(table.save(1, &begun, "k"), -1, "a stale one saved");
}

/// What the move of a slot breaks off between a grant and its record is made good by asking again.
#[test]
fn a_grant_without_its_record_opens_it_when_it_asks_again() {
    let mut table = Table::new("torn");
    let who = table.who(1);
    let token = table.run(&STEP, &[&who, "x", "60000", "fq"]).to_string();
    let found = table.open(1, "60000", "begun");
    assert_eq!(found, ["+", &token, ""]);
    assert!(table.record().ends_with(" 0 begun"));
}

/// Of an offer that comes too late the key passes on, and the place is given up.
#[test]
fn an_offer_under_a_result_passes_on() {
    let server = RedisServer::shared();
    let mut table = Table::new("passed");
    let mut inbox = Inbox::open(server, &table.inbox);
    let who = table.who(1);
    let token = table.run(&STEP, &[&who, "x", "60000", "fq"]).to_string();
    table.open(2, "60000", "waits");
    let third = table.who(3);
    table.run(&STEP, &[&third, "x", "60000", "fq"]);
    // A plain release offers it; a result comes from elsewhere, as by an operator.
    table.run(&ABANDON, &[&who, &format!("{who} x 60000 1")]);
    let offered = inbox.messages();
    assert!(
        offered[0].starts_with(&format!("g {:032x} ", 2)),
        "{offered:?}"
    );
    let set = [
        "SET",
        &table.keys.record(),
        &format!("c {token} done"),
        "PX",
        "60000",
    ];
    call(&mut table.client, &set.map(str::to_owned));
    assert_eq!(
        table.open(2, "60000", "waits"),
        ["=", &format!("c {token} done")]
    );
    let offered = inbox.messages();
    assert!(
        offered[0].starts_with(&format!("g {:032x} ", 3)),
        "{offered:?}"
    );
    table.run(&ABANDON, &[&third, &format!("{third} x 60000 1")]);
    assert_eq!(
        server
            .command(&["EXISTS", table.keys.queue(), table.keys.lock()])
            .int(),
        0
    );
}
