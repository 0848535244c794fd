//! A process of a test: a server, a client in another language, a second copy of the test binary.

use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, ErrorKind, Write},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::heir;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How long a program may take to answer on a busy machine. Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many of the last lines a failure shows.
const SHOWN: usize = 30;

/// A child process, spoken to by lines over its standard input and output. Killed on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Mutex<Receiver<String>>,
    last: Arc<Mutex<VecDeque<String>>>,
    paused: AtomicBool,
    /// Waited for: its pid may be another's by now.
    gone: bool,
}

impl Process {
    /// Starts it. `remedy` says what to do if there is no such program.
    pub fn spawn(command: &mut Command, remedy: &str) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("{name} is missing: {remedy}")
            }
            Err(error) => panic!("{name}: {error}"),
        };
        heir::inherits(child.id());
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, lines) = channel();
        // Reads on after the last wait, or the process would block on a full pipe.
        thread::spawn({
            let last = last.clone();
            move || {
                for line in stdout.split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    let mut last = last.lock().unwrap();
                    last.push_back(line.clone());
                    if last.len() > SHOWN {
                        last.pop_front();
                    }
                    drop(last);
                    // Nobody may want to read it.
                    let _ = sender.send(line);
                }
            }
        });
        Self {
            name,
            child,
            stdin,
            lines: Mutex::new(lines),
            last,
            paused: AtomicBool::new(false),
            gone: false,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub fn send(&mut self, line: &str) {
        writeln!(self.stdin, "{line}")
            .and_then(|()| self.stdin.flush())
            .unwrap_or_else(|error| panic!("{} does not read: {error}\n{}", self.name, self.log()));
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        self.line_within(PATIENCE)
            .unwrap_or_else(|| panic!("{} says nothing more:\n{}", self.name, self.log()))
    }

    /// The next line, or `None` if there is none in time.
    pub fn line_within(&mut self, limit: Duration) -> Option<String> {
        self.lines.lock().unwrap().recv_timeout(limit).ok()
    }

    /// Waits for a line that contains this. Whether it came before the end of its output.
    pub fn wait_for(&mut self, text: &str) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.lock().unwrap().recv_timeout(left) {
                Ok(line) if line.contains(text) => return true,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} does not say {text:?}:\n{}", self.name, self.log())
                }
            }
        }
    }

    /// The last lines that it printed.
    pub fn log(&self) -> String {
        Vec::from(self.last.lock().unwrap().clone()).join("\n")
    }

    pub fn is_running(&self) -> bool {
        let now = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !self.gone && matches!(waitid(self.pid(), now), Ok(None))
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    /// SIGKILL; returns when it has ended.
    pub fn kill(&mut self) {
        if self.gone {
            return;
        }
        // It may have ended by itself. A stopped process is killed too.
        let _ = self.child.kill();
        let _ = self.reap();
    }

    /// The heir knows of it for as long as the pid is its own.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        let _ = waitid(self.pid(), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        heir::loses(self.child.id());
        self.gone = true;
        self.child.wait()
    }

    fn pid(&self) -> WaitId<'static> {
        WaitId::Pid(Pid::from_child(&self.child))
    }

    /// Waits until it has ended by itself; whether with success.
    pub fn wait(mut self) -> bool {
        self.reap().is_ok_and(|status| status.success())
    }

    /// SIGTERM: asks it to end.
    pub fn terminate(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// SIGSTOP; returns when it has stopped.
    pub fn pause(&self) {
        self.signal(Signal::STOP, WaitIdOptions::STOPPED);
        self.paused.store(true, Relaxed);
    }

    /// SIGCONT; returns when it runs again.
    pub fn resume(&self) {
        self.signal(Signal::CONT, WaitIdOptions::CONTINUED);
        self.paused.store(false, Relaxed);
    }

    fn signal(&self, signal: Signal, until: WaitIdOptions) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)
            .and_then(|()| waitid(WaitId::Pid(pid), until))
            .unwrap_or_else(|error| panic!("{}: {signal:?}: {error}", self.name));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
