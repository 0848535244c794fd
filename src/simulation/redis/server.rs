//! A Redis server: the crate's own scripts, run by Lua over a keyspace in memory.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::{
    Time,
    keyspace::{Keyspace, Reply},
    twist::Twist,
};

pub(super) struct Server {
    pub(super) data: Rc<RefCell<Keyspace>>,
    twist: Twist,
    /// By digest.
    scripts: BTreeMap<String, String>,
    connections: BTreeMap<u64, Vec<u8>>,
    /// Of this life of it.
    run_id: u64,
    /// How often a key was taken away.
    pub(super) forced: u64,
    /// Those that were closed here.
    closed: BTreeSet<u64>,
}

/// What a server does to its connections.
#[derive(Debug)]
pub(super) enum Does {
    Sends(u64, Vec<u8>),
    Closes(u64),
}

impl Server {
    pub(super) fn new(twist: Twist) -> Self {
        let data = ENGINE.with(|engine| engine.data.clone());
        data.replace(Keyspace::default());
        Self {
            data,
            twist,
            scripts: BTreeMap::new(),
            connections: BTreeMap::new(),
            run_id: 0,
            forced: 0,
            closed: BTreeSet::new(),
        }
    }

    pub(super) fn restart(&mut self, empty: bool) {
        self.scripts.clear();
        self.connections.clear();
        self.run_id += 1;
        let mut data = self.data.borrow_mut();
        data.subscribers.clear();
        if empty {
            data.clear();
        }
    }

    pub(super) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Nothing more comes from there, nor is heard there.
    pub(super) fn close(&mut self, line: u64) {
        self.closed.insert(line);
        self.connections.remove(&line);
        for hearers in self.data.borrow_mut().subscribers.values_mut() {
            hearers.remove(&line);
        }
    }

    pub(super) fn takes(&mut self, line: u64, bytes: &[u8]) {
        if !self.closed.contains(&line) {
            let buffer = self.connections.entry(line).or_default();
            buffer.extend_from_slice(bytes);
        }
    }

    /// Executes the next command of a connection, if there is a whole one.
    pub(super) fn executes(&mut self, now: Time, line: u64) -> Option<Vec<Does>> {
        let buffer = self.connections.get_mut(&line)?;
        let (args, used) = request(buffer)?;
        buffer.drain(..used);
        self.data.borrow_mut().now = now;
        let mut does = Vec::new();
        self.answer(line, &args, &mut does);
        for (hearer, channel, message) in std::mem::take(&mut self.data.borrow_mut().published) {
            let push = [b"message".to_vec(), channel, message];
            does.push(Does::Sends(hearer, pushed(&push)));
        }
        Some(does)
    }

    fn answer(&mut self, line: u64, args: &[Vec<u8>], does: &mut Vec<Does>) {
        let words: Vec<_> = args.iter().map(|a| String::from_utf8_lossy(a)).collect();
        let words: Vec<&str> = words.iter().map(|word| &**word).collect();
        let reply = match words.as_slice() {
            ["HELLO", "3", ..] => {
                let bulk = |text: &str| Reply::Bulk(text.into());
                does.push(Does::Sends(line, b"%1\r\n".to_vec()));
                for part in [bulk("proto"), Reply::Int(3)] {
                    does.push(Does::Sends(line, encoded(&part)));
                }
                return;
            }
            ["CLIENT", "SETINFO", ..] => Reply::Status("OK"),
            ["CLIENT", "ID"] => Reply::Int(line as i64),
            ["CLIENT", "KILL", "ID", "0"] => {
                Reply::Error("ERR client-id should be greater than 0".into())
            }
            ["CLIENT", "KILL", "ID", id] => {
                let killed: u64 = id.parse().unwrap_or(0);
                if self.connections.contains_key(&killed) && self.twist != Twist::KillsNothing {
                    self.close(killed);
                    does.push(Does::Closes(killed));
                    Reply::Int(1)
                } else {
                    Reply::Int(0)
                }
            }
            ["INFO"] => Reply::Bulk(
                format!(
                    "run_id:{:040}\r\nrole:master\r\nredis_mode:standalone\r\nmaxmemory:0\r\n",
                    self.run_id
                )
                .into(),
            ),
            ["PING"] => Reply::Status("PONG"),
            ["SUBSCRIBE", channel] => {
                let mut data = self.data.borrow_mut();
                let channel = channel.as_bytes().to_vec();
                data.subscribers
                    .entry(channel.clone())
                    .or_default()
                    .insert(line);
                let push = [b"subscribe".to_vec(), channel];
                let mut bytes = pushed(&push);
                // The number of channels is a number.
                bytes.splice(..2, *b">3");
                bytes.extend_from_slice(b":1\r\n");
                does.push(Does::Sends(line, bytes));
                return;
            }
            ["EVAL", code, ..] => {
                let digest = ::redis::Script::new(code).get_hash().to_owned();
                self.scripts
                    .entry(digest)
                    .or_insert_with(|| self.twist.of(code));
                let code = self.twist.of(code);
                self.eval(&code, &args[2..])
            }
            ["EVALSHA", digest, ..] => match self.scripts.get(*digest).cloned() {
                Some(code) => self.eval(&code, &args[2..]),
                None => Reply::Error("NOSCRIPT No matching script. Please use EVAL.".into()),
            },
            _ => self.data.borrow_mut().run(args),
        };
        does.push(Does::Sends(line, encoded(&reply)));
    }

