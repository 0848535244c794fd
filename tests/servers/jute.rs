//! As much of ZooKeeper's protocol as tests need to look at a server and to act on it, blocking.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const GET_CHILDREN: i32 = 8;
const SYNC: i32 = 9;
const AUTH: i32 = 100;
const CLOSE: i32 = -11;

const OK: i32 = 0;
const NO_NODE: i32 = -101;

/// A session of its own, closed on drop.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    xid: i32,
}

impl Session {
    pub fn open(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut this = Self { stream, xid: 0 };
        let mut hello = vec![0; 4 + 8];
        hello.extend(20_000_i32.to_be_bytes());
        hello.extend([0; 8]);
        put_bytes(&mut hello, &[0; 16]);
        this.write(&hello)?;
        this.read()?;
        Ok(this)
    }

    /// Logs in with the scheme `digest`.
    pub fn log_in(&mut self, user: &str) {
        let mut body = vec![0; 4];
        put_bytes(&mut body, b"digest");
        put_bytes(&mut body, user.as_bytes());
        self.ask(AUTH, &body);
    }

    /// The names under this path, sorted; none if it is not there.
    pub fn children(&mut self, path: &str) -> Vec<String> {
        self.call(SYNC, path, &[]);
        let (error, answer) = self.call(GET_CHILDREN, path, &[0]);
        if error == NO_NODE {
            return Vec::new();
        }
        assert_eq!(error, OK, "children of {path}");
        let mut answer = &answer[..];
        let mut names: Vec<_> = (0..take_int(&mut answer))
            .map(|_| String::from_utf8(take_bytes(&mut answer)).unwrap())
            .collect();
        names.sort();
        names
    }

    pub fn exists(&mut self, path: &str) -> bool {
        self.call(EXISTS, path, &[0]).0 == OK
    }

    pub fn data(&mut self, path: &str) -> Vec<u8> {
        let (error, answer) = self.call(GET_DATA, path, &[0]);
        assert_eq!(error, OK, "data of {path}");
        take_bytes(&mut &answer[..])
    }

    /// Creates a persistent node that everybody may use; its error code.
    pub fn create(&mut self, path: &str) -> i32 {
        let mut rest = Vec::new();
        put_bytes(&mut rest, b"");
        rest.extend(1_i32.to_be_bytes());
        rest.extend(31_i32.to_be_bytes());
        put_bytes(&mut rest, b"world");
        put_bytes(&mut rest, b"anyone");
        rest.extend(0_i32.to_be_bytes());
        self.call(CREATE, path, &rest).0
    }

    /// Its error code.
    pub fn delete(&mut self, path: &str) -> i32 {
        self.call(DELETE, path, &(-1_i32).to_be_bytes()).0
    }

    fn call(&mut self, op: i32, path: &str, rest: &[u8]) -> (i32, Vec<u8>) {
        let mut body = Vec::new();
        put_bytes(&mut body, path.as_bytes());
        body.extend(rest);
        self.ask(op, &body)
    }

    fn ask(&mut self, op: i32, body: &[u8]) -> (i32, Vec<u8>) {
        self.xid += 1;
        let xid = if op == AUTH { -4 } else { self.xid };
        let mut request = Vec::new();
        request.extend(xid.to_be_bytes());
        request.extend(op.to_be_bytes());
        request.extend(body);
        self.write(&request).unwrap();
        let answer = self.read().unwrap();
        let mut rest = &answer[..];
        assert_eq!(take_int(&mut rest), xid);
        rest = &rest[8..];
        (take_int(&mut rest), rest.to_vec())
    }

    fn write(&mut self, packet: &[u8]) -> io::Result<()> {
        let mut framed = (packet.len() as i32).to_be_bytes().to_vec();
        framed.extend(packet);
        self.stream.write_all(&framed)
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut packet = vec![0; i32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut packet)?;
        Ok(packet)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut request = (self.xid + 1).to_be_bytes().to_vec();
        request.extend(CLOSE.to_be_bytes());
        // The server may be gone.
        let _ = self.write(&request).and_then(|()| self.read());
    }
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as i32).to_be_bytes());
    to.extend(bytes);
}

fn take_int(from: &mut &[u8]) -> i32 {
    let (int, rest) = from.split_first_chunk().expect("four bytes");
    *from = rest;
    i32::from_be_bytes(*int)
}

fn take_bytes(from: &mut &[u8]) -> Vec<u8> {
    let length = usize::try_from(take_int(from)).unwrap_or(0);
    let (bytes, rest) = from.split_at(length);
    *from = rest;
    bytes.to_vec()
}
