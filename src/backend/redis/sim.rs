//! A backend over connections that a simulation makes, with everything on the runtime that calls.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisResult,
    aio::MultiplexedConnection,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
};

use super::{
    RedisBackend,
    acks::Acks,
    client::{Client, ServerSettings, Settings},
    place::Source,
};

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send>>;

pub(crate) struct Dialer(Arc<dyn Fn() -> Dialing + Send + Sync>);

impl Dialer {
    pub(crate) fn new(dial: impl Fn() -> Dialing + Send + Sync + 'static) -> Self {
        Self(Arc::new(dial))
    }

    /// As the client library does it with a socket.
    pub(super) async fn dial(
        &self,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let stream = (self.0)().await?;
        let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        let (mux, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        tokio::spawn(driver);
        Ok(mux)
    }
}

impl RedisBackend {
    pub(crate) fn simulated(dialer: Dialer, inbox: &str, timeout: Duration) -> Self {
        let settings = Settings {
            servers: ServerSettings::One(Source::Simulated(dialer)),
            prefix: "sim:".into(),
            inbox: inbox.into(),
            timeout,
            acks: Acks::default(),
        };
        Self {
            client: Client::start(settings, Handle::current()),
        }
    }
}
