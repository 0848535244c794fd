//! placeholder
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct MemoryBackend {}
