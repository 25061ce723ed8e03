//! `ratekeeper top`: live statistics of a running server in a terminal, or once as text or JSON.

mod draw;
mod live;
mod numbers;
mod overload;
mod text;
mod view;

use crate::admin::{ServerStatus, Top};
use crate::cli::{Format, TopArgs};
use crate::commands::admin_client::Client;
use crate::commands::terminal;
use crate::{EXIT_CANNOT_RUN, print};
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// One reading of the server's statistics.
struct Snapshot {
    status: ServerStatus,
    top: Top,
}

pub(crate) fn run(args: &TopArgs) -> ExitCode {
    match execute(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ratekeeper: {}", terminal::escape(&error));
            ExitCode::from(EXIT_CANNOT_RUN)
        }
    }
}

fn execute(args: &TopArgs) -> Result<(), String> {
    let client = Client::new(&args.url, REQUEST_TIMEOUT)?.tls(&args.tls);
    let in_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !args.once && !in_terminal {
        return Err(
            "standard input and output are not a terminal; use --once to print the statistics as \
             text"
                .to_owned(),
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    match (args.once, args.format) {
        (false, _) => runtime.block_on(live::run(&client, args.interval)),
        (true, Format::Text) => {
            let snapshot = runtime.block_on(fetch(&client))?;
            print(text::text(&snapshot, client.url()));
            Ok(())
        }
        (true, Format::Json) => {
            // Printed unparsed, so that fields of a newer server are kept.
            let (status, top) = runtime.block_on(async {
                Ok::<(Value, Value), String>((
                    client.get("/admin/status").await?,
                    client.get("/admin/top").await?,
                ))
            })?;
            print(terminal::json(&json!({"status": status, "top": top})));
            Ok(())
        }
    }
}

async fn fetch(client: &Client) -> Result<Snapshot, String> {
    Ok(Snapshot {
        status: client.get("/admin/status").await?,
        top: client.get("/admin/top").await?,
    })
}

#[cfg(test)]
mod tests;
