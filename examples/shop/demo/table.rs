//! The table of both runs.

use std::{fmt::Write as _, time::Duration};

use console::style;

use super::figures::Figures;

/// Draws the two runs side by side.
pub(crate) fn render(without: &Figures, with: &Figures) -> String {
    let mut out = String::new();
    let mut row = |what: &str, of: &dyn Fn(&Figures) -> String| {
        let _ = writeln!(out, "  {what:<24}{:>18}{:>18}", of(without), of(with));
    };
    row("", &|run| {
        if run.grants.is_some() {
            "with the lock"
        } else {
            "without the lock"
        }
        .into()
    });
    row("payments accepted", &|run| run.accepted.to_string());
    row("lost updates", &|run| lost(run.lost_updates));
    row("refused stale writes", &|run| {
        run.refused_stale_writes.to_string()
    });
    row("errors", &|run| run.errors.to_string());
    row("wait p50", &|run| {
        or_dash(run.grants.map(|g| millis(g.p50)))
    });
    row("wait p99", &|run| {
        or_dash(run.grants.map(|g| millis(g.p99)))
    });
    row("grants in arrival order", &|run| {
        or_dash(run.grants.map(|g| format!("{:.1} %", g.in_order)))
    });
    row("tokens grew", &|run| {
        or_dash(
            run.grants
                .map(|g| if g.tokens_grew { "always" } else { "NO" }.into()),
        )
    });
    row("took", &|run| format!("{:.2} s", run.took.as_secs_f64()));
    out
}

/// Padded first: a colour would count as width.
fn lost(count: i64) -> String {
    let padded = format!("{count:>18}");
    if count == 0 {
        style(padded).green().bold().to_string()
    } else {
        style(padded).red().bold().to_string()
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}
