//! A blocking socket: the least that a command can cost on this machine.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

/// A connection of one thread, which sends commands that are packed already,
/// any number at once.
pub(crate) struct Socket {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
    text: Vec<u8>,
}

impl Socket {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server takes a connection");
        stream.set_nodelay(true).expect("a TCP socket");
        Self {
            stream: BufReader::new(stream),
            line: Vec::new(),
            text: Vec::new(),
        }
    }

    /// Sends a command and reads its reply; gives its last text.
    pub(crate) fn call(&mut self, packed: &[u8]) -> &str {
        self.call_each(packed, 1, |_| {});
        std::str::from_utf8(&self.text).expect("text")
    }

    /// Sends commands and reads so many replies, the last text of each.
    pub(crate) fn call_each(&mut self, packed: &[u8], replies: usize, mut each: impl FnMut(&str)) {
        self.stream
            .get_mut()
            .write_all(packed)
            .expect("the server takes a command");
        for _ in 0..replies {
            self.read().expect("the server answers");
            each(std::str::from_utf8(&self.text).expect("text"));
        }
    }

    fn read(&mut self) -> io::Result<()> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        let text = std::str::from_utf8(&self.line)
            .unwrap_or_default()
            .trim_end();
        let number = || text[1..].parse::<i64>().unwrap_or(-1);
        match text.as_bytes().first() {
            Some(b'+' | b':' | b'_') => {}
            Some(b'$') => {
                if let Ok(length) = usize::try_from(number()) {
                    self.text.resize(length + 2, 0);
                    self.stream.read_exact(&mut self.text)?;
                    self.text.truncate(length);
                }
            }
            Some(b'*') => (0..number()).try_for_each(|_| self.read())?,
            _ => panic!("not the reply of a command that works: {text:?}"),
        }
        Ok(())
    }
}

/// A command as it goes over the wire.
pub(crate) fn pack<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}
