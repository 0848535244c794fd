//! The request path over HTTP.

mod basics;
mod blocked;
mod flaky;
mod floods;
mod generic;
mod keys_over_http;
mod loss;
mod support;
