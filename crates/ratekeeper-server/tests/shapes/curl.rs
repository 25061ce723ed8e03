//! curl as a client of the gateway.

use crate::client::{Error, Kind, Target};
use crate::shape::{ReceivedResponse, Shape, content};
use crate::support::config_file;
use std::fs;
use std::process::Command;

/// Requests a shape, and receives the whole response.
pub(crate) fn exchange(
    kind: Kind,
    target: &Target,
    shape: &Shape,
) -> Result<ReceivedResponse, Error> {
    let files = config_file("");
    let (head, sent) = (files.with_extension("head"), files.with_extension("sent"));
    let (scheme, at) = if kind.is_tls() {
        ("https", target.tls)
    } else {
        ("http", target.plain)
    };
    let mut command = Command::new("curl");
    // It waits for 100 Continue as long as necessary.
    command
        .args([
            "-sS",
            "--max-time",
            "60",
            "--expect100-timeout",
            "50",
            "--cacert",
            &target.ca,
            "-D",
        ])
        .arg(&head);
    command.arg(match kind {
        Kind::CurlHttp10 => "--http1.0",
        Kind::CurlHttp2 => "--http2-prior-knowledge",
        Kind::CurlHttp2Tls => "--http2",
        _ => "--http1.1",
    });
    match shape.method {
        "HEAD" => command.arg("--head"),
        method => command.args(["-X", method]),
    };
    for (name, value) in &shape.headers {
        command.args(["-H", &format!("{name}: {value}")]);
    }
    if let Some(upload) = shape.upload {
        fs::write(&sent, content(upload.size))?;
        command
            .arg("--data-binary")
            .arg(format!("@{}", sent.display()));
        if upload.is_chunked && !kind.is_http2() {
            command.args(["-H", "Transfer-Encoding: chunked"]);
        }
    }
    command.args([
        "--connect-to",
        &format!("localhost:80:{at}"),
        "--connect-to",
        &format!("localhost:443:{at}"),
    ]);
    let output = command
        .arg(format!("{scheme}://localhost{}", shape.path()))
        .output()?;
    let heads = fs::read(&head).unwrap_or_default();
    for file in [&files, &head, &sent] {
        // Without an upload there is no file.
        let _ = fs::remove_file(file);
    }
    if !output.status.success() {
        return Err(format!(
            "curl: {} after {} bytes",
            String::from_utf8_lossy(&output.stderr),
            output.stdout.len()
        )
        .into());
    }
    let heads = String::from_utf8_lossy(&heads).into_owned();
    let mut heads: Vec<&str> = heads
        .split("\r\n\r\n")
        .filter(|head| !head.is_empty())
        .collect();
    // Trailers follow the last head.
    heads.retain(|head| head.starts_with("HTTP/"));
    let last = heads.pop().ok_or("no head")?;
    let status = last
        .split(' ')
        .nth(1)
        .and_then(|status| status.trim().parse().ok())
        .ok_or("no status")?;
    let headers = last.lines().filter_map(|line| line.split_once(": "));
    let headers = headers
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let informational = heads
        .iter()
        .filter(|head| !head.contains(" 100 ") && !head.ends_with(" 100"))
        .count();
    let body = if shape.method == "HEAD" {
        Vec::new()
    } else {
        output.stdout
    };
    Ok(ReceivedResponse {
        status,
        headers,
        body,
        trailers: Vec::new(),
        informational,
    })
}
