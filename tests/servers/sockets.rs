//! Whose a connection is, as the kernel says.

use std::{
    collections::HashSet,
    fs,
    net::TcpStream,
};

/// The ends of connections: their own port, and the port of the other end. All are on the loopback.
pub type Ends = HashSet<(u16, u16)>;

/// The ends that these processes have.
pub fn of(processes: &[u32]) -> Ends {
    let files = processes.iter().flat_map(|process| {
        // One that has ended has none.
        fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten()
    });
    let sockets: HashSet<String> = files
        .filter_map(|file| {
            let target = fs::read_link(file.ok()?.path()).ok()?;
            let target = target.to_str()?.strip_prefix("socket:[")?;
            Some(target.strip_suffix(']')?.to_owned())
        })
        .collect();
    let mut ends = Ends::new();
    // A list that changes while it is read may lack a line.
    for table in ["tcp", "tcp6", "tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        ends.extend(table.lines().skip(1).filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let port = |field: &str| u16::from_str_radix(field.rsplit_once(':')?.1, 16).ok();
            let is_theirs = sockets.contains(*fields.get(9)?);
            is_theirs.then_some((port(fields[1])?, port(fields[2])?))
        }));
    }
    ends
}

/// Whether the far end of this connection is one of these.
pub fn has(ends: &Ends, connection: &TcpStream) -> bool {
    match (connection.peer_addr(), connection.local_addr()) {
        (Ok(far), Ok(near)) => ends.contains(&(far.port(), near.port())),
        // It has gone.
        _ => false,
    }
}
