//! Answers of which the client library makes nothing, not even an error.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::Poll,
};

use zookeeper_client as zk;

/// Sees a request through. In the task that asked, the library panics on some answers that are too
/// short (zookeeper-client 0.11.2: data without its `Stat`, an empty path), and so would every task
/// of ours end for good that asks of a server. Here that is an error, after which nobody knows what
/// was done.
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
