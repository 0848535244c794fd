//! When to stop.

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
