//! Answers of which the client library makes nothing, not even an error.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

use zookeeper_client as zk;

/// Sees a request through whose answer tells a path. The library panics on one that is empty
/// (zookeeper-client 0.11.2, `strip_root_path`), in the task that asked: here that is an answer that
/// cannot be read, after which nobody knows what was done.
pub(super) async fn readable<T, E: From<zk::Error>>(
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut request = pin!(request);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            let error = zk::Error::UnexpectedError("an answer that cannot be read".to_owned());
            Poll::Ready(Err(error.into()))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::zookeeper::trouble::Trouble;

    #[tokio::test]
    async fn a_panic_is_an_answer_that_leaves_it_open() {
        let request = async {
            tokio::task::yield_now().await;
            let path = String::new();
            Ok::<_, zk::Error>(path[..1].to_owned())
        };
        let error = readable(request).await.unwrap_err();
        assert!(!Trouble::from(error).answered);
        assert_eq!(readable(async { Ok::<_, zk::Error>(7) }).await, Ok(7));
    }
}
