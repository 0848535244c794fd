//! Whose a connection is, as the kernel says.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, TcpStream},
};

/// Whether one of these processes has the far end of this connection over the loopback.
pub fn is_of(connection: &TcpStream, processes: &[u32]) -> bool {
    let (Ok(far), Ok(near)) = (connection.peer_addr(), connection.local_addr()) else {
        // It is over.
        return false;
    };
    // A container may have no such thing. The list costs its reader much time.
    let inode = inode(far, near).or_else(|_| inode_in_list(far, near));
    let inode = inode.unwrap_or_else(|error| panic!("the kernel does not tell sockets: {error}"));
    inode.is_some_and(|inode| {
        let name = format!("socket:[{inode}]");
        processes.iter().any(|process| has_file(*process, &name))
    })
}

/// Whether it is open in this process. One that has ended has none.
fn has_file(process: u32, name: &str) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    let mut targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    targets.any(|target| target.as_os_str() == name)
}

/// The number of the socket with this address of its own that is connected to that one; `None` if
/// it is gone. The kernel is asked for this one: a list of all takes it 10 ms and more.
#[cfg(target_os = "linux")]
pub fn inode(own: SocketAddr, other: SocketAddr) -> io::Result<Option<u32>> {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket,
    };

    /// `SOCK_DIAG_BY_FAMILY`
    const BY_FAMILY: u16 = 20;
    /// `NLM_F_REQUEST`
    const REQUEST: u16 = 1;
    /// `NLMSG_ERROR`
    const ERROR: u16 = 2;
    const AF_INET: u8 = 2;
    const IPPROTO_TCP: u8 = 6;

    // struct nlmsghdr
    let mut ask = Vec::new();
    ask.extend(72_u32.to_ne_bytes());
    ask.extend(BY_FAMILY.to_ne_bytes());
    ask.extend(REQUEST.to_ne_bytes());
    ask.extend([0; 8]);
    // struct inet_diag_req_v2, in every state
    ask.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    ask.extend([0xff; 4]);
    // struct inet_diag_sockid, on any interface and without a cookie
    ask.extend(own.port().to_be_bytes());
    ask.extend(other.port().to_be_bytes());
    for address in [own.ip(), other.ip()] {
        let IpAddr::V4(address) = address else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        ask.extend(address.octets());
        ask.extend([0; 12]);
    }
    ask.extend([0; 4]);
    ask.extend([0xff; 8]);

    let kernel = socket(
        AddressFamily::NETLINK,
        SocketType::RAW,
        Some(netlink::SOCK_DIAG),
    )?;
    send(&kernel, &ask, SendFlags::empty())?;
    let mut answer = [0; 1024];
    let (length, _) = recv(&kernel, &mut answer, RecvFlags::empty())?;
    let answer = &answer[..length];
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).ok_or_else(short)?;
        Ok::<_, io::Error>(u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
    };
    let kind = u16::from_ne_bytes(answer.get(4..6).ok_or_else(short)?.try_into().expect("two"));
    if kind == ERROR {
        let error = io::Error::from_raw_os_error(-(word(16)? as i32));
        return match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        };
    }
    // The last of struct inet_diag_msg.
    word(84).map(Some)
}

/// The same by the list of all sockets.
pub fn inode_in_list(own: SocketAddr, other: SocketAddr) -> io::Result<Option<u32>> {
    // Words of an address stand there as the machine has them in its memory.
    let shown = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => {
            let word = u32::from_ne_bytes(ip.octets());
            Ok(format!("{word:08X}:{:04X}", address.port()))
        }
        IpAddr::V6(_) => Err(io::Error::from(io::ErrorKind::Unsupported)),
    };
    let ends = [shown(own)?, shown(other)?];
    let list = fs::read_to_string("/proc/net/tcp")?;
    let mut lines = list.lines().map(|line| {
        let mut words = line.split_whitespace();
        let ends = [words.nth(1), words.next()];
        (ends, words.nth(6))
    });
    let found = lines.find(|(shown, _)| *shown == [Some(&*ends[0]), Some(&*ends[1])]);
    Ok(found.and_then(|(_, inode)| inode?.parse().ok()))
}

#[cfg(not(target_os = "linux"))]
pub fn inode(_: SocketAddr, _: SocketAddr) -> io::Result<Option<u32>> {
    Err(io::ErrorKind::Unsupported.into())
}
