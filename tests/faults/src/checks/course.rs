//! What befell the processes and the machine: who was stopped, killed or cut off, and when.

use std::collections::BTreeMap;

use crate::history::{History, Nanos, What};

pub(super) struct Course<'h> {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    processes: BTreeMap<u32, Process>,
    stalls: Spans,
    faults: Vec<Fault<'h>>,
    /// When a fault begins, or a process is stopped or killed.
    blows: Vec<Nanos>,
    /// When a process was stopped, killed, or asked to end.
    fell_out: Vec<(Nanos, Nanos)>,
}

#[derive(Default)]
struct Process {
    /// Stopped, or covered by a fault of its own.
    unwell: Spans,
    /// Stopped, or the whole machine stood still.
    away: Spans,
    /// Killed, or ended by itself.
    gone: Option<Nanos>,
    /// Killed, or asked to end.
    ends: Option<Nanos>,
    /// When it was told that the backend is away, or that it had lost a lock, in order: a session
    /// that ends takes all locks and all places of its process.
    cut_off: Vec<Nanos>,
}

struct Fault<'h> {
    name: &'h str,
    process: Option<u32>,
    from: Nanos,
    to: Nanos,
}

impl<'h> Course<'h> {
    /// `stall`: when nobody writes a line for longer, the machine stood still.
    ///
    /// That hides nothing of a lock: only a history with [`What::Beat`] is judged so, and beats are
    /// written by a thread that asks for no lock and waits for no server. A lock that hangs leaves
    /// them alone.
    ///
    /// `stopped_by`: faults under which a process can do nothing, as if it were stopped.
    pub(super) fn of(history: &'h History, stall: Nanos, stopped_by: &[String]) -> Self {
        let events = &history.events;
        let start = events.first().map_or(0, |event| event.at);
        let end = events.last().map_or(0, |event| event.at);
        let mut stalls = Vec::new();
        if events.iter().any(|event| event.what == What::Beat) {
            for pair in events.windows(2) {
                if pair[1].at - pair[0].at > stall {
                    stalls.push((pair[0].at, pair[1].at));
                }
            }
        }
        let mut stops: BTreeMap<u32, Vec<(Nanos, Nanos)>> = BTreeMap::new();
        let mut course = Self {
            start,
            end,
            processes: BTreeMap::new(),
            stalls: Spans::of(stalls.clone()),
            faults: Vec::new(),
            blows: Vec::new(),
            fell_out: Vec::new(),
        };
        for id in history.attempts.keys() {
            course.processes.entry(id.process).or_default();
        }
        for event in events {
            course.add(event.at, &event.what, &mut stops);
        }
        course.fell_out = stops.values().flatten().copied().collect();
        for (process, known) in &mut course.processes {
            let mut spans = stops.remove(process).unwrap_or_default();
            if let Some(ends) = known.ends {
                let gone = known.gone.unwrap_or(Nanos::MAX);
                course.fell_out.push((ends, gone.max(ends)));
            }
            let stopping = course.faults.iter().filter(|fault| {
                fault.process.is_none_or(|of| of == *process)
                    && stopped_by.iter().any(|name| name == fault.name)
            });
            spans.extend(stopping.map(|fault| (fault.from, fault.to)));
            let own = course.faults.iter();
            let own = own.filter(|fault| fault.process == Some(*process));
            let own = own.map(|fault| (fault.from, fault.to));
            known.unwell = Spans::of(own.chain(spans.iter().copied()).collect());
            spans.extend_from_slice(&stalls);
            known.away = Spans::of(spans);
        }
        course
    }

