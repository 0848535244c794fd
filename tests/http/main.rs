//! The request path over HTTP.

mod basics;
mod blocked;
mod flaky;
mod floods;
mod generic;
mod keys_over_http;
mod logs;
mod loss;
mod nesting;
mod outages;
mod shutdown;
mod support;
