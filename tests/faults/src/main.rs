//! Faults of every kind for every backend: what histories of real processes and real servers show.
//! See `scripts/faults --help`.

mod args;
mod cell;
mod checks;
mod excuses;
mod expect;
mod faults;
mod history;
mod meets;
mod nemesis;
mod report;
mod rig;
#[path = "../../servers/mod.rs"]
mod servers;
mod stage;
mod storage;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("--rig") {
        let setup = args.next().expect("what it is started with");
        return match rig::run(&setup) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    match args::Args::read(std::env::args().skip(1)) {
        Ok(Some(args)) => report::run(&args),
        Ok(None) => {
            println!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}\n\n{}", args::USAGE);
            ExitCode::from(2)
        }
    }
}