    fn eval(&mut self, code: &str, args: &[Vec<u8>]) -> Reply {
        if code.starts_with("-- Takes the key from whoever") {
            self.forced += 1;
        }
        let keys = String::from_utf8_lossy(&args[0]).parse().unwrap_or(0);
        ENGINE.with(|engine| {
            engine
                .eval(code, &args[1..=keys], &args[keys + 1..])
                .unwrap_or_else(|error| Reply::Error(format!("ERR {error}").replace('\n', " ")))
        })
    }
}

thread_local! {
    static ENGINE: Engine = Engine::new().expect("Lua starts");
}

/// One for a thread, since it takes longer to make than a history.
struct Engine {
    lua: Lua,
    functions: RefCell<BTreeMap<String, Function>>,
    data: Rc<RefCell<Keyspace>>,
}

impl Engine {
    fn new() -> mlua::Result<Self> {
        let lua = Lua::new();
        let data = Rc::new(RefCell::new(Keyspace::default()));
        let redis = lua.create_table()?;
        let keyspace = data.clone();
        let call = lua.create_function(move |lua, args: MultiValue| {
            match keyspace.borrow_mut().run(&words(args)) {
                Reply::Error(error) => Err(mlua::Error::RuntimeError(error)),
                reply => to_lua(lua, reply),
            }
        })?;
        redis.set("call", call)?;
        let keyspace = data.clone();
        let pcall = lua.create_function(move |lua, args: MultiValue| {
            let reply = keyspace.borrow_mut().run(&words(args));
            to_lua(lua, reply)
        })?;
        redis.set("pcall", pcall)?;
        lua.globals().set("redis", redis)?;
        Ok(Self {
            lua,
            functions: RefCell::default(),
            data,
        })
    }

    fn eval(&self, code: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> mlua::Result<Reply> {
        let known = self.functions.borrow().get(code).cloned();
        let function = match known {
            Some(function) => function,
            None => {
                let function = self.lua.load(code).into_function()?;
                let mut functions = self.functions.borrow_mut();
                functions.insert(code.to_owned(), function.clone());
                function
            }
        };
        for (name, values) in [("KEYS", keys), ("ARGV", args)] {
            let table = self.lua.create_table()?;
            for (n, value) in values.iter().enumerate() {
                table.raw_set(n + 1, self.lua.create_string(value)?)?;
            }
            self.lua.globals().set(name, table)?;
        }
        from_lua(function.call(())?)
    }
}

fn words(args: MultiValue) -> Vec<Vec<u8>> {
    args.into_iter()
        .map(|value| match value {
            Value::String(text) => text.as_bytes().to_vec(),
            Value::Integer(n) => n.to_string().into_bytes(),
            // As `%.17g`, which Redis uses: exact for the whole numbers of the scripts.
            Value::Number(n) => format!("{n}").into_bytes(),
            other => format!("{other:?}").into_bytes(),
        })
        .collect()
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    Ok(match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Int(n) => Value::Number(n as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(&bytes)?),
        Reply::Status(text) => {
            let table = lua.create_table()?;
            table.set("ok", text)?;
            Value::Table(table)
        }
        Reply::Error(text) => {
            let table = lua.create_table()?;
            table.set("err", text)?;
            Value::Table(table)
        }
        Reply::List(items) => {
            let table = lua.create_table()?;
            for (n, item) in items.into_iter().enumerate() {
                table.raw_set(n + 1, to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
    })
}

fn from_lua(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Integer(n) => Reply::Int(n),
        Value::Number(n) => Reply::Int(n as i64),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => list(&table)?,
        _ => Reply::Nil,
    })
}

fn list(table: &Table) -> mlua::Result<Reply> {
    if let Value::String(error) = table.raw_get("err")? {
        return Ok(Reply::Error(error.to_string_lossy()));
    }
    let mut items = Vec::new();
    loop {
        // It ends with the first that is nil, as in Redis.
        match table.raw_get(items.len() + 1)? {
            Value::Nil => return Ok(Reply::List(items)),
            value => items.push(from_lua(value)?),
        }
    }
}

/// The first whole request, and how long it is.
fn request(buffer: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let count = number(buffer, &mut at)?;
    let mut args = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(buffer, &mut at)?;
        args.push(buffer.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= buffer.len()).then_some((args, at))
}

/// `*3\r\n` or `$3\r\n`.
fn number(buffer: &[u8], at: &mut usize) -> Option<usize> {
    let line = buffer.get(*at + 1..)?;
    let end = line.windows(2).position(|two| two == b"\r\n")?;
    *at += end + 3;
    std::str::from_utf8(&line[..end]).ok()?.parse().ok()
}

fn encoded(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(reply, &mut bytes);
    bytes
}

fn encode(reply: &Reply, bytes: &mut Vec<u8>) {
    match reply {
        Reply::Nil => bytes.extend_from_slice(b"_\r\n"),
        Reply::Int(n) => bytes.extend_from_slice(format!(":{n}\r\n").as_bytes()),
        Reply::Status(text) => bytes.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Reply::Error(text) => bytes.extend_from_slice(format!("-{text}\r\n").as_bytes()),
        Reply::Bulk(text) => {
            bytes.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
            bytes.extend_from_slice(text);
            bytes.extend_from_slice(b"\r\n");
        }
        Reply::List(items) => {
            bytes.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
            items.iter().for_each(|item| encode(item, bytes));
        }
    }
}

fn pushed(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!(">{}\r\n", parts.len()).into_bytes();
    for part in parts {
        encode(&Reply::Bulk(part.clone()), &mut bytes);
    }
    bytes
}
