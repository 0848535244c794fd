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
    let first_token = rows.iter().find_map(|p| p.fence);
    let beside = if first_token.is_some() { 38 } else { 22 };
    let axis = Axis {
        start,
        span: (end - start).max(1),
        columns: width - beside,
    };

    let mut out = format!(
        "{}: who had order {ORDER} when (░ waits, █ has it), the first {} payments",
        style(title).bold(),
        rows.len()
    );
    if let Some(first) = first_token {
        let _ = write!(out, "; tokens from {first}");
    }
    out.push_str("\n\n");
    for payment in &rows {
        let letter = payment.instance.bytes().next().unwrap_or(b'A');
        let color = COLORS[usize::from(letter.wrapping_sub(b'A')) % COLORS.len()];
        let _ = write!(
            out,
            "  {} {}  paid × {}",
            style(&payment.instance).fg(color),
            style(axis.bar(payment)).fg(color),
            payment.paid_count
        );
        if let (Some(fence), Some(first)) = (payment.fence, first_token) {
            let beside = if payment.paid_count < 10 { 3 } else { 2 };
            let _ = write!(out, "{:beside$}token {:+}", "", fence - first);
        }
        out.push('\n');
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
            fence: Some(granted),
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
    fn all_lines_have_the_same_columns() {
        let rows = [payment("A", 0, 3, 4_000), payment("B", 1_000, 4_000, 8_000)];
        let picture = render("With the lock", &rows, 80);
        assert!(picture.contains("tokens from 3\n"), "{picture}");
        assert!(picture.contains("token +3997\n"), "{picture}");
        let columns = |what: &str| -> Vec<_> {
            let lines = picture.lines().map(console::strip_ansi_codes);
            lines
                .filter_map(|line| Some(line[..line.find(what)?].chars().count()))
                .collect()
        };
        let [paid, token] = ["paid ×", "token +"].map(columns);
        assert_eq!((paid.len(), token.len()), (2, 2));
        assert_eq!(paid[0], paid[1]);
        assert_eq!(token[0], token[1]);
    }
}
