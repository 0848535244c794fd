//! A Redis server whose replies are spoilt.

use std::{net::SocketAddr, sync::OnceLock};

use tower_lock::{BackendError, RedisBackend};

use super::{
    drill::{ANSWER, Subject},
    relay::{Relay, Wire},
    runtime,
};
use crate::{
    entries::{Entry, watch::SECRET},
    servers::RedisServer,
};

pub const ENTRY: Entry = Entry {
    name: "redis",
    run,
    words: &[
        "m\0",
        "m\x01",
        ".",
        "\x07",
        "\x0f",
        "x",
        "_",
        "d",
        "t\x02",
        "T\x03",
        "r\x05+OK\r\n",
    ],
};

pub const WIRE: Wire = Wire {
    frame: |bytes| frame(bytes, 0),
    mistype,
};

/// Replies of every kind, in the place of others.
fn replies() -> &'static [Vec<u8>] {
    static REPLIES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    REPLIES.get_or_init(|| {
        let text = [
            ":0",
            ":1",
            ":-1",
            ":2",
            ":9223372036854775807",
            ":-9223372036854775808",
            ":9223372036854775808",
            ":",
            ":x",
            "$-1",
            "$-2",
            "$0\r\n",
            "$1\r\n1",
            "$2\r\n-1",
            "$3\r\nabc",
            "$2147483648",
            "$9223372036854775807",
            "$-9223372036854775808",
            "*-1",
            "*0",
            "*1\r\n:0",
            "*1\r\n:-1",
            "*1\r\n*0",
            "*2\r\n+=\r\n$-1",
            "*2\r\n+=\r\n$4\r\nc 1 ",
            "*2\r\n+=\r\n$5\r\nc 1 x",
            "*3\r\n++\r\n:1\r\n$-1",
            "*3\r\n++\r\n:0\r\n$3\r\nxyz",
            "*5\r\n:0\r\n:1\r\n$1\r\nt\r\n:0\r\n:1",
            "*5\r\n:0\r\n:-9223372036854775808\r\n$0\r\n\r\n:0\r\n:0",
            "*5\r\n:0\r\n:9223372036854775807\r\n$1\r\nt\r\n:1\r\n:1",
            "*2147483648",
            "*9223372036854775807",
            "*4096\r\n*4096\r\n*4096\r\n*4096",
            "_",
            "_x",
            "#t",
            "#f",
            "#x",
            ",1.5",
            ",nan",
            ",inf",
            ",-1e400",
            ",x",
            "(123456789012345678901234567890",
            "%0",
            "%1\r\n+a\r\n:1",
            "%-1",
            "%4611686018427387904",
            "%9223372036854775807",
            "~0",
            "~1\r\n:1",
            "~2147483648",
            "|0",
            "|1\r\n+a\r\n+b\r\n:1",
            "|-1",
            "|9223372036854775807",
            "!6\r\ns3cr3t",
            "!-1",
            "=10\r\ntxt:s3cr3t",
            "=3\r\nabc",
            "=-1",
            ">0",
            ">-1",
            ">1\r\n+s3cr3t",
            ">2\r\n+invalidate\r\n_",
            ">3\r\n+message\r\n+s3cr3t\r\n+s3cr3t",
            ">3\r\n$7\r\nmessage\r\n$-1\r\n:1",
            ">1\r\n+message",
            ">2\r\n+subscribe\r\n:1",
            ">3\r\n+unsubscribe\r\n+x\r\n:0",
            ">2\r\n:1\r\n:1",
            ">2147483648",
            "+",
            "+OK",
            "+s3cr3t",
            "+QUEUED",
            "-",
            "-ERR",
            "-ERR s3cr3t",
            "-s3cr3t",
            "-s3cr3t s3cr3t",
            "-NOSCRIPT s3cr3t",
            "-MOVED",
            "-MOVED 1",
            "-MOVED 1 s3cr3t:1",
            "-MOVED 99999 127.0.0.1:1",
            "-ASK 1 127.0.0.1:1",
            "-ASK s3cr3t",
            "-TRYAGAIN",
            "-CLUSTERDOWN s3cr3t",
            "-READONLY s3cr3t",
            "-LOADING s3cr3t",
            "-NOAUTH s3cr3t",
            "-WRONGPASS s3cr3t",
            "-NOPERM s3cr3t",
            "-NOPERM User 's3cr3t' may not run 's3cr3t'",
            "-NOPERM this 'evalsha' command",
            "-OOM s3cr3t",
            "-BUSY s3cr3t",
            "-MASTERDOWN",
            "-MISCONF s3cr3t",
            "-NOREPLICAS",
            "-WRONGTYPE s3cr3t",
            "-EXECABORT s3cr3t",
            "-UNKNOWN\u{1b}[31m s3cr3t",
            "$6\r\ns3cr3t",
            "$13\r\ns3cr3t: s3cr3t",
            "$14\r\nSET: OOM s3cr3t",
            "$17\r\nPUBLISH: s3cr3t k",
            "\0",
            "",
            "\u{e9}",
            "HTTP/1.1 400 s3cr3t",
        ];
        let mut replies: Vec<_> = text
            .iter()
            .map(|text| [text.as_bytes(), b"\r\n"].concat())
            .collect();
        replies.push(b"*1\r\n".repeat(90));
        replies.push(b"*1\r\n".repeat(5000));
        replies.push(b"%1\r\n".repeat(5000));
        replies.push(
            [
                b"$200000\r\n".to_vec(),
                vec![b'x'; 200_000],
                b"\r\n".to_vec(),
            ]
            .concat(),
        );
        replies.push(
            [
                b"+".to_vec(),
                SECRET.repeat(10_000).into_bytes(),
                b"\r\n".to_vec(),
            ]
            .concat(),
        );
        replies.push(b"$3\r\n\xff\xfe\xfd\r\n".to_vec());
        replies
    })
}

