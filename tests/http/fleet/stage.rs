//! Where handlers of other processes report, and hear what to do.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpListener,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};

use crate::support::soon;

/// Handlers come on it one after the other, by a connection each.
pub(crate) struct Stage {
    address: SocketAddr,
    entering: mpsc::UnboundedReceiver<Actor>,
}

/// A handler that runs somewhere.
pub(crate) struct Actor {
    /// What its request was called.
    pub(crate) name: String,
    /// Under which it runs; 0 without a lock.
    pub(crate) token: u64,
    lines: tokio::io::Lines<BufReader<OwnedReadHalf>>,
    orders: OwnedWriteHalf,
}

impl Stage {
    pub(crate) async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (enter, entering) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (reader, orders) = stream.into_split();
                let mut lines = BufReader::new(reader).lines();
                // In the order in which they came: the next one is accepted after it.
                let Ok(Some(line)) = lines.next_line().await else {
                    // It was killed on its way.
                    continue;
                };
                let (name, token) = line.split_once(' ').expect("a name and a token");
                let actor = Actor {
                    name: name.to_owned(),
                    token: token.parse().expect("a number"),
                    lines,
                    orders,
                };
                if enter.send(actor).is_err() {
                    return;
                }
            }
        });
        Self { address, entering }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next handler that begins.
    pub(crate) async fn entered(&mut self) -> Actor {
        soon("a handler begins", self.entering.recv())
            .await
            .expect("open")
    }

    /// The next one, which is this.
    pub(crate) async fn enters(&mut self, name: &str) -> Actor {
        let actor = self.entered().await;
        assert_eq!(actor.name, name);
        actor
    }

    /// Whether nobody has come who was not met yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.entering.is_empty()
    }
}

impl Actor {
    async fn order(&mut self, order: &str) {
        let order = format!("{order}\n");
        let ordered = self.orders.write_all(order.as_bytes()).await;
        ordered.expect("it listens");
    }

    /// The next thing that it says.
    pub(crate) async fn says(&mut self) -> String {
        let line = soon("it says something", self.lines.next_line()).await;
        line.expect("it is there").expect("it runs")
    }

    /// What it answers to this.
    pub(crate) async fn ask(&mut self, question: &str) -> String {
        self.order(question).await;
        self.says().await
    }

    /// It may end.
    pub(crate) async fn go(mut self) {
        self.order("go").await;
        self.over().await;
    }

    /// Its handler is no more: ended, dropped, or killed with its process.
    pub(crate) async fn over(mut self) {
        soon("it is over", async {
            while let Ok(Some(_)) = self.lines.next_line().await {}
        })
        .await;
    }

    /// Blocks its thread for so many milliseconds; it answers after that.
    pub(crate) async fn block(&mut self, millis: u128) {
        self.order(&format!("block {millis}")).await;
    }
}
