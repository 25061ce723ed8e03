//! Client of a running server's admin listener for `doctor`.

use super::{Findings, PATH};
use crate::cli::DoctorArgs;
use crate::commands::admin_client::Client;
use crate::config::{Config, Listen};
use crate::run::welcome::reachable;
use axum::body::Bytes;
use axum::http::Method;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The admin listener of a server.
pub(super) struct DoctorTarget {
    client: Client,
    runtime: Runtime,
}

impl DoctorTarget {
    /// The listener at `--url`, or that of the configuration. An error is a sentence.
    pub(super) fn of(args: &DoctorArgs, config: Option<&Config>) -> Result<Self, String> {
        let url = match (&args.url, config) {
            (Some(url), _) => url.clone(),
            (None, Some(config)) => match &config.server.admin {
                None => {
                    return Err(
                        "the admin listener is off, so the server was not checked".to_owned()
                    );
                }
                Some(Listen::Tcp(address)) => {
                    let scheme = if config.server.tls.admin.is_some() {
                        "https"
                    } else {
                        "http"
                    };
                    format!("{scheme}://{}", reachable(*address))
                }
                Some(socket) => socket.to_string(),
            },
            (None, None) => {
                return Err("no admin URL in the configuration".to_owned());
            }
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            client: Client::new(&url, REQUEST_TIMEOUT)?.tls(&args.tls),
            runtime,
        })
    }

    pub(super) fn findings(&self) -> Result<Findings, String> {
        self.runtime.block_on(self.client.get(PATH))
    }

    /// The status and the body.
    pub(super) fn get(&self, path: &str) -> Result<(u16, String), String> {
        let response = self
            .runtime
            .block_on(self.client.send(Method::GET, path, Bytes::new()))?;
        Ok((
            response.status,
            String::from_utf8_lossy(&response.body).into_owned(),
        ))
    }
}
