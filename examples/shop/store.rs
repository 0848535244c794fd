//! The storage under the lock: orders in an SQLite file that several instances share.
//!
//! Three steps make it refuse a holder that has lost its lock without noticing:
//!
//! 1. **claim** the row with the fencing token, *before* the first read;
//! 2. read;
//! 3. write only while the row still has that token.
//!
//! With the token on the write alone, an old holder could still write between the new holder's
//! read and write.

use std::{
    error::Error,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use tokio::task::JoinError;
use tower_lock::FencingToken;

/// A payment as it was written, for the demonstration's picture. Times are in µs since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payment {
    pub(crate) order: u32,
    pub(crate) instance: String,
    /// When the request came.
    pub(crate) arrived: i64,
    /// When it had the lock; without the lock, when its handler started.
    pub(crate) granted: i64,
    /// When it wrote.
    pub(crate) written: i64,
    /// How often the order was paid then, as this payment saw it.
    pub(crate) paid_count: i64,
    /// Under which token, if it had the lock.
    pub(crate) fence: Option<i64>,
}

/// An order as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) paid_count: i64,
    pub(crate) refused_stale_writes: i64,
}

/// Why the store did not do what it was asked.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// Somebody with a newer token has been here: the caller no longer holds the lock.
    Stale,
    Sqlite(rusqlite::Error),
    /// The thread that did the work panicked, or was never started.
    Thread(JoinError),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale => f.write_str("somebody with a newer fencing token has been here"),
            Self::Sqlite(error) => write!(f, "SQLite: {error}"),
            Self::Thread(error) => write!(f, "storage thread: {error}"),
        }
    }
}

impl Error for StoreError {}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<JoinError> for StoreError {
    fn from(error: JoinError) -> Self {
        Self::Thread(error)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    connection: Arc<Mutex<Connection>>,
}

impl Store {
    /// Opens the file, and creates it where needed.
    pub(crate) fn open(file: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        // Readers do not block the writer, and other processes may read and write too.
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS orders (
                 id INTEGER PRIMARY KEY,
                 paid_count INTEGER NOT NULL DEFAULT 0,
                 fence INTEGER NOT NULL DEFAULT 0,
                 refused_stale_writes INTEGER NOT NULL DEFAULT 0
             ) STRICT;
             CREATE TABLE IF NOT EXISTS payments (
                 order_id INTEGER NOT NULL,
                 instance TEXT NOT NULL,
                 arrived INTEGER NOT NULL,
                 granted INTEGER NOT NULL,
                 written INTEGER NOT NULL,
                 paid_count INTEGER NOT NULL,
                 fence INTEGER
             ) STRICT;
             CREATE TABLE IF NOT EXISTS charges (
                 key TEXT NOT NULL,
                 instance TEXT NOT NULL
             ) STRICT;
             CREATE TABLE IF NOT EXISTS reports (
                 id INTEGER NOT NULL,
                 text TEXT NOT NULL
             ) STRICT;",
        )?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
        })
    }

    /// Step 1: shows the token to the storage, on the first contact. Afterwards every holder
    /// with an older token is refused.
    pub(crate) async fn claim(&self, order: u32, fence: FencingToken) -> Result<(), StoreError> {
        self.write(move |db| {
            db.execute("INSERT OR IGNORE INTO orders (id) VALUES (?1)", [order])?;
            let claimed = db.execute(
                "UPDATE orders SET fence = ?1 WHERE id = ?2 AND fence <= ?1",
                params![fence.as_i64(), order],
            )?;
            accept(db, order, claimed)
        })
        .await
    }

    /// Step 2: reads.
    pub(crate) async fn order(&self, order: u32) -> Result<Order, StoreError> {
        self.with(move |db| {
            let row = db
                .query_row(
                    "SELECT paid_count, refused_stale_writes FROM orders WHERE id = ?1",
                    [order],
                    |row| {
                        Ok(Order {
                            paid_count: row.get(0)?,
                            refused_stale_writes: row.get(1)?,
                        })
                    },
                )
                .optional()?;
            Ok(row.unwrap_or_default())
        })
        .await
    }

    /// Step 3: writes, if the row still has the payment's token. Without a token, writes whatever
    /// has happened meanwhile: this is how updates get lost.
    pub(crate) async fn pay(&self, payment: Payment) -> Result<(), StoreError> {
        self.write(move |db| {
            let order = payment.order;
            let written = match payment.fence {
                Some(fence) => db.execute(
                    "UPDATE orders SET paid_count = ?1 WHERE id = ?2 AND fence = ?3",
                    params![payment.paid_count, order, fence],
                )?,
                None => db.execute(
                    "INSERT INTO orders (id, paid_count) VALUES (?2, ?1)
                     ON CONFLICT (id) DO UPDATE SET paid_count = excluded.paid_count",
                    params![payment.paid_count, order],
                )?,
            };
            accept(db, order, written)?;
            db.execute(
                "INSERT INTO payments VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    order,
                    payment.instance,
                    payment.arrived,
                    payment.granted,
                    payment.written,
                    payment.paid_count,
                    payment.fence
                ],
            )?;
            Ok(())
        })
        .await
    }

    /// Charges a card, as a payment provider does that knows nothing of keys: every call counts.
    /// Returns how often this checkout was charged by now.
    pub(crate) async fn charge(&self, key: String, instance: String) -> Result<i64, StoreError> {
        self.write(move |db| {
            db.execute("INSERT INTO charges VALUES (?1, ?2)", [&key, &instance])?;
            Ok(charged(db, &key)?)
        })
        .await
    }

    /// How often this checkout was charged.
    pub(crate) async fn charges(&self, key: &str) -> Result<i64, StoreError> {
        let key = key.to_owned();
        self.with(move |db| Ok(charged(db, &key)?)).await
    }

    /// The cached report, if it was built.
    pub(crate) async fn report(&self, id: u32) -> Result<Option<String>, StoreError> {
        self.with(move |db| {
            let last = "SELECT text FROM reports WHERE id = ?1 ORDER BY rowid DESC";
            Ok(db.query_row(last, [id], |row| row.get(0)).optional()?)
        })
        .await
    }

    /// Caches a report that was built.
    pub(crate) async fn keep_report(&self, id: u32, text: String) -> Result<(), StoreError> {
        self.write(move |db| {
            db.execute("INSERT INTO reports VALUES (?1, ?2)", params![id, text])?;
            Ok(())
        })
        .await
    }

    /// How often this report was built.
    pub(crate) async fn rebuilds(&self, id: u32) -> Result<i64, StoreError> {
        self.with(move |db| {
            let count = "SELECT count(*) FROM reports WHERE id = ?1";
            Ok(db.query_row(count, [id], |row| row.get(0))?)
        })
        .await
    }

    /// The token of the last claim of this order, if there was one.
    pub(crate) async fn last_claim(&self, order: u32) -> Result<Option<i64>, StoreError> {
        self.with(move |db| {
            let fence = db
                .query_row("SELECT fence FROM orders WHERE id = ?1", [order], |row| {
                    row.get(0)
                })
                .optional()?;
            Ok(fence)
        })
        .await
    }

    /// All orders together.
    pub(crate) async fn totals(&self) -> Result<Order, StoreError> {
        self.with(|db| {
            Ok(db.query_row(
                "SELECT ifnull(sum(paid_count), 0), ifnull(sum(refused_stale_writes), 0)
                 FROM orders",
                [],
                |row| {
                    Ok(Order {
                        paid_count: row.get(0)?,
                        refused_stale_writes: row.get(1)?,
                    })
                },
            )?)
        })
        .await
    }

    /// All payments, as they were granted.
    pub(crate) async fn payments(&self) -> Result<Vec<Payment>, StoreError> {
        self.with(|db| {
            let mut statement = db.prepare(
                "SELECT order_id, instance, arrived, granted, written, paid_count, fence
                 FROM payments ORDER BY granted, written",
            )?;
            let payments = statement.query_map([], |row| {
                Ok(Payment {
                    order: row.get(0)?,
                    instance: row.get(1)?,
                    arrived: row.get(2)?,
                    granted: row.get(3)?,
                    written: row.get(4)?,
                    paid_count: row.get(5)?,
                    fence: row.get(6)?,
                })
            })?;
            Ok(payments.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Runs `work` in a transaction that is the only writer from its start.
    ///
    /// A refusal is committed too: it counts itself.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.with(|db| {
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let outcome = work(&transaction);
            if matches!(outcome, Ok(_) | Err(StoreError::Stale)) {
                transaction.commit()?;
            }
            outcome
        })
        .await
    }

    /// Runs `work` where it may block.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let connection = Arc::clone(&self.connection);
        tokio::task::spawn_blocking(move || {
            // A transaction of a thread that panicked was rolled back: the connection is good.
            work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))
        })
        .await?
    }
}

