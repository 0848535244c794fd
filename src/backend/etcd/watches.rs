//! What this process watches, whether a stream is open or not: which node, from when on, for whom.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use super::{gate::Gate, lease::Inner, waiter::Waiter};

/// Who wants to know that a node is gone.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// Waits behind it.
    Waiter(Weak<Waiter>),
    /// Waits for what is written to it, which is a record.
    Loader(Weak<Waiter>),
    /// Waits until it is free, without wanting it.
    Gate(Weak<Gate>),
    /// Holds by it.
    Holder(Weak<Inner>),
}

#[derive(Debug)]
pub(super) enum Order {
    Watch {
        ticket: u64,
        of: Of,
        from: i64,
        target: Target,
    },
    Leave {
        ticket: u64,
        of: Of,
    },
}

/// What is watched for whom: a holder's watch, which has a past, is not shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Of {
    pub(super) node: Arc<str>,
    pub(super) by_holder: bool,
}

/// A watched node.
struct Watch {
    id: i64,
    /// Behind the earliest read that saw it.
    from: i64,
    /// The last revision of which it does not tell, once that is known.
    began: Option<i64>,
    targets: Vec<Told>,
}

/// Somebody who is told.
struct Told {
    ticket: u64,
    /// Behind its read.
    from: i64,
    target: Target,
}

impl Told {
    /// Whether something may have been written since its read of which a watch that began at this
    /// revision does not tell.
    fn misses(&self, began: i64) -> bool {
        self.from <= began
    }
}

impl Watch {
    fn is_of_record(&self) -> bool {
        let first = self.targets.first();
        matches!(first.map(|told| &told.target), Some(Target::Loader(_)))
    }
}

/// What is watched, whether a stream is open or not.
#[derive(Default)]
pub(super) struct Watches {
    watches: HashMap<Of, Watch>,
    by_id: HashMap<i64, Of>,
    last: i64,
}

/// What is to be asked of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// From this revision on, or from now on if it is 0.
    Create {
        id: i64,
        node: Arc<str>,
        from: i64,
    },
    Cancel {
        id: i64,
    },
}

/// What follows from an order.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) request: Option<Request>,
    /// Has to look: the watch that it shares began after its read.
    pub(super) looks: Option<Target>,
}

impl Watches {
    pub(super) fn take(&mut self, order: Order) -> Taken {
        match order {
            Order::Watch {
                ticket,
                of,
                from,
                target,
            } => {
                let told = Told {
                    ticket,
                    from,
                    target,
                };
                if let Some(watch) = self.watches.get_mut(&of) {
                    let misses = watch.began.is_some_and(|began| told.misses(began));
                    let looks = misses.then(|| told.target.clone());
                    watch.from = watch.from.min(from);
                    watch.targets.push(told);
                    return Taken {
                        looks,
                        ..Taken::default()
                    };
                }
                self.last += 1;
                let id = self.last;
                let watch = Watch {
                    id,
                    from,
                    began: of.by_holder.then_some(from - 1),
                    targets: vec![told],
                };
                let request = Request::Create {
                    id,
                    node: of.node.clone(),
                    from: if of.by_holder { from } else { 0 },
                };
                self.by_id.insert(id, of.clone());
                self.watches.insert(of, watch);
                Taken {
                    request: Some(request),
                    ..Taken::default()
                }
            }
            Order::Leave { ticket, of } => Taken {
                request: self.leave(ticket, &of),
                ..Taken::default()
            },
        }
    }

    fn leave(&mut self, ticket: u64, of: &Of) -> Option<Request> {
        let watch = self.watches.get_mut(of)?;
        watch.targets.retain(|told| told.ticket != ticket);
        if !watch.targets.is_empty() {
            return None;
        }
        let id = watch.id;
        self.watches.remove(of);
        self.by_id.remove(&id);
        Some(Request::Cancel { id })
    }

    /// All of them, for a new stream: with their past.
    ///
    /// Those of records without: their past may be large, and who waits for one looks.
    pub(super) fn all(&mut self) -> Vec<Request> {
        let creates = self.watches.iter_mut().map(|(of, watch)| {
            let is_of_record = watch.is_of_record();
            watch.began = (!is_of_record).then_some(watch.from - 1);
            Request::Create {
                id: watch.id,
                node: of.node.clone(),
                from: if is_of_record { 0 } else { watch.from },
            }
        });
        creates.collect()
    }

