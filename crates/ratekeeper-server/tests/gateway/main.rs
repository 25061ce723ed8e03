//! `ratekeeper proxy` as exposed to the internet: tested with raw sockets, curl, h2load, wrk, nginx
//! and a WebSocket client.

mod abandoned;
mod access_log;
#[path = "../support/authority.rs"]
mod authority;
mod bodies;
mod drain;
mod http1;
mod http2;
mod http2_upstreams;
mod limits;
mod overload;
mod proxy_protocol;
mod queue;
mod responses;
mod routes;
mod service;
mod smuggling;
#[path = "../support/mod.rs"]
mod support;
mod timeouts;
mod tls;
mod upgrades;
mod upstreams;
mod user_header;

use std::net::SocketAddr;
use std::process::Command;
use support::{Server, config_file, ratekeeper};

/// A gateway in front of these upstreams, with more lines under `[gateway]`, and lines after them.
pub(crate) fn command(upstreams: &[SocketAddr], more: &str) -> Command {
    let upstreams: Vec<String> = upstreams
        .iter()
        .map(|at| format!("\"http://{at}\""))
        .collect();
    let mut command = ratekeeper();
    let policies = if more.contains("[[policy]]") {
        ""
    } else {
        "\n[[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n"
    };
    let text = format!(
        "[gateway]\nupstreams = [{}]\n{more}{policies}",
        upstreams.join(", ")
    );
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
        .arg(config_file(&text));
    command
}

pub(crate) fn gateway(upstreams: &[SocketAddr], more: &str) -> Server {
    Server::run(command(upstreams, more))
}

/// The output of curl with these arguments.
pub(crate) fn curl(args: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-s", "--max-time", "120"])
        .args(args)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The Via entries of the gateways on the way, as an upstream received them.
pub(crate) fn vias(head: &str) -> Vec<&str> {
    head.lines()
        .filter_map(|line| line.strip_prefix("via: "))
        .collect()
}
