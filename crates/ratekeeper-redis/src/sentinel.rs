//! Connections to the primary that sentinels name.

use crate::address::{Address, Dialer};
use crate::builder::ConnectError;
use crate::connection::{Connection, Endpoint};
use crate::reply::MAX_SHORT_REPLY;
use crate::store_error::StoreError;
use redis::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a sentinel may take. All are asked at once, so that one that is down does not delay the
/// others. Shorter than the timeout of a heartbeat, so that the heartbeat reports what is wrong
/// with the sentinels.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(300);

/// The sentinels of a primary.
pub(crate) struct Sentinels {
    sentinels: Vec<Arc<Sentinel>>,
    master: String,
    dial: Dialer,
    /// The primary of the last connection.
    last_primary: Mutex<Option<Address>>,
}

/// One sentinel.
struct Sentinel {
    address: Address,
    endpoint: Endpoint,
    /// A connection reused for the next question.
    idle_connection: Mutex<Option<Connection>>,
}

impl Sentinels {
    /// `auth`: user and password of the sentinels, which have their own.
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
                idle_connection: Mutex::default(),
            }))
        };
        let sentinels = addresses.iter().map(sentinel).collect::<Result<_, _>>()?;
        Ok(Self {
            sentinels,
            master,
            dial,
            last_primary: Mutex::default(),
        })
    }

    /// Connects to the primary: the first server named by a sentinel whose role is primary.
    pub(crate) async fn connect(&self, timeout: Duration) -> Result<Connection, StoreError> {
        let mut answers = self.ask();
        let mut tried: Vec<Address> = Vec::new();
        let mut last_error = None;
        while let Some(answer) = answers.join_next().await {
            let connected = match answer {
                Ok(Ok(address)) if tried.contains(&address) => continue,
                Ok(Ok(address)) => {
                    tried.push(address.clone());
                    self.primary(address, timeout).await
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(StoreError::TimedOut),
            };
            match connected {
                Ok(connection) => return Ok(connection),
                // A server's error is more specific than an unreachable sentinel.
                Err(error)
                    if last_error.is_none() || matches!(error, StoreError::Refused { .. }) =>
                {
                    last_error = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(last_error.unwrap_or(StoreError::TimedOut))
    }

    async fn primary(&self, address: Address, timeout: Duration) -> Result<Connection, StoreError> {
        let unreachable =
            |error: ConnectError| StoreError::Unreachable(format!("{address}: {error}"));
        let endpoint = self.dial.endpoint(&address).map_err(unreachable)?;
        let mut connection = endpoint.connect(timeout).await?;
        let role = redis::cmd("ROLE");
        let role =
            match tokio::time::timeout(timeout, connection.send(&role, MAX_SHORT_REPLY)).await {
                Ok(Ok(Value::Array(role))) => role,
                // A user without the right to ask for the role may still write, or gets the error
                // that this is a replica.
                Ok(Err(StoreError::Refused { code, .. })) if code == "NOPERM" => Vec::new(),
                Ok(Err(error)) => return Err(error),
                Ok(_) => {
                    return Err(StoreError::Protocol(
                        "ROLE did not return a list".to_owned(),
                    ));
                }
                Err(_) => return Err(StoreError::TimedOut),
            };
        match role.first() {
            Some(Value::BulkString(role)) if role != b"master" => {
                let message = format!("the sentinels name {address}, which is not a primary yet");
                Err(StoreError::Refused {
                    code: "READONLY".to_owned(),
                    message,
                })
            }
            _ => {
                *self.last_primary() = Some(address);
                Ok(connection)
            }
        }
    }

    /// Whether the sentinels name another primary than the one that connections lead to.
    pub(crate) async fn name_new_primary(&self) -> bool {
        let Some(known) = self.last_primary().clone() else {
            return false;
        };
        let mut answers = self.ask();
        let mut same = 0;
        let mut other = 0;
        while let Some(answer) = answers.join_next().await {
            match answer {
                Ok(Ok(address)) if address == known => same += 1,
                Ok(Ok(_)) => other += 1,
                _ => {}
            }
        }
        // A sentinel that is cut off from the others may not know of a failover.
        other > same
    }

    fn ask(&self) -> tokio::task::JoinSet<Result<Address, StoreError>> {
        let ask = |sentinel: &Arc<Sentinel>| {
            let sentinel = Arc::clone(sentinel);
            let master = self.master.clone();
            async move {
                tokio::time::timeout(SENTINEL_TIMEOUT, sentinel.ask(&master))
                    .await
                    .unwrap_or_else(|_| {
                        let reason = format!(
                            "the sentinel {} did not answer within {SENTINEL_TIMEOUT:?}",
                            sentinel.address
                        );
                        Err(StoreError::Unreachable(reason))
                    })
            }
        };
        self.sentinels.iter().map(ask).collect()
    }

    fn last_primary(&self) -> std::sync::MutexGuard<'_, Option<Address>> {
        self.last_primary
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sentinel {
    async fn ask(&self, master: &str) -> Result<Address, StoreError> {
        let idle_connection = self.idle_connection().take();
        let was_idle = idle_connection.is_some();
        match self.ask_on(idle_connection, master).await {
            // The idle connection may have been closed since.
            Err(StoreError::Unreachable(_)) if was_idle => self.ask_on(None, master).await,
            answer => answer,
        }
    }

    async fn ask_on(
        &self,
        idle_connection: Option<Connection>,
        master: &str,
    ) -> Result<Address, StoreError> {
        let mut connection = match idle_connection {
            Some(connection) => connection,
            None => self
                .endpoint
                .connect(SENTINEL_TIMEOUT)
                .await
                .map_err(|error| self.sentinel_error(error))?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(master);
        let answer = connection
            .send(&command, MAX_SHORT_REPLY)
            .await
            .map_err(|error| self.sentinel_error(error))?;
        *self.idle_connection() = Some(connection);
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        };
        let Value::Array(answer) = answer else {
            let message = format!(
                "the sentinel {} knows no primary named {master}; check the name after the hosts in the url",
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
                StoreError::Protocol(format!("the sentinel {} returned no address", self.address))
            })
    }

    /// Marks an error as the sentinel's, so that it is not taken for one of the server.
    fn sentinel_error(&self, error: StoreError) -> StoreError {
        let at = &self.address;
        match error {
            StoreError::Unreachable(reason) => {
                StoreError::Unreachable(format!("the sentinel {at}: {reason}"))
            }
            StoreError::Refused { code, message } => {
                let message = match code.as_str() {
                    "NOAUTH" => {
                        format!("the sentinel {at} requires a password; set sentinel_password")
                    }
                    "WRONGPASS" => {
                        format!(
                            "the sentinel {at} rejected the user and password; check sentinel_user and sentinel_password"
                        )
                    }
                    "ERR" if message.contains("unknown command") => {
                        format!(
                            "the server at {at} is not a sentinel; put the sentinels into the url, or write redis://{at}"
                        )
                    }
                    _ => format!("the sentinel {at} returned an error: {code} {message}"),
                };
                StoreError::Refused {
                    code: "SENTINEL".to_owned(),
                    message,
                }
            }
            other => other,
        }
    }

    fn idle_connection(&self) -> std::sync::MutexGuard<'_, Option<Connection>> {
        self.idle_connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
