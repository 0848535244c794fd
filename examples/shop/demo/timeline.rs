//! A picture of who had one order when.

use std::fmt::Write as _;

use console::{Color, Term, style};

use crate::store::Payment;

/// The order that is drawn.
const ORDER: u32 = 1;
/// How many of its payments are drawn.
const ROWS: usize = 16;
const COLORS: [Color; 6] = [
    Color::Cyan,
    Color::Yellow,
    Color::Magenta,
    Color::Green,
    Color::Blue,
    Color::Red,
];

/// The width of the terminal, within reason; 100 columns where there is none.
pub(crate) fn width() -> usize {
    let columns = Term::stdout()
        .size_checked()
        .map_or(100, |(_, columns)| columns.into());
    usize::clamp(columns, 60, 140)
}

/// Draws the first payments of one order, one a line, on one axis of time.
pub(crate) fn render(title: &str, payments: &[Payment], width: usize) -> String {
    let rows: Vec<_> = payments
        .iter()
        .filter(|p| p.order == ORDER)
        .take(ROWS)
        .collect();
    let Some(start) = rows.iter().map(|p| p.arrived).min() else {
        return format!("{title}: order {ORDER} was not paid.\n");
    };
    let end = rows.iter().map(|p| p.written).max().unwrap_or(start);
    let axis = Axis {
        start,
        span: (end - start).max(1),
        columns: width - 22,
    };

    let mut out = format!(
        "{}: who had order {ORDER} when (░ waits, █ has it), the first {} payments\n\n",
        style(title).bold(),
        rows.len()
    );
    for payment in &rows {
        let letter = payment.instance.bytes().next().unwrap_or(b'A');
        let color = COLORS[usize::from(letter.wrapping_sub(b'A')) % COLORS.len()];
        let _ = writeln!(
            out,
            "  {} {}  paid × {}",
            style(&payment.instance).fg(color),
            style(axis.bar(payment)).fg(color),
            payment.paid_count
        );
    }
    let label = format!("{:.0} ms", axis.span as f64 / 1000.0);
    let _ = writeln!(out, "    0{label:>width$}", width = axis.columns - 1);
    out
}

#[derive(Debug)]
struct Axis {
    start: i64,
    span: i64,
    columns: usize,
}

impl Axis {
    fn column(&self, time: i64) -> usize {
        let place = (time - self.start).clamp(0, self.span) as f64 / self.span as f64;
        (place * self.columns as f64).round() as usize
    }

    /// Waiting from arrival to grant, holding from grant to write; a hold is always seen.
    fn bar(&self, payment: &Payment) -> String {
        let granted = self.column(payment.granted).min(self.columns - 1);
        let arrived = self.column(payment.arrived).min(granted);
        let written = self.column(payment.written).max(granted + 1);
        let mut bar = String::new();
        for column in 0..self.columns {
            bar.push(match column {
                c if c < arrived => ' ',
                c if c < granted => '░',
                c if c < written => '█',
                _ => ' ',
            });
        }
        bar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payment(instance: &str, arrived: i64, granted: i64, written: i64) -> Payment {
        Payment {
            order: ORDER,
            instance: instance.into(),
            arrived,
            granted,
            written,
            paid_count: 1,
        }
    }

    #[test]
    fn a_bar_waits_then_holds() {
        let axis = Axis {
            start: 0,
            span: 10,
            columns: 10,
        };
        assert_eq!(axis.bar(&payment("A", 0, 0, 4)), "████      ");
        assert_eq!(axis.bar(&payment("A", 1, 4, 8)), " ░░░████  ");
        // Too short for a column of its own, and at the very end.
        assert_eq!(axis.bar(&payment("A", 10, 10, 10)), "         █");
    }

    #[test]
    fn an_order_without_payments_is_said_to_have_none() {
        assert!(render("With the lock", &[], 80).contains("not paid"));
    }

    #[test]
    fn all_lines_end_at_the_same_column() {
        let rows = [payment("A", 0, 0, 4_000), payment("B", 1_000, 4_000, 8_000)];
        let picture = render("With the lock", &rows, 80);
        let ends: Vec<_> = picture
            .lines()
            .filter_map(|line| {
                console::strip_ansi_codes(line)
                    .find("paid ×")
                    .map(|_| console::strip_ansi_codes(line).chars().count())
            })
            .collect();
        assert_eq!(ends.len(), 2);
        assert_eq!(ends[0], ends[1]);
    }
}
