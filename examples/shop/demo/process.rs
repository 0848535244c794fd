//! Processes of the demonstration. None outlives it.

use std::{ffi::OsStr, io, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// This program with these arguments, one of which must make it end with its standard input.
///
/// It is in a process group of its own, so that Ctrl-C reaches the demonstration only, which
/// then ends the others in order.
pub(super) fn this_program<S: AsRef<OsStr>>(
    args: impl IntoIterator<Item = S>,
) -> io::Result<Command> {
    let mut command = with_args(args)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

#[cfg(not(test))]
fn with_args<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Ok(command)
}

#[cfg(test)]
use super::tests::with_args;

/// Reads the output up to a line of which `find` makes something; `None` if there is none.
/// What comes later is read and forgotten, or the process would find its output closed.
pub(super) async fn first<T>(
    child: &mut Child,
    find: impl Fn(&str) -> Option<T>,
) -> io::Result<Option<T>> {
    let Some(stdout) = child.stdout.take() else {
        return Ok(None);
    };
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        if let Some(found) = find(&line) {
            tokio::spawn(forget(lines));
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn forget(mut lines: Lines<BufReader<ChildStdout>>) {
    while let Ok(Some(_)) = lines.next_line().await {}
}

/// What a process may be told from outside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    /// Ends, in its own way.
    Terminate,
    /// As Ctrl-C.
    #[cfg(test)]
    Interrupt,
    /// Stops in the middle of whatever it does.
    Pause,
    /// Goes on where it was.
    Resume,
}

#[cfg(unix)]
pub(super) fn send(child: &Child, signal: Signal) -> io::Result<()> {
    use rustix::process::{Pid, Signal as Number, kill_process};
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let number = match signal {
        Signal::Terminate => Number::TERM,
        #[cfg(test)]
        Signal::Interrupt => Number::INT,
        Signal::Pause => Number::STOP,
        Signal::Resume => Number::CONT,
    };
    Ok(kill_process(pid.ok_or(io::ErrorKind::NotFound)?, number)?)
}

#[cfg(not(unix))]
pub(super) fn send(_: &Child, _: Signal) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
