//! `ratekeeper admin …`: command-line client of the admin API.

mod args;
mod show;

pub(crate) use args::AdminArgs;

use crate::api::HEADER;
use crate::cli::Format;
use crate::commands::admin_client::{AdminResponse, Client};
use crate::commands::explain::{self, ExplainAnswer};
use crate::commands::terminal::{self, escape};
use crate::config::Secret;
use crate::{EXIT_CANNOT_RUN, EXIT_FAILURE, print};
use args::{AdminCommand, DurationArgs, KeyArgs};
use axum::body::Bytes;
use axum::http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

/// Timeout of a request; longer than the server waits for Redis.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// Environment variable of the token, besides `--token-file`. There is no flag, because others can
/// read the command line.
const TOKEN_VARIABLE: &str = "RATEKEEPER_ADMIN_TOKEN";

pub(crate) fn run(args: &AdminArgs) -> ExitCode {
    match execute(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ratekeeper: {}", escape(&error));
            ExitCode::from(EXIT_CANNOT_RUN)
        }
    }
}

fn execute(args: &AdminArgs) -> Result<ExitCode, String> {
    let (method, path, body) = request(&args.command)?;
    let client = Client::new(&args.url, REQUEST_TIMEOUT)?
        .tls(&args.tls)
        .token(token(args)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let body = body
        .map(|body| Bytes::from(body.to_string()))
        .unwrap_or_default();
    let response = runtime.block_on(client.send(method, &path, body))?;
    if response.status != 200 {
        return Ok(print_rejection(&client, &response));
    }
    let value: Value = client.parse(&path, &response)?;
    let text = match args.format {
        Format::Json => {
            let value = if matches!(args.command, AdminCommand::Policies) {
                &value["policies"]
            } else {
                &value
            };
            terminal::json(value)
        }
        Format::Text => match &args.command {
            AdminCommand::Status => show::status(&parse(&client, &path, &response)?),
            AdminCommand::Policies => show::policies(&parse(&client, &path, &response)?),
            AdminCommand::Top { .. } => show::top(&parse(&client, &path, &response)?),
            AdminCommand::Explain { .. } => {
                explain::to_text(&parse::<ExplainAnswer>(&client, &path, &response)?)
            }
            AdminCommand::Ban { .. } | AdminCommand::Override { .. } => {
                show::override_line(&parse(&client, &path, &response)?)
            }
            AdminCommand::Overrides => {
                show::overrides(&parse::<Vec<_>>(&client, &path, &response)?)
            }
            AdminCommand::Shadow => show::shadow(&parse::<Vec<_>>(&client, &path, &response)?),
            AdminCommand::Audit { .. } => show::audit(&parse::<Vec<_>>(&client, &path, &response)?),
            AdminCommand::Lift { .. } => show::change("lifted", &parse(&client, &path, &response)?),
            AdminCommand::Grant { tokens, .. } => show::change(
                &format!("{tokens} tokens granted"),
                &parse(&client, &path, &response)?,
            ),
            AdminCommand::Reset { .. } => show::change("reset", &parse(&client, &path, &response)?),
            AdminCommand::Reload => show::reloaded(&parse(&client, &path, &response)?),
        },
    };
    print(text);
    let denied =
        matches!(args.command, AdminCommand::Explain { .. }) && value["allowed"] == json!(false);
    Ok(if denied {
        ExitCode::from(EXIT_FAILURE)
    } else {
        ExitCode::SUCCESS
    })
}

/// Parses a response and escapes its text for the terminal.
fn parse<T: Serialize + DeserializeOwned>(
    client: &Client,
    path: &str,
    response: &AdminResponse,
) -> Result<T, String> {
    terminal::escaped(&client.parse::<T>(path, response)?).map_err(|error| error.to_string())
}

/// Prints why the server rejected the command, and returns the exit code: 1 if the command is at
/// fault, 2 if the server is.
fn print_rejection(client: &Client, response: &AdminResponse) -> ExitCode {
    let Some(detail) = response.detail().map(|detail| escape(&detail)) else {
        let url = client.url();
        eprintln!("ratekeeper: the server at {url} is not a ratekeeper admin listener; set --url");
        return ExitCode::from(EXIT_CANNOT_RUN);
    };
    if response.status == 401 {
        eprintln!("ratekeeper: {detail}; set --token-file FILE or {TOKEN_VARIABLE}");
    } else {
        eprintln!("ratekeeper: {detail}");
    }
    ExitCode::from(if response.status < 500 {
        EXIT_FAILURE
    } else {
        EXIT_CANNOT_RUN
    })
}

fn token(args: &AdminArgs) -> Result<Option<Secret>, String> {
    let Some(file) = &args.token_file else {
        let token = std::env::var(TOKEN_VARIABLE)
            .ok()
            .filter(|token| !token.trim().is_empty());
        return Ok(token.map(|token| Secret::new(token.trim())));
    };
    let text = fs::read_to_string(file)
        .map_err(|error| format!("cannot read --token-file {}: {error}", file.display()))?;
    match text.trim() {
        "" => Err(format!(
            "--token-file {} is empty; write the admin_token of [server] into it",
            file.display()
        )),
        token => Ok(Some(Secret::new(token))),
    }
}

/// The method, path and body of a command's request.
fn request(command: &AdminCommand) -> Result<(Method, String, Option<Value>), String> {
    let get = |path: &str| Ok((Method::GET, path.to_owned(), None));
    let post =
        |action: &str, body: Value| Ok((Method::POST, format!("/admin/{action}"), Some(body)));
    match command {
        AdminCommand::Status | AdminCommand::Policies => get("/admin/status"),
        AdminCommand::Top { n } => get(&format!("/admin/top?n={n}")),
        AdminCommand::Overrides => get("/admin/overrides"),
        AdminCommand::Shadow => get("/admin/shadow"),
        AdminCommand::Audit { n } => get(&format!("/admin/audit?n={n}")),
        AdminCommand::Explain { subject, cost } => post(
            "explain",
            json!({"subject": subject_json(&subject.subject)?, "cost": cost}),
        ),
        AdminCommand::Ban { key, duration } => post("ban", with_duration(key_json(key)?, duration)),
        AdminCommand::Override {
            key,
            limits,
            duration,
        } => {
            let mut body = key_json(key)?;
            body["limits"] = limits.iter().map(ToString::to_string).collect();
            post("override", with_duration(body, duration))
        }
        AdminCommand::Lift { key } => post("lift", key_json(key)?),
        AdminCommand::Grant { key, tokens } => {
            let mut body = key_json(key)?;
            body["tokens"] = json!(tokens);
            post("grant", body)
        }
        AdminCommand::Reset { key } => post("reset", key_json(key)?),
        AdminCommand::Reload => post("reload", json!({})),
    }
}

fn key_json(key: &KeyArgs) -> Result<Value, String> {
    Ok(json!({"policy": key.policy, "subject": subject_json(&key.subject)?}))
}

fn with_duration(mut body: Value, duration: &DurationArgs) -> Value {
    body["for"] = json!(duration.duration);
    body["reason"] = json!(duration.reason);
    body
}

/// A subject as the server parses it: headers are an object of lists.
fn subject_json(subject: &[String]) -> Result<Value, String> {
    let mut attributes = Map::new();
    let mut headers = Map::new();
    for argument in subject {
        // A value may contain spaces, if the shell passes it as one argument. Several pairs in one
        // argument are parsed as in `explain --subject`.
        let single = argument
            .split_once('=')
            .filter(|(_, value)| !value.contains(['=', '"']));
        let pairs = match single {
            Some((name, value)) if !name.is_empty() => vec![(name.to_owned(), value.to_owned())],
            _ => explain::parse_pairs(argument)
                .map_err(|error| format!("{error}, as in ip=203.0.113.7"))?,
        };
        for (name, value) in pairs {
            match name.strip_prefix(HEADER) {
                None if attributes.insert(name.clone(), json!(value)).is_some() => {
                    return Err(format!(
                        "`{}` is given twice; give it once",
                        name.escape_debug()
                    ));
                }
                None => {}
                Some(header) => {
                    let values = headers.entry(header).or_insert_with(|| json!([]));
                    values
                        .as_array_mut()
                        .into_iter()
                        .for_each(|values| values.push(json!(value)));
                }
            }
        }
    }
    if !headers.is_empty() {
        attributes.insert("headers".to_owned(), Value::Object(headers));
    }
    Ok(Value::Object(attributes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_becomes_json() {
        let of = |arguments: &[&str]| {
            subject_json(
                &arguments
                    .iter()
                    .map(|argument| (*argument).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            of(&["ip=::1", "user=a b"]).unwrap(),
            json!({"ip": "::1", "user": "a b"})
        );
        assert_eq!(
            of(&["ip=1.2.3.4 path=/a=b"]).unwrap(),
            json!({"ip": "1.2.3.4", "path": "/a=b"})
        );
        assert_eq!(
            of(&["header:x=a", "header:x=b", "user=u"]).unwrap(),
            json!({"user": "u", "headers": {"x": ["a", "b"]}})
        );
        assert_eq!(
            of(&["user=a", "user=b"]).unwrap_err(),
            "`user` is given twice; give it once"
        );
        assert_eq!(
            of(&["GET"]).unwrap_err(),
            "`GET` has no value; write name=value, as in ip=203.0.113.7"
        );
    }
}
