//! One JSON line per measurement; at the end, the ratios as tables.

use std::time::Duration;

use serde_json::{Map, Value, json};

#[path = "../../support/table.rs"]
mod table;

pub(crate) use self::table::{median, ratio, table};

/// How the bench was called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// A run of seconds that shows that the bench works; its figures mean little.
    pub(crate) quick: bool,
}

impl Effort {
    /// The first number in a whole run, the second in a quick one.
    pub(crate) fn pick(self, whole: usize, quick: usize) -> usize {
        if self.quick { quick } else { whole }
    }

    pub(crate) fn time(self, whole_ms: u64, quick_ms: u64) -> Duration {
        Duration::from_millis(if self.quick { quick_ms } else { whole_ms })
    }
}

/// Prints one measurement; `figures` is an object.
pub(crate) fn line(bench: &str, server: &str, candidate: &str, figures: &Value) {
    let mut all = Map::new();
    all.insert("bench".to_owned(), json!(bench));
    all.insert("server".to_owned(), json!(server));
    all.insert("candidate".to_owned(), json!(candidate));
    if let Value::Object(figures) = figures {
        all.extend(figures.clone());
    }
    println!("{}", Value::Object(all));
}

/// The quantile of samples in nanoseconds, in microseconds; sorts them.
pub(crate) fn quantile_us(samples: &mut [u64], q: f64) -> f64 {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    let at = (last as f64 * q).round() as usize;
    samples.get(at).map_or(0.0, |nanos| *nanos as f64 / 1000.0)
}

/// A figure as a reader can use it.
pub(crate) fn cell(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}
