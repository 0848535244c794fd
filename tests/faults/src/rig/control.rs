//! The process itself: what it is told, and how it ends.

use std::{io::BufRead as _, process, thread, time::Duration};

use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::sleep,
};
use tower_lock::{BoxError, LockManager};

use super::{
    AWAKE, DRAINED, GRACE, READY, RESTED, Setup, THREADS, connect,
    load::{Storm, Traffic},
    recorder::{self, Recorder},
};

/// Runs until it is asked to end, or its standard input ends.
pub(crate) fn run(setup: &str) -> Result<(), BoxError> {
    let setup: Setup = serde_json::from_str(setup)?;
    let recorder = Recorder::create(setup.process, &setup.events)?;
    recorder::tell_of_panics(setup.process, &setup.events)?;
    let (tell, told) = unbounded_channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
        // The harness is gone.
        process::exit(3);
    });
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()?
        .block_on(serve(setup, recorder, told))
}

async fn serve(
    setup: Setup,
    recorder: Recorder,
    mut told: UnboundedReceiver<String>,
) -> Result<(), BoxError> {
    let mut term = signal(SignalKind::terminate())?;
    let locks = connect::manager(&setup).await?;
    let mut traffic = Traffic::new(&setup, locks.clone(), recorder);
    println!("{READY}");
    traffic.start();
    loop {
        tokio::select! {
            _ = term.recv() => break,
            line = told.recv() => match line {
                Some(line) => obey(&line, &mut traffic, &locks).await?,
                None => return Ok(()),
            },
        }
    }
    // New requests are refused from now on, as those of a service that drains.
    let report = locks.shutdown(GRACE).await;
    traffic.rest().await;
    println!("{DRAINED} {report:?}");
    Ok(())
}

async fn obey(line: &str, traffic: &mut Traffic, locks: &LockManager) -> Result<(), BoxError> {
    let words: Vec<_> = line.split(' ').collect();
    match words[..] {
        ["block", millis] => block(Duration::from_millis(millis.parse()?)),
        ["storm", key, count, wait] => traffic.storm(Storm {
            key: key.parse()?,
            count: count.parse()?,
            wait: Duration::from_millis(wait.parse()?),
        }),
        ["rest"] => {
            traffic.rest().await;
            let left = settled(locks).await;
            println!("{RESTED} {left}");
        }
        _ => return Err(format!("what is {line:?}?").into()),
    }
    Ok(())
}

/// Stops every thread of the application's runtime for so long, as handlers that block do. Says when
/// they run again.
fn block(time: Duration) {
    let blocked = (0..THREADS).map(|_| tokio::spawn(async move { thread::sleep(time) }));
    let blocked: Vec<_> = blocked.collect();
    tokio::spawn(async move {
        for thread in blocked {
            thread.await.expect("no panic");
        }
        println!("{AWAKE}");
    });
}

/// What the manager holds and waits for, once that is nothing or no longer changes by itself; and
/// the tasks of the runtime.
async fn settled(locks: &LockManager) -> String {
    let mut left = (0, 0);
    for _ in 0..500 {
        let state = locks.inspect();
        left = (state.held.len(), state.waiting.len());
        if left == (0, 0) {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    let tasks = Handle::current().metrics().num_alive_tasks();
    format!("held={} waiting={} tasks={tasks}", left.0, left.1)
}
