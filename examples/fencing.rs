//! Fencing your own storage: claim first, then read, then write.
//!
//! A lock cannot stop a holder that was paused (by a garbage collector, a debugger, a suspended
//! laptop) and wakes up after its lease has ended. The storage can, if it compares tokens.
//!
//! ```sh
//! cargo run --example fencing
//! ```

use std::error::Error;

use rusqlite::{Connection, params};
use tower_lock::{FencingToken, LockKey, LockManager, LockPolicy, MemoryBackend};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let db = Connection::open_in_memory()?;
    db.execute_batch(
        "CREATE TABLE account (id INTEGER, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0);
         INSERT INTO account (id, balance) VALUES (7, 100);",
    )?;
    let locks = LockManager::new(MemoryBackend::new());
    let key = LockKey::new("account", 7);
    let policy = LockPolicy::new();

    // A slow holder reads the balance, and then sleeps for too long...
    let slow = locks.acquire(key.clone(), &policy).await?;
    let slow_token = slow.fencing_token();
    claim(&db, slow_token)?;
    let stale = balance(&db)?;
    println!("slow holder: token {slow_token}, reads {stale}");

    // ...an operator takes the lock away (or its lease ends), and another takes over.
    locks.force_release(&key).await?;
    println!("slow holder: lost its lock, {:?}", slow.lost().await);
    let next = locks.acquire(key, &policy).await?;
    let next_token = next.fencing_token();
    claim(&db, next_token)?;
    let fresh = balance(&db)?;
    println!("next holder: token {next_token}, reads {fresh}");

    // The slow one wakes up between the next one's read and write: the moment that matters.
    // The claim has already shut it out. With a token on writes only, this would be written.
    let written = write(&db, stale + 1, slow_token)?;
    println!("slow holder: its write is {written}");
    let written = write(&db, fresh + 50, next_token)?;
    println!("next holder: its write is {written}");
    next.release().await?;
    println!("the balance: {}", balance(&db)?);
    Ok(())
}

/// 1. Shows the token on the first contact, before any read. Nobody with an older one gets in.
fn claim(db: &Connection, fence: FencingToken) -> Result<(), Box<dyn Error + Send + Sync>> {
    let sql = "UPDATE account SET fence = ?1 WHERE id = 7 AND fence <= ?1";
    match db.execute(sql, [fence.as_i64()])? {
        0 => Err("somebody with a newer token has been here".into()),
        _ => Ok(()),
    }
}

/// 2. Reads.
fn balance(db: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT balance FROM account WHERE id = 7";
    db.query_row(sql, [], |row| row.get(0))
}

/// 3. Writes only while the row still has this token.
fn write(db: &Connection, balance: i64, fence: FencingToken) -> rusqlite::Result<&'static str> {
    let sql = "UPDATE account SET balance = ?1 WHERE id = 7 AND fence = ?2";
    let changed = db.execute(sql, params![balance, fence.as_i64()])?;
    Ok(if changed == 1 { "accepted" } else { "refused" })
}
