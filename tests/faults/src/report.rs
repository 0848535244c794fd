//! Runs all that is asked for, and tells how it went.

use std::{process::ExitCode, sync::Mutex, thread, time::Instant};

use crate::{
    args::Args,
    cell::{Cell, Outcome},
    checks::Kind,
    faults::Fault,
    table,
};

pub(crate) fn run(args: &Args) -> ExitCode {
    if args.list {
        return list(args);
    }
    println!("seed {}", args.seed);
    let begun = Instant::now();
    let mut cells: Vec<_> = cells(args);
    if cells.is_empty() {
        eprintln!("none of these faults is brought to any of these backends (`--list` says why)");
        return ExitCode::FAILURE;
    }
    // The first one first, but those that take longest before them: nobody is to wait for one alone.
    cells.reverse();
    cells.sort_by_key(|cell| cell.fault == Fault::Any);
    let queue = Mutex::new(cells);
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let Some(cell) = queue.lock().expect("no panic").pop() else {
                        return;
                    };
                    let outcome = cell.run();
                    tell(&outcome);
                    outcomes.lock().expect("no panic").push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no panic");
    if let Some(path) = &args.table
        && let Err(error) = table::write(path, args, &outcomes)
    {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let bad = outcomes.iter().filter(|it| !it.wrong.is_empty()).count();
    println!(
        "{} runs, {bad} with findings, {:.0?}",
        outcomes.len(),
        begun.elapsed()
    );
    if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn cells(args: &Args) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &backend in &args.backends {
        for &fault in &args.faults {
            if fault.applies(backend).is_ok() {
                cells.push(Cell {
                    backend,
                    fault,
                    seed: args.seed,
                    time: args.time,
                });
            }
        }
    }
    cells
}

fn list(args: &Args) -> ExitCode {
    for &backend in &args.backends {
        for &fault in &args.faults {
            let (name, fault_name) = (backend.name(), fault.name());
            match fault.applies(backend) {
                Ok(()) => println!("{name}/{fault_name}: {}", fault.says()),
                Err(why) => println!("{name}/{fault_name}: no: {why}"),
            }
        }
    }
    ExitCode::SUCCESS
}

fn tell(outcome: &Outcome) {
    let figures = &outcome.found.figures;
    let count = |kind| outcome.found.count(kind);
    let tokens = count(Kind::TokenInversion) + count(Kind::TokenRepeat);
    let corrupt = count(Kind::Corrupt) + count(Kind::LostUpdate) + count(Kind::WrongRefusal);
    println!(
        "{}: {:.1?}, {} rounds; {} attempts, {} grants, {} doubles, {tokens} token faults, \
         {corrupt} corrupt, {} stale refused, {} lost unfenced, {} losses ({} late, {} excluded, margin {:?}), \
         {} overtaken and {} handed on of {} places, {} recoveries within {} ms, {} served, {} hand-offs within {} ms",
        outcome.cell.name(),
        outcome.took,
        outcome.brought.rounds,
        figures.attempts,
        figures.grants,
        count(Kind::DoubleHold),
        figures.stale_writes_refused,
        figures.unfenced_lost,
        figures.losses,
        count(Kind::LossLate),
        figures.losses_excluded,
        figures.smallest_margin.map(|margin| margin / 1_000_000),
        count(Kind::Overtaken),
        count(Kind::HandedOn),
        figures.places,
        figures.recoveries,
        figures.longest_recovery / 1_000_000,
        figures.served,
        figures.hand_offs,
        figures.longest_hand_off / 1_000_000,
    );
    for wrong in outcome.wrong.iter().take(20) {
        println!("    {wrong}");
    }
    if let Some(path) = &outcome.kept {
        println!("    {}", path.display());
    }
}
