//! Responses that are kept and given again: how they are read to their end, which of their headers
//! are kept, and in which bytes.

mod codec;
mod collect;
mod headers;
mod response;

pub(crate) use self::{
    codec::{Corrupt, Reader, Writer},
    collect::{Collected, collect, is_event_stream},
};
pub use self::{headers::StoredHeaders, response::StoredResponse};