/// The length of a reply, however deep.
fn frame(bytes: &[u8], depth: usize) -> Option<usize> {
    assert!(depth < 64, "a server of ours does not nest so deep");
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || {
        let text = std::str::from_utf8(&bytes[1..end - 2]).ok()?;
        text.parse::<i64>().ok()
    };
    let count = |factor: usize, more: usize| {
        let count = usize::try_from(number().unwrap_or(0)).unwrap_or(0);
        let mut at = end;
        for _ in 0..count * factor + more {
            at += frame(&bytes[at..], depth + 1)?;
        }
        Some(at)
    };
    match bytes[0] {
        b'$' | b'!' | b'=' => match usize::try_from(number().unwrap_or(-1)) {
            Ok(length) => Some(end + length + 2).filter(|all| *all <= bytes.len()),
            Err(_) => Some(end),
        },
        b'*' | b'~' | b'>' => count(1, 0),
        b'%' => count(2, 0),
        b'|' => count(2, 1),
        _ => Some(end),
    }
}

/// Where each part of a reply begins and ends, the whole of it first.
fn parts(bytes: &[u8], from: usize, found: &mut Vec<(usize, usize)>) -> Option<usize> {
    let rest = &bytes[from..];
    let length = frame(rest, 0)?;
    found.push((from, from + length));
    if matches!(rest[0], b'*' | b'~' | b'>' | b'%' | b'|') {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")? + 2;
        let mut at = from + end;
        while at < from + length {
            at = parts(bytes, at, found)?;
        }
    }
    Some(from + length)
}

/// One of its parts, or the whole, is another reply.
fn mistype(frame: &[u8], which: u8, what: u8) -> Vec<u8> {
    let mut found = Vec::new();
    parts(frame, 0, &mut found);
    let reply = &replies()[usize::from(what) % replies().len()];
    match found.get(usize::from(which) % found.len().max(1)) {
        Some((start, end)) => [&frame[..*start], reply, &frame[*end..]].concat(),
        None => reply.clone(),
    }
}

/// A Redis server tells a token as a number.
pub fn tells(token: u64) -> Vec<Vec<u8>> {
    vec![token.to_string().into_bytes()]
}

async fn connect(address: SocketAddr) -> Result<RedisBackend, BackendError> {
    let builder = RedisBackend::builder(&format!("redis://{address}"));
    builder.with_operation_timeout(ANSWER).connect().await
}

fn run(data: &[u8]) {
    runtime().block_on(async {
        static CLEAN: tokio::sync::OnceCell<RedisBackend> = tokio::sync::OnceCell::const_new();
        let server = RedisServer::shared();
        let clean = async || {
            RedisBackend::connect(&server.url())
                .await
                .expect("it answers well")
        };
        let clean = CLEAN.get_or_init(clean).await.clone();
        let relay = Relay::start(WIRE, server.address(), data).await;
        let connect = async || connect(relay.address()).await;
        let subject = Subject {
            clean,
            connect,
            tells,
            has_session: false,
        };
        subject.drill(std::slice::from_ref(&relay)).await;
    });
}