    fn add(&mut self, at: Nanos, what: &'h What, stops: &mut BTreeMap<u32, Vec<(Nanos, Nanos)>>) {
        match what {
            What::Stopped { process } => {
                self.blows.push(at);
                let spans = stops.entry(*process).or_default();
                if spans.last().is_none_or(|last| last.1 != Nanos::MAX) {
                    spans.push((at, Nanos::MAX));
                }
            }
            What::Continued { process } => {
                let last = stops.get_mut(process).and_then(|spans| spans.last_mut());
                if let Some(last) = last.filter(|last| last.1 == Nanos::MAX) {
                    last.1 = at;
                }
            }
            What::Killed { process } => {
                self.blows.push(at);
                let process = self.processes.entry(*process).or_default();
                process.gone.get_or_insert(at);
                process.ends.get_or_insert(at);
            }
            What::Drains { process } => {
                let process = self.processes.entry(*process).or_default();
                process.ends.get_or_insert(at);
            }
            What::Drained { process } => {
                let process = self.processes.entry(*process).or_default();
                process.gone.get_or_insert(at);
            }
            What::Fault { name, process } => {
                self.blows.push(at);
                self.faults.push(Fault {
                    name,
                    process: *process,
                    from: at,
                    to: Nanos::MAX,
                });
            }
            What::Healed { name, process } => {
                // Faults of one name and process are one, however often they were begun.
                for fault in &mut self.faults {
                    if fault.to == Nanos::MAX && fault.name == name && fault.process == *process {
                        fault.to = at;
                    }
                }
            }
            What::Refused { id, why } if is_away(why) => {
                let process = self.processes.entry(id.process).or_default();
                process.cut_off.push(at);
            }
            What::Lost { id } => {
                let process = self.processes.entry(id.process).or_default();
                process.cut_off.push(at);
            }
            _ => {}
        }
    }

    /// How long the machine stood still, together.
    pub(super) fn stalled(&self) -> Nanos {
        self.stalls.within(self.start, self.end)
    }

    /// How much of this time the machine ran.
    pub(super) fn ran(&self, from: Nanos, to: Nanos) -> Nanos {
        to.saturating_sub(from) - self.stalls.within(from, to)
    }

    /// How much of this time the process could run.
    pub(super) fn awake(&self, process: u32, from: Nanos, to: Nanos) -> Nanos {
        match self.processes.get(&process) {
            Some(known) => to.saturating_sub(from) - known.away.within(from, to),
            None => self.ran(from, to),
        }
    }

    /// Whether the process was stopped, gone or starved by the machine at any moment of this time.
    pub(super) fn away(&self, process: u32, from: Nanos, to: Nanos) -> bool {
        self.processes.get(&process).is_some_and(|known| {
            known.away.touches(from, to) || known.gone.is_some_and(|gone| gone <= to)
        })
    }

    /// Whether the process itself was told in this time that the backend is away, or of a loss.
    pub(super) fn was_cut_off(&self, process: u32, from: Nanos, to: Nanos) -> bool {
        self.processes.get(&process).is_some_and(|known| {
            let next = known.cut_off.partition_point(|at| *at < from);
            known.cut_off.get(next).is_some_and(|at| *at <= to)
        })
    }

    /// Whether a process that nothing had befallen was told so: then the servers had not answered
    /// for at most this long before, nobody knows whom.
    pub(super) fn hung(&self, from: Nanos, to: Nanos, away: Nanos, but: &[String]) -> bool {
        self.processes.iter().any(|(process, known)| {
            let first = known.cut_off.partition_point(|at| *at < from);
            let told = known.cut_off[first..].iter();
            let told = told.take_while(|at| at.saturating_sub(away) <= to);
            told.copied().any(|at| {
                let before = at.saturating_sub(away);
                !self.disturbed(*process, before, at, but)
                    && !known.unwell.touches(before, at)
                    && known.ends.is_none_or(|ends| at < ends)
            })
        })
    }

    /// Whether the process runs at this time.
    pub(super) fn is_there(&self, process: u32, at: Nanos) -> bool {
        self.processes.get(&process).is_some_and(|known| {
            known.gone.is_none_or(|gone| at < gone) && !known.away.touches(at, at)
        })
    }

    /// The parts of this time in which the process ran, and no fault of its own covered it.
    pub(super) fn well(&self, process: u32, from: Nanos, to: Nanos) -> Vec<(Nanos, Nanos)> {
        match self.processes.get(&process) {
            Some(known) => known.unwell.without(from, to),
            None => vec![(from, to)],
        }
    }

    /// Whether a fault covered the process, or everybody, at any moment of this time.
    pub(super) fn disturbed(&self, process: u32, from: Nanos, to: Nanos, but: &[String]) -> bool {
        self.faults.iter().any(|fault| {
            fault.process.is_none_or(|of| of == process)
                && fault.from <= to
                && from <= fault.to
                && !but.iter().any(|name| name == fault.name)
        })
    }

