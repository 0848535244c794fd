//! What all layers share: which methods count, how a request is refused, how long it may wait,
//! and the bodies on both sides of the inner service.
//!
//! Nothing here knows a manager or a layer: the layers hand in what they know (a kind of refusal,
//! a watch over a lock) and get back what goes to the client.

pub(crate) mod grpc;
pub(crate) mod list;
mod method;
pub(crate) mod prefer;
pub mod problem;
mod refusal;
mod request_body;
mod response_body;

pub(crate) use self::{
    method::MethodFilter,
    problem::ProblemBase,
    refusal::contended_status,
    request_body::buffer,
    response_body::{BodyWatch, Rest},
};
pub use self::{
    refusal::{Refusal, RefusalKind},
    request_body::RequestBody,
    response_body::ResponseBody,
};
