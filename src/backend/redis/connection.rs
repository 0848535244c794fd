//! One connection to the server, from its opening to its certain end.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, RedisResult, ServerErrorKind,
    Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, OnceCell},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    scripts::Script,
    trouble::{Elsewhere, Trouble},
};
use crate::sync::lock;

/// How many commands may wait to be written. The library's default of 50 would make a burst of
/// requests wait for each other.
const WRITE_QUEUE: usize = 4096;

/// For how long answers are waited for once a connection has ended: those that are on their way may
/// say where else to ask.
const LAST_ANSWERS: Duration = Duration::from_millis(50);

/// How long opening a connection may take at least, however short the operation timeout is.
const OPENING: Duration = Duration::from_secs(2);

pub(in crate::backend) struct Connection {
    mux: MultiplexedConnection,
    timeout: Duration,
    id: Option<i64>,
    server: ServerFacts,
    may_kill: bool,
    ended: CancellationToken,
    doubt: Notify,
    retired: OnceCell<bool>,
    /// The sharded channels that it has subscribed to.
    heard: Mutex<HashMap<Arc<str>, Arc<OnceCell<()>>>>,
}

/// What the server says of itself; empty where the user may not ask.
#[derive(Clone, Debug, Default)]
pub(in crate::backend) struct ServerFacts {
    pub(in crate::backend) run_id: Option<String>,
    pub(in crate::backend) is_replica: bool,
    /// `standalone`, `cluster` or `sentinel`.
    pub(in crate::backend) mode: Option<String>,
    pub(in crate::backend) evicts: bool,
}

impl ServerFacts {
    fn read(info: &str) -> Self {
        let field = |name: &str| {
            info.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(field, _)| *field == name)
                .map(|(_, value)| value.trim())
        };
        let limited = field("maxmemory").is_some_and(|limit| limit != "0");
        Self {
            run_id: field("run_id").map(str::to_owned),
            is_replica: field("role") == Some("slave"),
            mode: field("redis_mode").map(str::to_owned),
            evicts: limited && field("maxmemory_policy").is_some_and(|p| p != "noeviction"),
        }
    }
}

