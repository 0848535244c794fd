//! Processes that end with the one that started them, however that ended.
//!
//! The demonstration holds one end of its children's standard input and writes nothing to it.
//! The system closes that end with the process, after a `kill -9` too.

use std::{
    io,
    process::{ExitCode, Stdio},
    thread,
};

use tokio::{process::Command, sync::oneshot};

use crate::{BoxError, args::Leash};

/// Ends this process as soon as its standard input does.
pub(crate) fn exit_with_stdin() -> io::Result<()> {
    // One that is paused reads nothing. Linux can be asked for more.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    when_stdin_ends(|| std::process::exit(1))
}

/// Runs a program that knows nothing of this, and kills it as soon as the standard input ends.
pub(crate) async fn run(args: Leash) -> Result<ExitCode, BoxError> {
    let (ends, ended) = oneshot::channel::<()>();
    when_stdin_ends(|| drop(ends))?;
    let mut child = Command::new(args.program)
        .args(args.args)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    tokio::select! {
        status = child.wait() => {
            let code = status?.code().and_then(|code| u8::try_from(code).ok());
            Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
        }
        _ = ended => {
            child.kill().await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// On a thread of its own: one of tokio's that reads would keep the runtime from ending.
fn when_stdin_ends(then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let read = move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        then();
    };
    thread::Builder::new()
        .name("leash".into())
        .spawn(read)
        .map(drop)
}
