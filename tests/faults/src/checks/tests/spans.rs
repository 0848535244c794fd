//! Spans of time, which decide what is excluded, against counting moment by moment.

use crate::{checks::course::Spans, history::Nanos};

#[test]
fn as_counted() {
    let mut rng = fastrand::Rng::with_seed(11);
    for round in 0..2000 {
        let raw: Vec<(Nanos, Nanos)> = (0..rng.usize(0..6))
            .map(|_| {
                let from = rng.u64(0..40);
                let open = rng.u8(0..12) == 0;
                (
                    from,
                    if open {
                        Nanos::MAX
                    } else {
                        from + rng.u64(0..10)
                    },
                )
            })
            .collect();
        let spans = Spans::of(raw.clone());
        let from = rng.u64(0..45);
        let to = from + rng.u64(0..20);

        // The moment between this number and the next.
        let covered = |moment: Nanos| raw.iter().any(|span| span.0 <= moment && moment < span.1);
        let within = (from..to).filter(|moment| covered(*moment)).count() as Nanos;
        let touched = raw.iter().any(|span| span.0 <= to && from <= span.1);
        let shown = format!("round {round}: {raw:?} from {from} to {to}");
        assert_eq!(spans.within(from, to), within, "{shown}");
        assert_eq!(spans.touches(from, to), touched, "{shown}");
        let without = spans.without(from, to);
        let left: Nanos = without.iter().map(|part| part.1 - part.0).sum();
        assert_eq!(left, to - from - within, "{shown}: {without:?}");
        let mut moments = without.iter().flat_map(|part| part.0..part.1);
        assert!(
            moments.all(|moment| !covered(moment)),
            "{shown}: {without:?}"
        );
    }
}
