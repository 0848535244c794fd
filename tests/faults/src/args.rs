//! What is to be run.

use std::{path::PathBuf, time::Duration};

use crate::{faults::Fault, stage::Backend};

pub(crate) const USAGE: &str = "\
usage: scripts/faults [OPTIONS]

  --backend NAME[,NAME..]   these; all by default
  --fault NAME[,NAME..]     these; all that apply by default
  --seconds N               how long each fault is repeated for; once by default
  --seed N                  repeats a run's choices
  --jobs N                  how many runs at a time; 6 by default
  --table FILE              writes the table into this file, between its markers
  --list                    says which fault applies where, and why not

The seed is printed. The history of a run with findings is kept in target/faults/.";

#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) backends: Vec<Backend>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) time: Option<Duration>,
    pub(crate) seed: u64,
    pub(crate) jobs: usize,
    pub(crate) table: Option<PathBuf>,
    pub(crate) list: bool,
}

impl Args {
    /// `None` where help is asked for.
    pub(crate) fn read(mut given: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut args = Self {
            backends: Backend::all().collect(),
            faults: Fault::ALL.to_vec(),
            time: None,
            seed: fastrand::u64(..),
            jobs: 6,
            table: None,
            list: false,
        };
        while let Some(name) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{name} needs a value"));
            match name.as_str() {
                "--backend" => {
                    args.backends = names(&value()?, "backend", Backend::named, || {
                        Backend::all().map(Backend::name).collect()
                    })?;
                }
                "--fault" => {
                    args.faults = names(&value()?, "fault", Fault::named, || {
                        Fault::ALL.map(Fault::name).to_vec()
                    })?;
                }
                "--seconds" => args.time = Some(Duration::from_secs(number(&name, &value()?)?)),
                "--seed" => args.seed = number(&name, &value()?)?,
                "--jobs" => args.jobs = number(&name, &value()?)?.max(1) as usize,
                "--table" => args.table = Some(value()?.into()),
                "--list" => args.list = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("`{name}` is not known here")),
            }
        }
        Ok(Some(args))
    }
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    let wrong = |_| format!("{name} takes a whole number, not `{text}`");
    text.parse().map_err(wrong)
}

fn names<T>(
    text: &str,
    what: &str,
    named: impl Fn(&str) -> Option<T>,
    all: impl Fn() -> Vec<&'static str>,
) -> Result<Vec<T>, String> {
    let one = |name| {
        let accepted = || all().join(", ");
        named(name).ok_or_else(|| format!("no {what} is called `{name}`; accepted: {}", accepted()))
    };
    text.split(',').map(one).collect()
}