impl Connection {
    /// Opens a connection that the current runtime drives. `on_push` runs in its driver.
    pub(in crate::backend) async fn open(
        client: &Client,
        limit: Duration,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Self, Trouble> {
        let dial = |config| async move {
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
        };
        Self::open_by(dial, limit, on_push).await
    }

    /// The same over whatever `dial` connects to.
    pub(super) async fn open_by<F>(
        dial: impl FnOnce(AsyncConnectionConfig) -> F,
        limit: Duration,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Self, Trouble>
    where
        F: Future<Output = RedisResult<MultiplexedConnection>>,
    {
        let ended = CancellationToken::new();
        let at_end = ended.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE)
            .set_push_sender(move |push: PushInfo| {
                match push.kind {
                    PushKind::Disconnection => at_end.cancel(),
                    _ => on_push(push),
                }
                Ok::<(), std::convert::Infallible>(())
            });
        let open = async {
            let mux = dial(config).await?;
            let mut connection = Self {
                mux,
                timeout: limit,
                id: None,
                server: ServerFacts::default(),
                may_kill: false,
                ended,
                doubt: Notify::new(),
                retired: OnceCell::new(),
                heard: Mutex::default(),
            };
            connection.introduce().await?;
            Ok(connection)
        };
        // Several round trips, and where callers wait they wait no longer than they do anyway.
        timeout(limit.max(OPENING), open)
            .await
            .unwrap_or_else(|_| Err(Trouble::no_answer()))
    }

    /// Learns what an undo needs if this connection ends. Each may be forbidden; then an undo
    /// leaves a tombstone instead of killing.
    async fn introduce(&mut self) -> Result<(), Trouble> {
        let mut questions = redis::pipe();
        questions.cmd("CLIENT").arg("ID");
        questions.cmd("INFO");
        // There is no client of this number: only a missing right makes it a refusal.
        questions.add_command(kill(0));
        questions.ignore_errors();
        let mut mux = self.mux.clone();
        let answers = mux.send_packed_commands(&questions, 0, 3);
        let answers = self.unless_ended(answers).await??;
        for answer in &answers {
            if let Value::ServerError(error) = answer
                && error.code() == "NOAUTH"
            {
                return Err(redis::RedisError::from(error.clone()).into());
            }
        }
        let [id, info, kill] = answers.as_slice() else {
            return Err(Trouble::strange());
        };
        if let Value::Int(id) = id {
            self.id = Some(*id);
        }
        if let Some(info) = text(info) {
            self.server = ServerFacts::read(info);
        }
        self.may_kill = match kill {
            Value::ServerError(error) => error.kind() != Some(ServerErrorKind::NoPerm),
            _ => true,
        };
        Ok(())
    }

    pub(in crate::backend) fn server(&self) -> &ServerFacts {
        &self.server
    }

    /// Whether [`retire`](Self::retire) can make sure.
    pub(in crate::backend) fn can_be_ended(&self) -> bool {
        self.may_kill && self.id.is_some() && self.server.run_id.is_some()
    }

    pub(in crate::backend) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Cancelled when it has ended; cancelling it ends the connection.
    pub(super) fn end_token(&self) -> CancellationToken {
        self.ended.clone()
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Resolves when somebody got no answer.
    pub(super) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Somebody got no answer, and did not wait for as long as it may take.
    #[cfg(feature = "redlock")]
    pub(in crate::backend) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Nobody uses it any more, whether the server knows or not.
    pub(in crate::backend) fn end(&self) {
        self.ended.cancel();
    }

    /// What is asked over one that fell silent takes its time for nothing; where many ask in turn, the
    /// time of all.
    fn goes_on(&self) -> Result<(), Trouble> {
        match self.has_ended() {
            true => Err(Trouble::ended()),
            false => Ok(()),
        }
    }

    /// The answer, or soon after the end of the connection that there is none. The library does not
    /// tell everybody of that: a command that comes to its queue while it ends may stay there for as
    /// long as somebody waits for it.
    async fn unless_ended<T>(
        &self,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> Result<RedisResult<T>, Trouble> {
        let over = async {
            self.ended().await;
            sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            biased;
            answer = answer => Ok(answer),
            () = over => Err(Trouble::ended()),
        }
    }

    async fn send(&self, cmd: &Cmd) -> Result<Value, Trouble> {
        self.goes_on()?;
        let mut mux = self.mux.clone();
        let result = self.unless_ended(mux.send_packed_command(cmd)).await?;
        self.judge(result.and_then(Value::extract_error))
    }

    /// An answer counts only on a connection that has not ended meanwhile: the server may not be
    /// the master any more, or the answer may be another question's.
    fn judge<T>(&self, result: Result<T, redis::RedisError>) -> Result<T, Trouble> {
        if result.is_ok() && self.has_ended() {
            return Err(Trouble::ended());
        }
        result.map_err(|error| {
            let trouble = Trouble::from(error);
            // Nothing is known of what else is on its way here; or this is no place to be.
            if !trouble.answered || trouble.elsewhere() == Some(&Elsewhere::OtherMaster) {
                self.ended.cancel();
            }
            trouble
        })
    }

    /// Sends a command and gives its answer, or that there was none in time: then it may have been
    /// executed, or be executed later.
    pub(in crate::backend) async fn ask(&self, cmd: &Cmd) -> Result<Value, Trouble> {
        match timeout(self.timeout, self.send(cmd)).await {
            Ok(result) => result,
            Err(_) => {
                self.doubt.notify_one();
                Err(Trouble::no_answer())
            }
        }
    }

    /// Sends several, in a row, and gives the answer to each. `limit` is for all of them.
    pub(super) async fn ask_all(
        &self,
        questions: &Pipeline,
        limit: Duration,
    ) -> Result<Vec<Result<Value, Trouble>>, Trouble> {
        self.goes_on()?;
        let count = questions.len();
        let mut mux = self.mux.clone();
        let answers = mux.send_packed_commands(questions, 0, count);
        match timeout(limit, self.unless_ended(answers)).await {
            Ok(Err(ended)) => Err(ended),
            Ok(Ok(Ok(answers))) => Ok(answers
                .into_iter()
                .map(|answer| self.judge(answer.extract_error()))
                .collect()),
            Ok(Ok(Err(error))) => Err(self
                .judge::<()>(Err(error))
                .err()
                .unwrap_or_else(Trouble::strange)),
            Err(_) => {
                self.doubt.notify_one();
                Err(Trouble::no_answer())
            }
        }
    }

    /// The same, and if `asking`, from a node to which the slot of the command is being moved.
    pub(super) async fn ask_of(&self, asking: bool, cmd: Cmd) -> Result<Value, Trouble> {
        if !asking {
            return self.ask(&cmd).await;
        }
        let mut questions = Pipeline::new();
        questions.cmd("ASKING").add_command(cmd).ignore_errors();
        let answers = self.ask_all(&questions, self.timeout).await?;
        answers
            .into_iter()
            .last()
            .unwrap_or(Err(Trouble::strange()))
    }

    /// Runs a script. `call` makes the command, with the code if the server has forgotten it:
    /// only then is it sent twice, since the first one did not run.
    pub(in crate::backend) async fn run(
        &self,
        asking: bool,
        script: &Script,
        call: &impl Fn(&Script, bool) -> Cmd,
    ) -> Result<Value, Trouble> {
        match self.ask_of(asking, call(script, false)).await {
            Err(trouble) if trouble.is_no_script() => self.ask_of(asking, call(script, true)).await,
            result => result,
        }
    }

    /// The same for as long as the caller likes to wait. A timer for each of several nodes that
    /// are asked at once costs more than one for all of them.
    #[cfg(feature = "redlock")]
    pub(in crate::backend) async fn run_unlimited(
        &self,
        script: &Script,
        call: &impl Fn(&Script, bool) -> Cmd,
    ) -> Result<Value, Trouble> {
        match self.send(&call(script, false)).await {
            Err(trouble) if trouble.is_no_script() => self.send(&call(script, true)).await,
            result => result,
        }
    }

    pub(in crate::backend) async fn ping(&self) -> Result<(), Trouble> {
        self.ask(&redis::cmd("PING")).await.map(drop)
    }

    pub(in crate::backend) async fn subscribe(&self, channel: &str) -> Result<(), Trouble> {
        let mut mux = self.mux.clone();
        let subscribed = self.unless_ended(mux.subscribe(channel));
        let subscribed = timeout(self.timeout, subscribed).await;
        let subscribed = subscribed.map_err(|_| Trouble::no_answer())?;
        subscribed?.map_err(Trouble::from)
    }

    /// Subscribes to a channel of a Cluster's node, once.
    pub(super) async fn hear(&self, channel: &Arc<str>) -> Result<(), Trouble> {
        let heard = lock(&self.heard)
            .entry(channel.clone())
            .or_default()
            .clone();
        let subscribe = async || {
            let mut cmd = redis::cmd("SSUBSCRIBE");
            cmd.arg(&**channel);
            self.ask(&cmd).await.map(drop)
        };
        let subscribed = timeout(self.timeout, heard.get_or_try_init(subscribe)).await;
        subscribed
            .unwrap_or_else(|_| Err(Trouble::no_answer()))
            .map(drop)
    }

    pub(super) fn hears(&self, channel: &str) -> bool {
        let heard = lock(&self.heard);
        heard.get(channel).is_some_and(|heard| heard.initialized())
    }

    /// Any channel that [`hear`](Self::hear) has subscribed to.
    pub(super) fn heard(&self) -> Option<Arc<str>> {
        let heard = lock(&self.heard);
        let mut channels = heard.iter().filter(|(_, heard)| heard.initialized());
        channels.next().map(|(channel, _)| channel.clone())
    }

    /// Ends this connection at the server, through another one: whatever was sent over it and did
    /// not run yet never will, wherever its bytes are. `false` if the user may not do that.
    pub(in crate::backend) async fn retire(&self, through: &Self) -> Result<bool, Trouble> {
        self.end();
        let (Some(id), Some(old), Some(new)) =
            (self.id, &self.server.run_id, &through.server.run_id)
        else {
            return Ok(false);
        };
        // Another process, of this server or of the one that has the role or slot by now: it knows
        // nothing of the connection, and may use the number again. Where the old one still runs,
        // what it does late it does to keys that are not its own any more. (A slot would have to
        // come back to it before a packet does that is under way.)
        if old != new {
            return Ok(true);
        }
        let end_it = async || {
            match through.ask(&kill(id)).await {
                Ok(_) => Ok(true),
                // Not allowed, or not known: it never will be. Anything else passes.
                Err(trouble)
                    if trouble.is_server(ServerErrorKind::NoPerm)
                        || trouble.is_server(ServerErrorKind::ResponseError) =>
                {
                    Ok(false)
                }
                Err(trouble) => Err(trouble),
            }
        };
        self.retired.get_or_try_init(end_it).await.copied()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Whoever watches over it need not any more.
        self.ended.cancel();
    }
}

fn kill(id: i64) -> Cmd {
    let mut kill = Cmd::new();
    kill.arg("CLIENT").arg("KILL").arg("ID").arg(id);
    kill
}

pub(in crate::backend) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

impl Trouble {
    pub(super) fn is_no_script(&self) -> bool {
        self.is_server(ServerErrorKind::NoScript)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("ended", &self.has_ended())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use redis::{ProtocolVersion, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    /// Answers what an opening asks, and nothing after that.
    async fn opens_and_falls_silent(mut client: DuplexStream) {
        let (mut said, mut answered) = (String::new(), 0);
        let mut bytes = [0; 1024];
        while let Ok(count @ 1..) = client.read(&mut bytes).await {
            said += std::str::from_utf8(&bytes[..count]).expect("text");
            let asked = said.lines().filter(|line| line.starts_with('*')).count();
            if !said.contains("PING") {
                let answers = "+OK\r\n".repeat(asked - answered);
                client.write_all(answers.as_bytes()).await.expect("open");
                answered = asked;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_hears_that_it_has_ended() {
        let dial = async |config| {
            let (ours, theirs) = tokio::io::duplex(4096);
            tokio::spawn(opens_and_falls_silent(theirs));
            let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
            let (mux, driver) = MultiplexedConnection::new_with_config(&info, ours, config).await?;
            tokio::spawn(driver);
            Ok(mux)
        };
        let hour = Duration::from_secs(3600);
        let connection = Connection::open_by(dial, hour, |_| {}).await;
        let connection = Arc::new(connection.expect("it is answered"));
        let waits = tokio::spawn({
            let connection = connection.clone();
            async move {
                let mut questions = redis::pipe();
                questions.cmd("PING").cmd("PING");
                tokio::join!(connection.ping(), connection.ask_all(&questions, hour))
            }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waits.is_finished(), "nobody answered");
        connection.end();
        let heard = timeout(Duration::from_secs(1), waits).await;
        let (one, all) = heard.expect("at once").expect("no panic");
        assert!(one.is_err() && all.is_err());
    }
}
