//! The primary that sentinels name.

use crate::address::{Address, Dialer};
use crate::builder::ConnectError;
use crate::connection::{Connection, Endpoint};
use crate::reply::SHORT;
use crate::store_error::StoreError;
use redis::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a sentinel may take. All are asked at once, so that one that is gone holds nobody up.
/// Less than a beat may take, so that it is told what is wrong.
const PATIENCE: Duration = Duration::from_millis(300);

pub(crate) struct Sentinels {
    sentinels: Vec<Arc<Sentinel>>,
    master: String,
    dial: Dialer,
    /// Whom they named last.
    named: Mutex<Option<Address>>,
}

struct Sentinel {
    address: Address,
    endpoint: Endpoint,
    /// A connection that is kept for the next question.
    kept: Mutex<Option<Connection>>,
}

impl Sentinels {
    /// `auth`: user and password of the sentinels, who have their own.
    pub(crate) fn new(
        addresses: &[Address],
        master: String,
        dial: Dialer,
        auth: Option<&(String, String)>,
    ) -> Result<Self, ConnectError> {
        let own = dial.as_user(auth);
        let sentinel = |address: &Address| {
            let endpoint = own.endpoint(address)?;
            Ok(Arc::new(Sentinel {
                address: address.clone(),
                endpoint,
                kept: Mutex::default(),
            }))
        };
        let sentinels = addresses.iter().map(sentinel).collect::<Result<_, _>>()?;
        Ok(Self {
            sentinels,
            master,
            dial,
            named: Mutex::default(),
        })
    }

    /// A connection to the primary: the first one named that says that it is one.
    pub(crate) async fn connect(&self, timeout: Duration) -> Result<Connection, StoreError> {
        let mut answers = self.ask();
        let mut tried: Vec<Address> = Vec::new();
        let mut worst = None;
        while let Some(answer) = answers.join_next().await {
            let connected = match answer {
                Ok(Ok(address)) if tried.contains(&address) => continue,
                Ok(Ok(address)) => {
                    tried.push(address.clone());
                    self.primary(address, timeout).await
                }
                Ok(Err(trouble)) => Err(trouble),
                Err(_) => Err(StoreError::TimedOut),
            };
            match connected {
                Ok(connection) => return Ok(connection),
                // What a server says is worth more than that a sentinel is not there.
                Err(trouble)
                    if worst.is_none() || matches!(trouble, StoreError::Refused { .. }) =>
                {
                    worst = Some(trouble)
                }
                Err(_) => {}
            }
        }
        Err(worst.unwrap_or(StoreError::TimedOut))
    }

    async fn primary(&self, address: Address, timeout: Duration) -> Result<Connection, StoreError> {
        let unreachable =
            |error: ConnectError| StoreError::Unreachable(format!("{address}: {error}"));
        let endpoint = self.dial.endpoint(&address).map_err(unreachable)?;
        let mut connection = endpoint.connect(timeout).await?;
        let role = redis::cmd("ROLE");
        let role = match tokio::time::timeout(timeout, connection.send(&role, SHORT)).await {
            Ok(Ok(Value::Array(role))) => role,
            // Who may not ask may still write, or is told that this is a replica.
            Ok(Err(StoreError::Refused { code, .. })) if code == "NOPERM" => Vec::new(),
            Ok(Err(trouble)) => return Err(trouble),
            Ok(_) => return Err(StoreError::Protocol("no role".to_owned())),
            Err(_) => return Err(StoreError::TimedOut),
        };
        match role.first() {
            Some(Value::BulkString(role)) if role != b"master" => {
                let message = format!("the sentinels name {address}, which is no primary yet");
                Err(StoreError::Refused {
                    code: "READONLY".to_owned(),
                    message,
                })
            }
            _ => {
                *self.named() = Some(address);
                Ok(connection)
            }
        }
    }

    /// Whether they name another primary than the one that connections go to.
    pub(crate) async fn name_another(&self) -> bool {
        let Some(known) = self.named().clone() else {
            return false;
        };
        let mut answers = self.ask();
        let (mut same, mut other) = (0, 0);
        while let Some(answer) = answers.join_next().await {
            match answer {
                Ok(Ok(address)) if address == known => same += 1,
                Ok(Ok(_)) => other += 1,
                _ => {}
            }
        }
        // One that was cut off from the rest does not know.
        other > same
    }

    fn ask(&self) -> tokio::task::JoinSet<Result<Address, StoreError>> {
        let ask = |sentinel: &Arc<Sentinel>| {
            let (sentinel, master) = (Arc::clone(sentinel), self.master.clone());
            async move {
                tokio::time::timeout(PATIENCE, sentinel.ask(&master))
                    .await
                    .unwrap_or_else(|_| {
                        let why = format!(
                            "the sentinel {} does not answer within {PATIENCE:?}",
                            sentinel.address
                        );
                        Err(StoreError::Unreachable(why))
                    })
            }
        };
        self.sentinels.iter().map(ask).collect()
    }

    fn named(&self) -> std::sync::MutexGuard<'_, Option<Address>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sentinel {
    async fn ask(&self, master: &str) -> Result<Address, StoreError> {
        let kept = self.kept().take();
        let was_kept = kept.is_some();
        match self.ask_on(kept, master).await {
            // It may have been closed since.
            Err(StoreError::Unreachable(_)) if was_kept => self.ask_on(None, master).await,
            answer => answer,
        }
    }

    async fn ask_on(&self, kept: Option<Connection>, master: &str) -> Result<Address, StoreError> {
        let mut connection = match kept {
            Some(connection) => connection,
            None => self
                .endpoint
                .connect(PATIENCE)
                .await
                .map_err(|trouble| self.says(trouble))?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(master);
        let answer = connection
            .send(&command, SHORT)
            .await
            .map_err(|trouble| self.says(trouble))?;
        *self.kept() = Some(connection);
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        };
        let Value::Array(answer) = answer else {
            let message = format!(
                "the sentinel {} knows no primary called {master}; check the name behind the hosts in the url",
                self.address
            );
            return Err(StoreError::Refused {
                code: "SENTINEL".to_owned(),
                message,
            });
        };
        let address = match &answer[..] {
            [host, port] => text(host).zip(text(port).and_then(|port| port.parse().ok())),
            _ => None,
        };
        address
            .map(|(host, port)| Address { host, port })
            .ok_or_else(|| {
                StoreError::Protocol(format!("the sentinel {} names no address", self.address))
            })
    }

    /// What is wrong with a sentinel is not wrong with the server.
    fn says(&self, trouble: StoreError) -> StoreError {
        let at = &self.address;
        match trouble {
            StoreError::Unreachable(why) => {
                StoreError::Unreachable(format!("the sentinel {at}: {why}"))
            }
            StoreError::Refused { code, message } => {
                let message = match code.as_str() {
                    "NOAUTH" => {
                        format!("the sentinel {at} wants a password; set sentinel_password")
                    }
                    "WRONGPASS" => {
                        format!(
                            "the sentinel {at} does not take its user and password; check sentinel_user and sentinel_password"
                        )
                    }
                    "ERR" if message.contains("unknown command") => {
                        format!(
                            "what answers at {at} is no sentinel; name the sentinels in the url, or write redis://{at}"
                        )
                    }
                    _ => format!("the sentinel {at} refuses: {code} {message}"),
                };
                StoreError::Refused {
                    code: "SENTINEL".to_owned(),
                    message,
                }
            }
            other => other,
        }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
