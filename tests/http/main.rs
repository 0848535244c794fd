//! The request path over HTTP.

mod basics;
mod support;
