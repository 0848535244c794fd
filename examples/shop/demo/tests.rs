//! The demonstration from outside, on a real Redis, with this very program as all of its processes.

use std::{
    ffi::OsStr,
    io,
    process::{ExitCode, ExitStatus, Stdio},
    time::Duration,
};

use clap::Parser as _;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    time::timeout,
};

use super::process::{self, Signal};
use crate::args::Args;

/// Well above what any of this takes.
const BOUND: Duration = Duration::from_secs(30);
/// The arguments of the shop, one a line.
const ARGS: &str = "SHOP_ARGS";

/// A process that is the shop with these arguments: the tests' own program, in which it is this
/// one "test". (Cargo builds the shop with its tests or without them, not both.)
pub(super) fn with_args<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> io::Result<Command> {
    let args: Vec<_> = args
        .into_iter()
        .map(|arg| arg.as_ref().to_owned())
        .collect();
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", "--ignored", "--nocapture"])
        .arg("demo::tests::as_the_shop")
        .env(ARGS, args.join(OsStr::new("\n")));
    Ok(command)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the shop itself, which the other tests start"]
async fn as_the_shop() {
    let args = std::env::var(ARGS).expect("to be started by another test");
    let args = Args::parse_from(std::iter::once("shop").chain(args.split('\n')));
    let code = crate::run(args).await;
    assert_eq!(code, ExitCode::SUCCESS);
}

/// The demonstration on a Redis of its own.
fn demo(args: &[&str]) -> Command {
    let mut command = with_args(["demo", "--backend", "redis:"].iter().chain(args)).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn output(mut command: Command) -> (bool, String, String) {
    let output = timeout(BOUND, command.output()).await.unwrap().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), stdout, stderr)
}

/// Everything at once: no lost update, arrival order, tokens, the killed and the paused instance.
#[tokio::test]
async fn three_instances_share_a_redis() {
    let (success, stdout, stderr) = output(demo(&["--requests", "60", "--ttl", "1s"])).await;
    assert!(success, "{stdout}\n{stderr}");

    let row = |name: &str| -> Vec<String> {
        let row = stdout
            .lines()
            .find_map(|line| line.trim().strip_prefix(name));
        let row = row.unwrap_or_else(|| panic!("no row {name}: {stdout}"));
        row.split_whitespace().map(Into::into).collect()
    };
    assert_eq!(row("payments accepted"), ["60", "60"], "{stdout}");
    let [without, with] = &row("lost updates")[..] else {
        panic!("{stdout}");
    };
    assert_ne!(without, "0", "{stdout}");
    assert_eq!(with, "0", "{stdout}");
    assert_eq!(row("tokens grew"), ["–", "always"], "{stdout}");
    // The picture of the run with the lock: all three had the order.
    let picture = stdout.split_once("With the lock: ").unwrap().1;
    for instance in ["  A ", "  B ", "  C "] {
        assert!(
            picture.lines().any(|line| line.starts_with(instance)),
            "{stdout}"
        );
    }
    for same in ["1 charged, 199 replays", "1 rebuilt, "] {
        assert!(stdout.contains(same), "{same}: {stdout}");
    }
    assert!(stdout.contains("The storage refuses"), "{stdout}");
    assert!(
        stdout.contains("nor to an instance that failed"),
        "{stdout}"
    );
}

#[tokio::test]
async fn without_a_redis_server_it_says_what_to_install() {
    let mut demo = demo(&[]);
    demo.env("PATH", "");
    let (success, _, stderr) = output(demo).await;
    assert!(!success);
    assert!(stderr.contains("apt-get install redis-server"), "{stderr}");
}

/// Interrupted while one of its instances is dead and one paused, it ends them all.
#[tokio::test]
async fn an_interruption_ends_all_of_its_processes() {
    let (said, status) = ended_by(|demo| process::send(demo, Signal::Interrupt).unwrap()).await;
    assert!(said.contains("interrupted"), "{said}");
    assert!(!status.success());
}

/// Killed, it cannot end them, and none is left all the same.
#[tokio::test]
async fn none_of_its_processes_outlives_it() {
    ended_by(|demo| demo.start_kill().unwrap()).await;
}

/// Ends a demonstration so at its worst moment, and waits until none of its processes is left.
/// Returns what they wrote as errors.
async fn ended_by(end: impl FnOnce(&mut Child)) -> (String, ExitStatus) {
    let mut demo = demo(&["--requests", "5", "--ttl", "1s"]).spawn().unwrap();
    let mut stderr = demo.stderr.take().unwrap();
    let work = async {
        let paused = |line: &str| line.contains("kill -STOP").then_some(());
        let paused = process::first(&mut demo, paused).await.unwrap();
        paused.expect("to come to that point");
        end(&mut demo);
        // All of its processes have this pipe, so it ends with the last of them.
        let mut said = String::new();
        stderr.read_to_string(&mut said).await.unwrap();
        (said, demo.wait().await.unwrap())
    };
    timeout(BOUND, work).await.expect("all of them to end")
}
