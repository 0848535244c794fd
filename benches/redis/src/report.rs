//! One JSON line per measurement; at the end, the ratios as tables.

use std::time::Duration;

use serde_json::{Map, Value, json};

#[path = "../../support/table.rs"]
mod table;

pub(crate) use self::table::{median, ratio, table};

/// How the bench was called.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    /// A run of seconds that shows that the bench works; its figures mean little.
    pub(crate) quick: bool,
    /// Names of candidates; all if there is none.
    pub(crate) only: Vec<String>,
}

impl Effort {
    /// The first number in a whole run, the second in a quick one.
    pub(crate) fn pick(&self, whole: usize, quick: usize) -> usize {
        if self.quick { quick } else { whole }
    }

    pub(crate) fn wants(&self, candidate: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == candidate)
    }

    pub(crate) fn time(&self, whole_ms: u64, quick_ms: u64) -> Duration {
        Duration::from_millis(if self.quick { quick_ms } else { whole_ms })
    }
}

/// Prints one measurement; `figures` is an object.
pub(crate) fn line(bench: &str, candidate: &str, figures: &Value) {
    let mut all = Map::new();
    all.insert("bench".to_owned(), json!(bench));
    all.insert("candidate".to_owned(), json!(candidate));
    if let Value::Object(figures) = figures {
        all.extend(figures.clone());
    }
    println!("{}", Value::Object(all));
}

/// The quantile of samples, which it sorts.
pub(crate) fn quantile(samples: &mut [u64], q: f64) -> u64 {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    samples
        .get((last as f64 * q).round() as usize)
        .copied()
        .unwrap_or(0)
}

/// Rounded to what a reader can use.
pub(crate) fn round(value: f64) -> f64 {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    format!("{value:.digits$}").parse().unwrap_or(value)
}

pub(crate) fn us(nanos: u64) -> f64 {
    round(nanos as f64 / 1000.0)
}

/// A figure of a table, if there is one.
pub(crate) fn cell(value: f64) -> String {
    if value.is_finite() {
        round(value).to_string()
    } else {
        "–".to_owned()
    }
}
