//! The scripts as they are, run over a plain connection: what the server does without our client.

use std::sync::LazyLock;

use crate::servers::{Reply, redis::RedisServer, resp::Client};

/// As short as the tests are: offers and queues last a second and fifteen otherwise.
pub(crate) const OFFER: u64 = 40;
pub(crate) const QUEUE_LIFE: u64 = 500;

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(pub(crate) static $name: LazyLock<String> = LazyLock::new(|| read(include_str!(
            concat!("../../src/backend/redis/scripts/", $file, ".lua")
        )));)*
    };
}

scripts! {
    STEP = "step";
    CONFIRM = "confirm";
    RENEW = "renew";
    RENEW_SHARED = "renew_shared";
    RELEASE = "release";
    ABANDON = "abandon";
    LOOK = "look";
    GATE = "gate";
    FORCE_RELEASE = "force_release";
    OPEN = "open";
    SAVE = "save";
    WITHDRAW = "withdraw";
}

fn read(script: &str) -> String {
    let times = "local OFFER, QUEUE_LIFE = '1000', '15000'";
    let lib = include_str!("../../src/backend/redis/scripts/lib.lua");
    assert!(lib.contains(times), "the times stand elsewhere");
    let short = format!("local OFFER, QUEUE_LIFE = '{OFFER}', '{QUEUE_LIFE}'");
    let draw = include_str!("../../src/backend/redis/scripts/draw.lua");
    [
        (
            "--- abandon\n",
            include_str!("../../src/backend/redis/scripts/abandon.lua"),
        ),
        (
            "--- ask\n",
            include_str!("../../src/backend/redis/scripts/ask.lua"),
        ),
        (
            "--- record\n",
            include_str!("../../src/backend/redis/scripts/record.lua"),
        ),
        (
            "--- loaders\n",
            include_str!("../../src/backend/redis/scripts/loaders.lua"),
        ),
        ("--- draw\n", draw),
        ("--- lib\n", &lib.replace(times, &short)),
    ]
    .into_iter()
    .fold(script.to_owned(), |script, (name, part)| {
        script.replace(name, part)
    })
}

/// The keys of one lock: lock, queue, counter, readers.
pub(crate) struct Keys(pub(crate) [String; 4]);

impl Keys {
    pub(crate) fn new(lock: &str) -> Self {
        let beside = |part: &str| format!("{{{lock}}}:{part}");
        let counter = format!("token:{lock}");
        Self([lock.into(), beside("q"), counter, beside("r")])
    }

    pub(crate) fn lock(&self) -> &str {
        &self.0[0]
    }

    pub(crate) fn queue(&self) -> &str {
        &self.0[1]
    }

    pub(crate) fn readers(&self) -> &str {
        &self.0[3]
    }

    pub(crate) fn tombstone(&self, owner: &str) -> String {
        format!("{{{}}}:u:{owner}", self.lock())
    }

    pub(crate) fn record(&self) -> String {
        format!("{{{}}}:rec", self.lock())
    }

    /// `EVAL` of a script with all keys, and the tombstone of an owner if it looks for one.
    pub(crate) fn eval(&self, script: &str, tombstone: Option<&str>, args: &[&str]) -> Vec<String> {
        let mut keys = self.0.to_vec();
        if script == *CONFIRM {
            keys.truncate(2);
        } else if script == *RENEW {
            keys.truncate(1);
        }
        if [&*OPEN, &*SAVE, &*WITHDRAW]
            .iter()
            .any(|of_records| *of_records == script)
        {
            keys.push(self.record());
        }
        keys.extend(tombstone.map(|owner| self.tombstone(owner)));
        let mut command = vec!["EVAL".to_owned(), script.to_owned(), keys.len().to_string()];
        command.extend(keys);
        command.extend(args.iter().map(|&arg| arg.to_owned()));
        command
    }
}

pub(crate) fn call(client: &mut Client, command: &[String]) -> Reply {
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    client.call(&command).expect("the server answers")
}

/// A process as the server sees it: who listens to this channel.
pub(crate) struct Inbox {
    client: Client,
}

impl Inbox {
    pub(crate) fn open(server: &RedisServer, channel: &str) -> Self {
        let mut client = server.client();
        client.call(&["SUBSCRIBE", channel]).expect("subscribed");
        Self { client }
    }

    /// What was said until now: an answer to a ping follows it.
    pub(crate) fn messages(&mut self) -> Vec<String> {
        self.client.send(&["PING"]).expect("it listens");
        let mut messages = Vec::new();
        loop {
            let mut words = self.client.read().expect("it listens").texts();
            if words[0] == "pong" {
                return messages;
            }
            messages.push(words.pop().expect("a message"));
        }
    }
}
