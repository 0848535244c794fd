//! A scheduled job: every instance of a service starts it, one of them runs it.
//!
//! ```sh
//! cargo run --example scheduled_job
//! ```

use std::{error::Error, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use tower_lock::{AcquireErrorKind, LockKey, LockManager, LockPolicy, MemoryBackend, Wait};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // Three instances would be three processes on one fleet-wide backend. Here they are three
    // tasks, since the memory backend locks within one process.
    let locks = LockManager::new(MemoryBackend::new());
    let mut instances = JoinSet::new();
    for name in ["A", "B", "C"] {
        instances.spawn(nightly_report(name, locks.clone()));
    }
    while let Some(done) = instances.join_next().await {
        done??;
    }

    // At the end of a process: whatever is still held gets this long, and is then released.
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// What a timer starts on every instance at the same time.
async fn nightly_report(
    instance: &str,
    locks: LockManager,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let job = LockKey::new("job", "nightly-report");
    let policy = LockPolicy::new()
        // Whoever comes second has nothing to do.
        .with_wait(Wait::Fail)
        // If this process dies, another may start the job after that long.
        .with_ttl(Duration::from_secs(10))
        // A job that hangs does not block tomorrow's.
        .with_max_hold(Duration::from_secs(60 * 60));

    let guard = match locks.acquire(job, &policy).await {
        Ok(guard) => guard,
        Err(busy) if busy.kind() == AcquireErrorKind::Contended => {
            println!("{instance}: somebody else runs the report");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };

    println!(
        "{instance}: runs the report, token {}",
        guard.fencing_token()
    );
    tokio::select! {
        // The lease is renewed meanwhile. Work that outlives its lock must not go on.
        loss = guard.lost() => println!("{instance}: stopped, the lock is lost: {}", loss.as_str()),
        () = report() => println!("{instance}: done"),
    }
    // Dropping the guard releases too; this waits until the key is free, or says why not.
    guard.release().await?;
    Ok(())
}

async fn report() {
    sleep(Duration::from_millis(200)).await;
}