/// No row changed: somebody with a newer token has been here. Counts the refusal.
fn accept(db: &Connection, order: u32, changed: usize) -> Result<(), StoreError> {
    if changed > 0 {
        return Ok(());
    }
    db.execute(
        "UPDATE orders SET refused_stale_writes = refused_stale_writes + 1 WHERE id = ?1",
        [order],
    )?;
    Err(StoreError::Stale)
}

fn charged(db: &Connection, key: &str) -> rusqlite::Result<i64> {
    let count = "SELECT count(*) FROM charges WHERE key = ?1";
    db.query_row(count, [key], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn payment(paid_count: i64, fence: Option<FencingToken>) -> Payment {
        Payment {
            order: 7,
            instance: "A".into(),
            arrived: 1,
            granted: 2,
            written: 3,
            paid_count,
            fence: fence.map(|fence| fence.as_i64()),
        }
    }

    fn store() -> (Store, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        (Store::open(&dir.path().join("orders.db")).unwrap(), dir)
    }

    #[tokio::test]
    async fn a_stale_holder_is_refused_at_its_claim_and_at_its_write() {
        let (store, _dir) = store();
        store.claim(7, token(1)).await.unwrap();
        store.claim(7, token(2)).await.unwrap();
        assert_eq!(store.last_claim(7).await.unwrap(), Some(2));

        let late_write = store.pay(payment(1, Some(token(1)))).await;
        assert!(matches!(late_write, Err(StoreError::Stale)));
        let late_claim = store.claim(7, token(1)).await;
        assert!(matches!(late_claim, Err(StoreError::Stale)));

        store.pay(payment(1, Some(token(2)))).await.unwrap();
        let expected = Order {
            paid_count: 1,
            refused_stale_writes: 2,
        };
        assert_eq!(store.order(7).await.unwrap(), expected);
        assert_eq!(store.totals().await.unwrap(), expected);
        assert_eq!(
            store.payments().await.unwrap(),
            [payment(1, Some(token(2)))]
        );
    }

    #[tokio::test]
    async fn without_a_token_the_last_write_wins() {
        let (store, _dir) = store();
        assert_eq!(store.order(7).await.unwrap(), Order::default());
        assert_eq!(store.last_claim(7).await.unwrap(), None);
        store.pay(payment(1, None)).await.unwrap();
        store.pay(payment(1, None)).await.unwrap();
        assert_eq!(store.order(7).await.unwrap().paid_count, 1);
        assert_eq!(store.payments().await.unwrap().len(), 2);
    }
}
