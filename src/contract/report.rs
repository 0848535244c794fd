//! What a run of the suite found.

use std::{error::Error, fmt, time::Duration};

use crate::error::{BackendError, BoxError};

/// A broken must, or a failure that has no place in a healthy backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    check: String,
    must: u8,
    of_records: bool,
    message: String,
}

impl Violation {
    pub(super) fn new(must: u8, message: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            must,
            of_records: false,
            message: message.into(),
        }
    }

    pub(super) fn of_check(mut self, check: &str) -> Self {
        self.check = check.into();
        self
    }

    /// A must of the contract of records.
    pub(super) fn of_records(mut self) -> Self {
        self.of_records = true;
        self
    }

    /// The check that found it.
    pub fn check(&self) -> &str {
        &self.check
    }

    /// The number of the must in the contract of [`LockBackend`](crate::LockBackend) that is
    /// broken, or, for a check of [`records`](super::records), of
    /// [`RecordStore`](crate::record::RecordStore) (R1 is 1); 0 if the backend or the target failed outright.
    pub fn must(&self) -> u8 {
        self.must
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.must {
            0 => write!(f, "{}: {}", self.check, self.message),
            must => {
                let of = if self.of_records { "R" } else { "" };
                write!(f, "{}: must {of}{must}: {}", self.check, self.message)
            }
        }
    }
}

impl Error for Violation {}

impl From<BackendError> for Violation {
    fn from(error: BackendError) -> Self {
        Self::new(0, format!("unexpected error of the backend: {error}"))
    }
}

impl From<BoxError> for Violation {
    fn from(error: BoxError) -> Self {
        Self::new(0, format!("the target cannot connect: {error}"))
    }
}

/// How one check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It passed, in this time.
    Passed(Duration),
    /// The backend's capabilities, or the target, leave nothing to check; why.
    NotApplicable(&'static str),
    /// A must is broken.
    Violated(Violation),
}

/// How all checks ended. `Display` is a table of them.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Report {
    outcomes: Vec<(&'static str, Outcome)>,
}

impl Report {
    pub(super) fn push(&mut self, check: &'static str, outcome: Outcome) {
        self.outcomes.push((check, outcome));
    }

    /// Every check with its outcome, in order.
    pub fn outcomes(&self) -> &[(&'static str, Outcome)] {
        &self.outcomes
    }

    /// What was broken.
    pub fn violations(&self) -> impl Iterator<Item = &Violation> {
        self.outcomes
            .iter()
            .filter_map(|(_, outcome)| match outcome {
                Outcome::Violated(violation) => Some(violation),
                _ => None,
            })
    }

    /// The checks that did not apply, with the reason.
    pub fn not_applicable(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.outcomes
            .iter()
            .filter_map(|(name, outcome)| match outcome {
                Outcome::NotApplicable(reason) => Some((*name, *reason)),
                _ => None,
            })
    }

    /// Asserts that all checks passed but exactly these, which did not apply.
    ///
    /// # Panics
    ///
    /// With the whole table, if a check was violated, or the checks that did not apply are not
    /// the named ones.
    #[track_caller]
    pub fn expect_passed(&self, not_applicable: &[&str]) {
        assert!(self.violations().next().is_none(), "{self}");
        let mut actual: Vec<_> = self.not_applicable().map(|(name, _)| name).collect();
        let mut expected = not_applicable.to_vec();
        actual.sort_unstable();
        expected.sort_unstable();
        assert_eq!(actual, expected, "checks that do not apply:\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.outcomes {
            match outcome {
                Outcome::Passed(took) => writeln!(f, "passed    {name} ({took:.1?})")?,
                Outcome::NotApplicable(reason) => writeln!(f, "n/a       {name}: {reason}")?,
                Outcome::Violated(violation) => writeln!(f, "VIOLATED  {violation}")?,
            }
        }
        Ok(())
    }
}
