//! Medians, ratios and tables.

// Each bench uses its part.
#![allow(dead_code)]

pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// A table with its name; the first column is text.
pub(crate) fn table(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([head[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells
            .iter()
            .enumerate()
            .map(|(column, cell)| match column {
                0 => format!("{cell:<w$}", w = width(column)),
                _ => format!("{cell:>w$}", w = width(column)),
            })
            .collect();
        println!("| {} |", cells.join(" | "));
    };
    println!("\n{title}\n");
    line(&head.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    let rule: Vec<String> = (0..head.len()).map(|c| "-".repeat(width(c))).collect();
    line(&rule);
    for row in rows {
        line(row);
    }
}

pub(crate) fn ns(value: f64) -> String {
    format!("{value:.0}")
}

pub(crate) fn ratio(value: f64, base: f64) -> String {
    match value / base {
        ratio if ratio.is_finite() => format!("{ratio:.2}"),
        _ => "–".to_owned(),
    }
}
