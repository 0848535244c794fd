//! The request path over HTTP.

mod basics;
mod blocked;
mod bodies_in;
mod connections;
mod fairness;
mod flaky;
mod floods;
mod generic;
mod grpc;
mod keys_over_http;
mod logs;
mod loss;
mod modes;
mod nesting;
mod observing;
mod outages;
mod prefer;
mod settings;
mod shutdown;
mod support;
