//! The command line: `ratekeeper [serve]`, `ratekeeper proxy`, `ratekeeper config …`, `ratekeeper
//! explain`, `ratekeeper admin …`, `ratekeeper top`, `ratekeeper doctor`, `ratekeeper version`.

use crate::commands::admin::AdminArgs;
use crate::config::{Certificate, Listen};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ratekeeper_policy::{Missing, PolicyLimit};
use std::path::PathBuf;
use std::time::Duration;

/// Rate limiting as a gateway, an HTTP and gRPC service and a RESP server. The default command is
/// `serve`
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
    /// Serve decisions until SIGTERM or SIGINT; SIGHUP reloads the configuration
    Serve(ServeArgs),
    /// Run a reverse proxy that limits the requests to a service
    Proxy(ProxyArgs),
    /// Check, show or document a configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show how a configuration would decide a request, and why
    Explain(ExplainArgs),
    /// Inspect a running server and change the limits of a key: ban, override, grant, reset
    Admin(AdminArgs),
    /// Show live statistics of a running server: decisions per second, policies, keys, store and
    /// breakers
    Top(TopArgs),
    /// Find common mistakes in a configuration, its Redis and the running server. Exit code 1:
    /// found some; 2: cannot check
    Doctor(DoctorArgs),
    /// Print the version
    Version,
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML). Without one, the defaults apply
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Directory with envoyproxy/ratelimit's configuration files, for Envoy's rate limit service.
    /// Overrides the file and the environment
    #[arg(long, value_name = "DIR")]
    pub(crate) envoy_config: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ProxyArgs {
    /// URL of the service, such as http://127.0.0.1:3000 or https://app.internal. Repeat it to
    /// balance over several. Overrides the file and the environment
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Vec<String>,
    /// Limit, such as "10/s burst 20"
    #[arg(long, conflicts_with = "config")]
    pub(crate) limit: Option<PolicyLimit>,
    /// Attribute to count by: ip, header:NAME, host, method, path, endpoint, or all for one bucket
    #[arg(
        long,
        value_name = "ATTRIBUTE",
        default_value = "ip",
        requires = "limit"
    )]
    pub(crate) by: String,
    /// Rule for requests that lack the attribute: address (count by the client address), skip,
    /// shared or deny
    #[arg(long, value_name = "RULE", default_value = "address", requires = "limit", value_parser = missing)]
    pub(crate) missing: Missing,
    /// Address to listen on, such as 0.0.0.0:8080 or unix:/run/ratekeeper/http.sock. Overrides the
    /// file and the environment
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<Listen>,
    /// Certificate chain of the listener (PEM). Requires --tls-key
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the listener (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// CA certificates (PEM). Clients must present a certificate signed by one of them
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration. Exit code 0: valid, perhaps with warnings; 1: errors; 2: cannot be
    /// read
    Check {
        /// Configuration file (TOML)
        #[arg(required_unless_present = "envoy_config")]
        file: Option<PathBuf>,
        /// Directory with envoyproxy/ratelimit's configuration files. Overrides the file and the
        /// environment, as with serve
        #[arg(long, value_name = "DIR")]
        envoy_config: Option<PathBuf>,
        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print the effective configuration: file, environment and defaults
    Show {
        /// Configuration file (TOML). Without one, the environment and the defaults apply
        file: Option<PathBuf>,
    },
    /// Print the limits as a Markdown table for an API's documentation
    Docs {
        /// Configuration file (TOML)
        file: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// Configuration file (TOML). Without one, the environment and the defaults apply
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Attributes of the request, such as 'ip=1.2.3.4 method=GET path=/api/x header:x-tenant="a b"'
    #[arg(long, value_name = "ATTRIBUTES")]
    pub(crate) subject: String,
    /// Cost of the request
    #[arg(long, default_value_t = 1)]
    pub(crate) cost: u64,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

#[derive(Args)]
pub(crate) struct TopArgs {
    /// URL of the server's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Seconds between updates, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
    /// Print the statistics once and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t, requires = "once")]
    pub(crate) format: Format,
}

fn missing(text: &str) -> Result<Missing, String> {
    Missing::from_name(text).ok_or_else(|| "must be address, skip, shared or deny".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "must be a number of seconds from 0.1 to 3600".to_owned())
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Configuration file (TOML). Without one, the environment and the defaults apply
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// URL of the server's admin listener, such as http://127.0.0.1:9090 or
    /// unix:/run/ratekeeper/admin.sock. By default the one of the configuration
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Only check that the server is running and ready, for health checks
    #[arg(long)]
    pub(crate) probe: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// TLS options for clients of an https:// listener.
#[derive(Args, Clone, Default)]
pub(crate) struct TlsArgs {
    /// CA certificates (PEM) that sign the listener's certificate. By default the system's
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Client certificate (PEM). Requires --client-key
    #[arg(long, global = true, value_name = "FILE", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

impl TlsArgs {
    /// The client certificate, if one is set.
    pub(crate) fn client_certificate(&self) -> Option<Certificate> {
        Some(Certificate::new(
            self.client_cert.clone()?,
            self.client_key.clone()?,
        ))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Text for people
    #[default]
    Text,
    /// JSON for programs
    Json,
}

/// Parses the command line. An invalid one ends the process with exit code 2 and the usage.
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
