//! `ratekeeper admin …`: the admin API of a running ratekeeper, in a terminal.

mod args;
mod show;

pub(crate) use args::AdminArgs;

use crate::api::HEADER;
use crate::cli::Format;
use crate::commands::admin_client::{Answer, Client};
use crate::commands::explain::{self, ExplainAnswer};
use crate::commands::terminal::{self, escape};
use crate::{CANNOT, NO, print};
use args::{AdminCommand, KeyArgs, LastingArgs};
use axum::body::Bytes;
use axum::http::Method;
use ratekeeper_policy::config::Secret;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

/// Longer than a service takes that waits for its Redis.
const WITHIN: Duration = Duration::from_secs(15);

/// Beside `--token-file`; never on the command line, which others can read.
const TOKEN: &str = "RATEKEEPER_ADMIN_TOKEN";

pub(crate) fn run(args: &AdminArgs) -> ExitCode {
    match carried_out(args) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("ratekeeper: {}", escape(&problem));
            ExitCode::from(CANNOT)
        }
    }
}

fn carried_out(args: &AdminArgs) -> Result<ExitCode, String> {
    let (method, path, body) = request(&args.command)?;
    let client = Client::new(&args.url, WITHIN)?
        .tls(&args.tls)
        .token(token(args)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let body = body
        .map(|body| Bytes::from(body.to_string()))
        .unwrap_or_default();
    let answer = runtime.block_on(client.ask(method, &path, body))?;
    if answer.status != 200 {
        return Ok(refused(&client, &answer));
    }
    let value: Value = client.read(&path, &answer)?;
    let shown = match args.format {
        Format::Json => {
            let value = if matches!(args.command, AdminCommand::Policies) {
                &value["policies"]
            } else {
                &value
            };
            terminal::json(value)
        }
        Format::Text => match &args.command {
            AdminCommand::Status => show::status(&read(&client, &path, &answer)?),
            AdminCommand::Policies => show::policies(&read(&client, &path, &answer)?),
            AdminCommand::Top { .. } => show::top(&read(&client, &path, &answer)?),
            AdminCommand::Explain { .. } => {
                explain::in_words(&read::<ExplainAnswer>(&client, &path, &answer)?)
            }
            AdminCommand::Ban { .. } | AdminCommand::Override { .. } => {
                show::said(&read(&client, &path, &answer)?)
            }
            AdminCommand::Overrides => show::overrides(&read::<Vec<_>>(&client, &path, &answer)?),
            AdminCommand::Shadow => show::shadow(&read::<Vec<_>>(&client, &path, &answer)?),
            AdminCommand::Audit { .. } => show::audit(&read::<Vec<_>>(&client, &path, &answer)?),
            AdminCommand::Lift { .. } => show::done("lifted", &read(&client, &path, &answer)?),
            AdminCommand::Grant { tokens, .. } => show::done(
                &format!("{tokens} tokens granted"),
                &read(&client, &path, &answer)?,
            ),
            AdminCommand::Reset { .. } => show::done("reset", &read(&client, &path, &answer)?),
            AdminCommand::Reload => show::reloaded(&read(&client, &path, &answer)?),
        },
    };
    print(shown);
    let denied =
        matches!(args.command, AdminCommand::Explain { .. }) && value["allowed"] == json!(false);
    Ok(if denied {
        ExitCode::from(NO)
    } else {
        ExitCode::SUCCESS
    })
}

/// An answer to be shown as text.
fn read<T: Serialize + DeserializeOwned>(
    client: &Client,
    path: &str,
    answer: &Answer,
) -> Result<T, String> {
    terminal::escaped(&client.read::<T>(path, answer)?).map_err(|error| error.to_string())
}

/// What the service has against it: 1 if it is the request, 2 if it is the service.
fn refused(client: &Client, answer: &Answer) -> ExitCode {
    let Some(detail) = answer.detail().map(|detail| escape(&detail)) else {
        let url = client.url();
        eprintln!(
            "ratekeeper: what answers at {url} is no admin listener of ratekeeper; name that with --url"
        );
        return ExitCode::from(CANNOT);
    };
    match answer.status {
        401 => eprintln!(
            "ratekeeper: {detail}; here: --token-file FILE, or {TOKEN} in the environment"
        ),
        _ => eprintln!("ratekeeper: {detail}"),
    }
    ExitCode::from(if answer.status < 500 { NO } else { CANNOT })
}

fn token(args: &AdminArgs) -> Result<Option<Secret>, String> {
    let Some(file) = &args.token_file else {
        let token = std::env::var(TOKEN)
            .ok()
            .filter(|token| !token.trim().is_empty());
        return Ok(token.map(|token| Secret::new(token.trim())));
    };
    let text = fs::read_to_string(file).map_err(|error| {
        format!(
            "--token-file {}: {error}; name a file that can be read",
            file.display()
        )
    })?;
    match text.trim() {
        "" => Err(format!(
            "--token-file {} is empty; write the admin_token of [server] into it",
            file.display()
        )),
        token => Ok(Some(Secret::new(token))),
    }
}

/// What is asked of the service.
fn request(command: &AdminCommand) -> Result<(Method, String, Option<Value>), String> {
    let get = |path: &str| Ok((Method::GET, path.to_owned(), None));
    let post = |verb: &str, body: Value| Ok((Method::POST, format!("/admin/{verb}"), Some(body)));
    match command {
        AdminCommand::Status | AdminCommand::Policies => get("/admin/status"),
        AdminCommand::Top { n } => get(&format!("/admin/top?n={n}")),
        AdminCommand::Overrides => get("/admin/overrides"),
        AdminCommand::Shadow => get("/admin/shadow"),
        AdminCommand::Audit { n } => get(&format!("/admin/audit?n={n}")),
        AdminCommand::Explain { subject, cost } => post(
            "explain",
            json!({"subject": of(&subject.subject)?, "cost": cost}),
        ),
        AdminCommand::Ban { key, lasting } => post("ban", lasts(about(key)?, lasting)),
        AdminCommand::Override {
            key,
            limits,
            lasting,
        } => {
            let mut body = about(key)?;
            body["limits"] = limits.iter().map(ToString::to_string).collect();
            post("override", lasts(body, lasting))
        }
        AdminCommand::Lift { key } => post("lift", about(key)?),
        AdminCommand::Grant { key, tokens } => {
            let mut body = about(key)?;
            body["tokens"] = json!(tokens);
            post("grant", body)
        }
        AdminCommand::Reset { key } => post("reset", about(key)?),
        AdminCommand::Reload => post("reload", json!({})),
    }
}

fn about(key: &KeyArgs) -> Result<Value, String> {
    Ok(json!({"policy": key.policy, "subject": of(&key.subject)?}))
}

fn lasts(mut body: Value, lasting: &LastingArgs) -> Value {
    body["for"] = json!(lasting.lasts);
    body["reason"] = json!(lasting.reason);
    body
}

/// A subject as the service reads it: headers in an object of their own, one that is there twice as
/// a list.
fn of(subject: &[String]) -> Result<Value, String> {
    let (mut attributes, mut headers) = (Map::new(), Map::new());
    for word in subject {
        // A value may have spaces, which the shell has kept; several in one word are as `explain
        // --subject` takes them.
        let whole = word
            .split_once('=')
            .filter(|(_, value)| !value.contains(['=', '"']));
        let words = match whole {
            Some((name, value)) if !name.is_empty() => vec![(name.to_owned(), value.to_owned())],
            _ => explain::words(word)
                .map_err(|problem| format!("{problem}, as in ip=203.0.113.7"))?,
        };
        for (name, value) in words {
            match name.strip_prefix(HEADER) {
                None if attributes.insert(name.clone(), json!(value)).is_some() => {
                    return Err(format!(
                        "`{}` is there twice; write it once",
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
    fn a_subject_is_names_and_values() {
        let of = |words: &[&str]| {
            of(&words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>())
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
            "`user` is there twice; write it once"
        );
        assert_eq!(
            of(&["GET"]).unwrap_err(),
            "`GET` has no value; write name=value, as in ip=203.0.113.7"
        );
    }
}