    /// When a call of that time had reached the servers, at the latest, if it took no time: a fault
    /// just before it may still have to be got over.
    pub(super) fn reached(
        &self,
        process: u32,
        call: Nanos,
        reconnects: Nanos,
        but: &[String],
    ) -> Nanos {
        let faults = self.faults.iter().filter(|fault| {
            fault.process.is_none_or(|of| of == process)
                && fault.to <= call
                && !but.iter().any(|name| name == fault.name)
        });
        let back = faults.map(|fault| fault.to.saturating_add(reconnects));
        back.max().map_or(call, |back| back.max(call))
    }

    /// Whether a fault of everybody goes on at this time.
    pub(super) fn is_disturbed(&self, at: Nanos) -> bool {
        self.faults
            .iter()
            .any(|fault| fault.process.is_none() && fault.from <= at && at < fault.to)
    }

    /// When anything befell anybody, but for these faults. Whoever is told that the backend is away,
    /// or of a loss, had lost it for at most this long: on a busy machine that needs no fault.
    pub(super) fn befell(&self, but: &[String], away: Nanos) -> Spans {
        let told = self.processes.values().flat_map(|known| &known.cut_off);
        let told = told.map(|at| (at.saturating_sub(away), *at));
        let faults = self.faults.iter();
        let faults = faults.filter(|fault| !but.iter().any(|name| name == fault.name));
        let faults = faults.map(|fault| (fault.from, fault.to));
        let fell_out = self.fell_out.iter().copied();
        Spans::of(faults.chain(fell_out).chain(told).collect())
    }

    /// When the process was killed, or ended.
    pub(super) fn gone(&self, process: u32) -> Option<Nanos> {
        self.processes.get(&process)?.gone
    }

    /// When a process stopped to be asked for answers: it was killed, or asked to end.
    pub(super) fn ends(&self, process: u32) -> Option<Nanos> {
        self.processes.get(&process)?.ends
    }

    /// The next time that something is done to somebody.
    pub(super) fn next_blow(&self, after: Nanos) -> Option<Nanos> {
        let next = self.blows.partition_point(|at| *at <= after);
        self.blows.get(next).copied()
    }
}

/// Whether a refusal says so: as an error of the manager, or as the status of a response.
fn is_away(why: &str) -> bool {
    matches!(why, "backend_unavailable" | "503")
}

/// Spans of time that do not overlap, in order, with what they have together.
#[derive(Default)]
pub(super) struct Spans {
    spans: Vec<(Nanos, Nanos)>,
    /// How much all spans before this one have.
    before: Vec<Nanos>,
}

impl Spans {
    /// Joins spans that overlap or touch.
    pub(super) fn of(mut spans: Vec<(Nanos, Nanos)>) -> Self {
        spans.sort_unstable();
        let mut joined: Vec<(Nanos, Nanos)> = Vec::new();
        for (from, to) in spans {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        let mut sum: Nanos = 0;
        let mut before = Vec::with_capacity(joined.len());
        for (from, to) in &joined {
            before.push(sum);
            sum = sum.saturating_add(to - from);
        }
        Self {
            spans: joined,
            before,
        }
    }

    /// How much of this time the spans cover.
    pub(super) fn within(&self, from: Nanos, to: Nanos) -> Nanos {
        self.until(to).saturating_sub(self.until(from))
    }

    fn until(&self, at: Nanos) -> Nanos {
        match self.spans.partition_point(|span| span.0 <= at) {
            0 => 0,
            next => self.before[next - 1] + at.min(self.spans[next - 1].1) - self.spans[next - 1].0,
        }
    }

    pub(super) fn touches(&self, from: Nanos, to: Nanos) -> bool {
        let first = self.spans.partition_point(|span| span.1 < from);
        self.spans.get(first).is_some_and(|span| span.0 <= to)
    }

    /// When the next one begins.
    pub(super) fn next(&self, after: Nanos) -> Option<Nanos> {
        let next = self.spans.partition_point(|span| span.0 <= after);
        self.spans.get(next).map(|span| span.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Nanos, Nanos)> {
        self.spans.iter().copied()
    }

    pub(super) fn without(&self, mut from: Nanos, to: Nanos) -> Vec<(Nanos, Nanos)> {
        let mut parts = Vec::new();
        let first = self.spans.partition_point(|span| span.1 <= from);
        for span in self.spans[first..].iter().take_while(|span| span.0 < to) {
            if from < span.0 {
                parts.push((from, span.0));
            }
            from = span.1;
        }
        if from < to {
            parts.push((from, to));
        }
        parts
    }
}
