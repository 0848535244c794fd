//! The guards of one request.

use crate::manager::LockGuard;

/// Most requests lock one key, and pay for no `Vec`.
pub(super) enum Guards {
    None,
    One(LockGuard),
    Many(Vec<LockGuard>),
}

impl Guards {
    pub(super) fn as_slice(&self) -> &[LockGuard] {
        match self {
            Self::None => &[],
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Many(guards) => guards,
        }
    }

    /// Those whose loss is the layer's to see. A shutdown may have released them.
    pub(super) fn not_taken(&self) -> impl Iterator<Item = &LockGuard> {
        self.as_slice().iter().filter(|g| !g.hold().is_taken())
    }

    /// Those whose release is still the layer's: the handler has not taken them.
    pub(super) fn layers(&self) -> impl Iterator<Item = &LockGuard> {
        self.as_slice().iter().filter(|g| g.hold().is_layers())
    }
}