    /// A watch began at this revision: who has to look, as it was after their read.
    pub(super) fn begins(&mut self, id: i64, revision: i64) -> Vec<Target> {
        let of = self.by_id.get(&id);
        match of.and_then(|of| self.watches.get_mut(of)) {
            Some(watch) if watch.began.is_none() => {
                watch.began = Some(revision);
                let miss = watch.targets.iter().filter(|told| told.misses(revision));
                miss.map(|told| told.target.clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn targets(&self, id: i64) -> Vec<Target> {
        let watch = self.by_id.get(&id).and_then(|of| self.watches.get(of));
        let targets = watch.into_iter().flat_map(|watch| &watch.targets);
        targets.map(|told| told.target.clone()).collect()
    }

    pub(super) fn end(&mut self, id: i64) -> Vec<Target> {
        let of = self.by_id.remove(&id);
        let watch = of.and_then(|of| self.watches.remove(&of));
        let targets = watch.map(|watch| watch.targets).unwrap_or_default();
        targets.into_iter().map(|told| told.target).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(node: &str, by_holder: bool) -> Of {
        Of {
            node: node.into(),
            by_holder,
        }
    }

    fn watch(watches: &mut Watches, ticket: u64, from: i64) -> Option<Request> {
        let taken = watches.take(Order::Watch {
            ticket,
            of: of("a", false),
            from,
            target: Target::Waiter(Weak::new()),
        });
        assert!(taken.looks.is_none(), "it misses nothing");
        taken.request
    }

    fn leave(watches: &mut Watches, ticket: u64) -> Option<Request> {
        let of = of("a", false);
        watches.take(Order::Leave { ticket, of }).request
    }

    fn create(id: i64, from: i64) -> Request {
        let node = "a".into();
        Request::Create { id, node, from }
    }

    /// Its past may be more than a client takes in one answer.
    #[test]
    fn a_record_is_watched_anew_without_its_past() {
        let mut watches = Watches::default();
        let asked = watches.take(Order::Watch {
            ticket: 1,
            of: of("a", false),
            from: 18,
            target: Target::Loader(Weak::new()),
        });
        assert_eq!(asked.request, Some(create(1, 0)));
        assert_eq!(watches.begins(1, 17).len(), 0, "nothing was written since");
        for now in [30, 40] {
            assert_eq!(watches.all(), [create(1, 0)]);
            assert_eq!(watches.begins(1, now).len(), 1, "whoever waits looks");
        }
    }

    #[test]
    fn a_watch_that_begins_after_its_read_has_a_gap() {
        let mut watches = Watches::default();
        assert_eq!(watch(&mut watches, 1, 18), Some(create(1, 0)));
        assert_eq!(watches.begins(1, 17).len(), 0, "nothing was written since");
        assert_eq!(watches.begins(1, 30).len(), 0, "it has begun");
        leave(&mut watches, 1);
        assert_eq!(watch(&mut watches, 2, 18), Some(create(2, 0)));
        assert_eq!(watches.begins(2, 18).len(), 1);
    }

    #[test]
    fn a_shared_watch_is_asked_for_once_and_ends_with_the_last() {
        let mut watches = Watches::default();
        assert_eq!(watch(&mut watches, 1, 18), Some(create(1, 0)));
        assert_eq!(watch(&mut watches, 2, 20), None);
        assert_eq!(watches.begins(1, 20).len(), 2, "both look");
        assert_eq!(leave(&mut watches, 1), None);
        assert_eq!(watches.targets(1).len(), 1);
        assert_eq!(leave(&mut watches, 2), Some(Request::Cancel { id: 1 }));
        assert_eq!(leave(&mut watches, 2), None);
    }

    /// Its read was before the beginning, and its order comes behind: what it waits for may have gone
    /// in between, and nobody will say so.
    #[test]
    fn who_joins_a_watch_that_began_after_its_read_looks() {
        let mut watches = Watches::default();
        let joins = |watches: &mut Watches, ticket, from| {
            watches.take(Order::Watch {
                ticket,
                of: of("a", false),
                from,
                target: Target::Waiter(Weak::new()),
            })
        };
        joins(&mut watches, 1, 2590);
        assert_eq!(watches.begins(1, 2591).len(), 1);
        let taken = joins(&mut watches, 2, 2591);
        assert!(taken.looks.is_some() && taken.request.is_none());
        assert!(joins(&mut watches, 3, 2592).looks.is_none());
        // Over the next stream it is told from the earliest read on.
        assert_eq!(watches.all(), [create(1, 2590)]);
        assert!(joins(&mut watches, 4, 2590).looks.is_none());
        assert!(joins(&mut watches, 5, 2589).looks.is_some());
        // Of two that came before the beginning, who read before it looks.
        let mut watches = Watches::default();
        joins(&mut watches, 1, 20);
        joins(&mut watches, 2, 18);
        assert_eq!(watches.begins(1, 19).len(), 1);
    }

    #[test]
    fn over_a_new_stream_the_past_is_asked_for() {
        let mut watches = Watches::default();
        watch(&mut watches, 1, 18);
        assert_eq!(watches.all(), [create(1, 18)]);
        assert_eq!(
            watches.begins(1, 30).len(),
            0,
            "it is told of what happened"
        );
        assert_eq!(watches.end(1).len(), 1);
        assert_eq!(watches.end(1).len(), 0);
        assert_eq!(watches.all(), []);
    }

    /// A holder is watched from its grant on, of which a waiter's watch knows nothing.
    #[test]
    fn a_holder_does_not_share() {
        let mut watches = Watches::default();
        watch(&mut watches, 1, 18);
        let request = watches.take(Order::Watch {
            ticket: 2,
            of: of("a", true),
            from: 10,
            target: Target::Holder(Weak::new()),
        });
        assert_eq!(request.request, Some(create(2, 10)));
        assert_eq!(watches.begins(2, 30).len(), 0);
        assert_eq!(watches.end(1).len(), 1);
        assert_eq!(watches.targets(2).len(), 1);
    }
}
