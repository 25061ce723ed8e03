//! What a user types: `ratekeeper [serve]`, `ratekeeper proxy`, `ratekeeper config …`, `ratekeeper
//! explain`, `ratekeeper admin …`, `ratekeeper top`, `ratekeeper doctor`, `ratekeeper version`.

use crate::commands::admin::AdminArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use ratekeeper_policy::config::{Certificate, Listen};
use ratekeeper_policy::{Missing, PolicyLimit};
use std::path::PathBuf;
use std::time::Duration;

/// Rate limits served to any stack. Without a command: serve.
#[derive(Parser)]
#[command(name = "ratekeeper", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve decisions until SIGTERM or SIGINT; SIGHUP loads the configuration again
    Serve(ServeArgs),
    /// Stand in front of a service and limit what reaches it
    Proxy(ProxyArgs),
    /// Check, show and document a configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Say what a configuration makes of a request, and why
    Explain(ExplainArgs),
    /// Look at a running ratekeeper, and change what it does with one key
    Admin(AdminArgs),
    /// Watch a running ratekeeper in the terminal: decisions a second, policies, keys, store,
    /// breakers
    Top(TopArgs),
    /// Look for the usual mistakes: in a configuration, in its Redis, in the server that runs; ends
    /// with 1 if there are any, with 2 if it cannot look
    Doctor(DoctorArgs),
    /// Print the version
    Version,
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The configuration, in TOML; without it everything has its default
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The configuration files of envoyproxy/ratelimit, for Envoy's rate limit service; beats the
    /// file and the environment
    #[arg(long, value_name = "DIR")]
    pub(crate) envoy_config: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ProxyArgs {
    /// The service, as in http://127.0.0.1:3000 or https://app.internal; several are balanced.
    /// Beats the file and the environment
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Vec<String>,
    /// The limit, as in "10/s burst 20"
    #[arg(long, conflicts_with = "config")]
    pub(crate) limit: Option<PolicyLimit>,
    /// What it counts by: ip, header:NAME, host, method, path, endpoint, or all for one bucket
    #[arg(
        long,
        value_name = "ATTRIBUTE",
        default_value = "ip",
        requires = "limit"
    )]
    pub(crate) by: String,
    /// What happens to a request that lacks that: address (its client address is counted), skip,
    /// shared or deny
    #[arg(long, value_name = "RULE", default_value = "address", requires = "limit", value_parser = missing)]
    pub(crate) missing: Missing,
    /// Where to listen, as 0.0.0.0:8080 or unix:/run/ratekeeper/http.sock; beats the file and the
    /// environment
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<Listen>,
    /// The certificate to listen with, in PEM form; with --tls-key
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Who signs for clients, in PEM form: who shows no certificate of theirs is not served
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// The configuration, in TOML
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say what is wrong with a configuration or doubtful; ends with 1 if something is wrong, with
    /// 2 if it cannot be read
    Check {
        /// The configuration, in TOML
        #[arg(required_unless_present = "envoy_config")]
        file: Option<PathBuf>,
        /// The configuration files of envoyproxy/ratelimit; beats the file and the environment, as
        /// with serve
        #[arg(long, value_name = "DIR")]
        envoy_config: Option<PathBuf>,
        /// How to print it
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print the configuration in force: the file, the environment over it, and every default
    Show {
        /// The configuration, in TOML; without it the environment and the defaults alone
        file: Option<PathBuf>,
    },
    /// Print the limits as a Markdown table, for the documentation of an API
    Docs {
        /// The configuration, in TOML
        file: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The configuration, in TOML; without it the environment and the defaults alone
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The request, as in 'ip=1.2.3.4 method=GET path=/api/x header:x-tenant="a b"'
    #[arg(long, value_name = "ATTRIBUTES")]
    pub(crate) subject: String,
    /// How much it costs
    #[arg(long, default_value_t = 1)]
    pub(crate) cost: u64,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Where its admin listener is
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// How many seconds there are between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Print it once and end
    #[arg(long)]
    pub(crate) once: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t, requires = "once")]
    pub(crate) format: Format,
}

fn missing(text: &str) -> Result<Missing, String> {
    Missing::from_name(text).ok_or_else(|| "it must be address, skip, shared or deny".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it must be a number of seconds from 0.1 to 3600".to_owned())
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// The configuration, in TOML; without it the environment and the defaults alone
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The admin listener of the server to look at, as http://127.0.0.1:9090 or
    /// unix:/run/ratekeeper/admin.sock; where the configuration has it, if it is not said
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Only say whether the server is there and ready, for health checks
    #[arg(long)]
    pub(crate) probe: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// How an https:// listener is spoken to.
#[derive(Args, Clone, Default)]
pub(crate) struct TlsArgs {
    /// Who signs for an https:// listener, in PEM form; whom the system trusts, if it is not said
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// The certificate to show to a listener that wants one, in PEM form; with --client-key
    #[arg(long, global = true, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Its private key, in PEM form
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl TlsArgs {
    /// The certificate to show, if there is one.
    pub(crate) fn own(&self) -> Option<Certificate> {
        Some(Certificate::new(
            self.client_cert.clone()?,
            self.client_key.clone()?,
        ))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// The command of this process; ends it with code 2 and the usage where there is none.
pub(crate) fn command() -> Command {
    let cli = Cli::parse();
    cli.command.unwrap_or(Command::Serve(cli.serve))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
