//! `ratekeeper top`: what a running ratekeeper does, in a terminal, as it happens; or once, as text
//! or JSON.

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
use crate::{CANNOT, print};
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

/// How long an answer is waited for.
const WITHIN: Duration = Duration::from_secs(5);

/// Everything that is shown.
struct Snapshot {
    status: ServerStatus,
    top: Top,
}

pub(crate) fn run(args: &TopArgs) -> ExitCode {
    match ran(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("ratekeeper: {}", terminal::escape(&problem));
            ExitCode::from(CANNOT)
        }
    }
}

fn ran(args: &TopArgs) -> Result<(), String> {
    let client = Client::new(&args.url, WITHIN)?.tls(&args.tls);
    let in_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !args.once && !in_terminal {
        return Err("there is no terminal to draw on; --once prints it as text".to_owned());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    match (args.once, args.format) {
        (false, _) => runtime.block_on(live::run(&client, args.interval)),
        (true, Format::Text) => {
            let snapshot = runtime.block_on(fetched(&client))?;
            print(text::text(&snapshot, client.url()));
            Ok(())
        }
        (true, Format::Json) => {
            // As it came: with all that a newer one may say.
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

async fn fetched(client: &Client) -> Result<Snapshot, String> {
    Ok(Snapshot {
        status: client.get("/admin/status").await?,
        top: client.get("/admin/top").await?,
    })
}

#[cfg(test)]
mod tests;
