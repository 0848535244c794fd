//! A blocking Redis client of a few lines: what a test asks does not go through what it tests, and
//! the server counts no command that the test did not send.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    Text(String),
    List(Vec<Reply>),
    Error(String),
}

impl Reply {
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// The number that it is, or spells.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => other.text().parse().expect("a number"),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("not a text: {other:?}"),
        }
    }

    pub fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            other => panic!("not a list: {other:?}"),
        }
    }

    /// The texts of a list.
    pub fn texts(&self) -> Vec<String> {
        self.list().iter().map(Self::to_string).collect()
    }

    /// The value of a name: in lines of `name:value`, or in a list of names and values.
    pub fn field(&self, name: &str) -> Option<&str> {
        match self {
            Self::Text(lines) => lines
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')),
            Self::List(items) => {
                let mut pairs = items.chunks_exact(2);
                pairs.find_map(|pair| (pair[0].text() == name).then(|| pair[1].text()))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("(nil)"),
            Self::Int(number) => number.fmt(f),
            Self::Text(text) | Self::Error(text) => f.write_str(text),
            Self::List(items) => f.debug_list().entries(items).finish(),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_nodelay(true)?;
        // Only reached by failures: a server that is paused for good.
        let mut this = Self {
            stream: BufReader::new(stream),
        };
        this.set_patience(Duration::from_secs(30));
        Ok(this)
    }

    /// How long to wait for an answer; 30 s by default.
    pub fn set_patience(&mut self, limit: Duration) {
        self.stream.get_ref().set_read_timeout(Some(limit)).unwrap();
    }

    /// Sends a command and reads the answer.
    pub fn call(&mut self, command: &[&str]) -> io::Result<Reply> {
        self.send(command)?;
        self.read()
    }

    /// Sends a command; its answer is read later.
    pub fn send(&mut self, command: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", command.len());
        for part in command {
            request += &format!("${}\r\n{part}\r\n", part.len());
        }
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Reads an answer, or a message of a channel.
    pub fn read(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let (Some(kind), Some(rest)) = (line.get(..1), line.get(1..)) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let rest = rest.trim_end();
        let number = || rest.parse::<i64>().map_err(|_| strange(&line));
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    Reply::List((0..length).map(|_| self.read()).collect::<Result<_, _>>()?)
                }
            },
            _ => return Err(strange(&line)),
        })
    }
}

fn strange(line: &str) -> io::Error {
    io::Error::other(format!("not a reply: {line:?}"))
}
