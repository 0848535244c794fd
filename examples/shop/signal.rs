//! When to stop.

use tokio::sync::watch;

/// Ctrl-C, or SIGTERM where there is one, once it has come. It is not missed by somebody who
/// looks later.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<()>);

impl Stop {
    /// Listens from now on.
    pub(crate) fn listen() -> Self {
        let (come, receiver) = watch::channel(());
        tokio::spawn(async move {
            stop().await;
            drop(come);
        });
        Self(receiver)
    }

    /// Resolves when it has come.
    pub(crate) async fn wait(&self) {
        // Nothing is ever sent, so only the sender's end resolves it.
        let _ = self.0.clone().changed().await;
    }
}

/// Resolves on Ctrl-C, and on SIGTERM where there is one.
pub(crate) async fn stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => tokio::select! {
                _ = terminate.recv() => return,
                Ok(()) = tokio::signal::ctrl_c() => return,
            },
            Err(error) => eprintln!("shop: cannot listen for SIGTERM: {error}"),
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        // Nobody can tell us to stop: run until killed.
        std::future::pending::<()>().await;
    }
}
