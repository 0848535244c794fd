//! Where a layer's keys come from.

use std::{fmt, sync::Arc};

use crate::key::{BodyKeyExtractor, KeyExtractor};

/// A layer whose keys come from the request's head; see [`LockLayer::new`](crate::LockLayer::new).
#[derive(Clone)]
pub struct FromHead(pub(super) Arc<dyn KeyExtractor>);

/// A layer whose keys come from the request's body; see [`LockLayer::buffered`](crate::LockLayer::buffered).
#[derive(Clone)]
pub struct FromBody(pub(super) Arc<dyn BodyKeyExtractor>);

impl fmt::Debug for FromHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromHead")
    }
}

impl fmt::Debug for FromBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromBody")
    }
}
