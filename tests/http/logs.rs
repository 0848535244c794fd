//! A subscriber that keeps what the crate logs on one thread.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tracing::{
    Dispatch, Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};

/// Everything logged on this thread since [`Logs::capture`], while it lives.
pub(crate) struct Logs {
    kept: Arc<Kept>,
    _guard: DefaultGuard,
}

/// A span: its name and fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanSeen {
    pub(crate) name: String,
    pub(crate) fields: BTreeMap<String, String>,
}

#[derive(Default)]
struct Kept {
    next: AtomicU64,
    lines: Mutex<Vec<String>>,
    spans: Mutex<BTreeMap<u64, SpanSeen>>,
}

/// With a single dispatcher in the process, a call site that another thread meets first would be
/// switched off for all: this makes a second one, which prevents it.
pub(crate) fn keep_call_sites_on() {
    static OTHER: OnceLock<Dispatch> = OnceLock::new();
    OTHER.get_or_init(|| Dispatch::new(Keeper(Arc::default())));
}

impl Logs {
    pub(crate) fn capture() -> Self {
        keep_call_sites_on();
        let kept = Arc::<Kept>::default();
        let dispatch = Dispatch::new(Keeper(kept.clone()));
        Self {
            kept,
            _guard: tracing::dispatcher::set_default(&dispatch),
        }
    }

    /// Whether one line holds all these texts.
    pub(crate) fn find(&self, texts: &[&str]) -> bool {
        let lines = self.kept.lines.lock().unwrap();
        lines
            .iter()
            .any(|line| texts.iter().all(|text| line.contains(text)))
    }

    /// The spans of this name.
    pub(crate) fn spans(&self, name: &str) -> Vec<SpanSeen> {
        let spans = self.kept.spans.lock().unwrap();
        spans.values().filter(|s| s.name == name).cloned().collect()
    }
}

/// All that was logged.
impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.kept.lines.lock().unwrap().iter() {
            writeln!(f, "{line}")?;
        }
        for span in self.kept.spans.lock().unwrap().values() {
            writeln!(f, "{span:?}")?;
        }
        Ok(())
    }
}

struct Keeper(Arc<Kept>);

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.0.next.fetch_add(1, Ordering::SeqCst) + 1;
        let mut span = SpanSeen {
            name: attributes.metadata().name().to_owned(),
            ..SpanSeen::default()
        };
        attributes.record(&mut Fields(&mut span.fields));
        self.0.spans.lock().unwrap().insert(id, span);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        if let Some(span) = self.0.spans.lock().unwrap().get_mut(&id.into_u64()) {
            values.record(&mut Fields(&mut span.fields));
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        let mut line = event.metadata().level().to_string();
        for (name, value) in fields {
            let _ = write!(line, " {name}={value}");
        }
        self.0.lines.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
