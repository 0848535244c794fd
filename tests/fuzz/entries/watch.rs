//! What no caller sees by itself: panics of tasks and threads, and what is logged.

use std::{
    cell::Cell,
    fmt,
    panic::{self, PanicHookInfo},
    sync::{
        Mutex, Once,
        atomic::{AtomicU64, Ordering},
    },
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Stands in everything that must not be repeated: passwords, values of requests, texts of servers.
pub const SECRET: &str = "s3cr3t";

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread runs inputs, and so sees its panics itself.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

fn see(what: String) {
    SEEN.lock().unwrap_or_else(|e| e.into_inner()).push(what);
}

/// Watches from now on, all threads but those that call this: they run inputs, or wait for such.
pub fn begin() {
    RUNS.set(true);
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if is_contained(info) {
                return;
            }
            if !RUNS.try_with(Cell::get).unwrap_or(false) {
                see(format!("a panic: {info}"));
            }
            before(info);
        }));
        // Another may have one already: then logs are not looked at.
        let _ = tracing::subscriber::set_global_default(Reader(AtomicU64::new(1)));
    });
}

/// Whether the crate makes an error of it: what zookeeper-client does in the task that asked, and not
/// in its own.
fn is_contained(info: &PanicHookInfo<'_>) -> bool {
    let place = info.location().map_or("", |location| location.file());
    ["util.rs", "client/mod.rs"]
        .iter()
        .any(|file| place.ends_with(&format!("zookeeper-client-0.11.2/src/{file}")))
}

/// The panics of tasks and threads, and the secrets that were logged, since this was last asked.
pub fn seen() -> Vec<String> {
    std::mem::take(&mut *SEEN.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Panics if a text shows what it must not.
#[track_caller]
pub fn shows_no_secret(text: &str) {
    assert!(!text.contains(SECRET), "it shows a secret: {text}");
}

/// Reads all that this crate logs, at every level.
struct Reader(AtomicU64);

struct Fields;

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if text.contains(SECRET) {
            see(format!("logged as {field}: {text}"));
        }
    }
}

impl Subscriber for Reader {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tower_lock")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Fields);
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Fields);
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
