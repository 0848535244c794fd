//! A storage that compares fencing tokens, as users' storage is to do.

use tower_lock::FencingToken;

#[derive(Debug, Default)]
pub(crate) struct Storage {
    highest: Option<FencingToken>,
}

impl Storage {
    /// Whether it takes what this holder writes.
    pub(crate) fn takes(&mut self, token: FencingToken) -> bool {
        let is_stale = self.highest.is_some_and(|highest| token < highest);
        if !is_stale {
            self.highest = Some(token);
        }
        !is_stale
    }
}
