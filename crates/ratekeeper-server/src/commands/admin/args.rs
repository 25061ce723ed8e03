//! Command-line arguments of `ratekeeper admin`.

use crate::cli::{Format, TlsArgs};
use clap::{Args, Subcommand};
use ratekeeper_policy::PolicyLimit;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct AdminArgs {
    #[command(subcommand)]
    pub(super) command: AdminCommand,
    /// URL of the server's admin listener
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:9090"
    )]
    pub(super) url: String,
    /// File with the server's admin_token, for commands that change something. By default
    /// RATEKEEPER_ADMIN_TOKEN is used
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// Output format
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(Subcommand)]
pub(crate) enum AdminCommand {
    /// Show the state of the server
    Status,
    /// List the policies with their statistics
    Policies,
    /// List the most active and the most denied keys
    Top {
        /// Number of keys in each list
        #[arg(short, default_value_t = 20)]
        n: usize,
    },
    /// Show how the server would decide a request with its current counters; charges nothing
    Explain {
        #[command(flatten)]
        subject: SubjectArgs,
        /// Cost of the request
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// Ban a key for some time
    Ban {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        duration: DurationArgs,
    },
    /// Replace the limits of a key for some time
    Override {
        #[command(flatten)]
        key: KeyArgs,
        /// Limit to apply instead of the policy's, such as "200/min". Repeat it for several
        #[arg(long = "limit", value_name = "LIMIT", required = true)]
        limits: Vec<PolicyLimit>,
        #[command(flatten)]
        duration: DurationArgs,
    },
    /// End a ban or an override
    Lift {
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Grant tokens to a key, up to its burst
    Grant {
        #[command(flatten)]
        key: KeyArgs,
        /// Number of tokens
        #[arg(long)]
        tokens: u64,
    },
    /// Reset a key: refill its limits, and end its bans, penalties and overrides
    Reset {
        #[command(flatten)]
        key: KeyArgs,
    },
    /// List the active bans and overrides
    Overrides,
    /// Show what policies in shadow mode would have denied
    Shadow,
    /// List the operators' changes and attempts, newest first
    Audit {
        /// Number of entries
        #[arg(short, default_value_t = 100)]
        n: usize,
    },
    /// Reload the configuration
    Reload,
}

#[derive(Args)]
pub(crate) struct KeyArgs {
    /// Name of the policy
    pub(super) policy: String,
    /// Key, such as ip=203.0.113.7, or by fingerprint api_key=#f8c0a1b2c3d4e5f6. Omit it where the
    /// policy has one bucket for all requests
    #[arg(value_name = "NAME=VALUE")]
    pub(super) subject: Vec<String>,
}

#[derive(Args)]
pub(crate) struct SubjectArgs {
    /// Attributes of the request, such as ip=203.0.113.7 user=42 header:x-tenant=acme, or by
    /// fingerprint api_key=#f8c0a1b2c3d4e5f6
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub(super) subject: Vec<String>,
}

#[derive(Args)]
pub(crate) struct DurationArgs {
    /// Duration, such as 15min, 1h or 7d
    #[arg(long = "for", value_name = "TIME")]
    pub(super) duration: String,
    /// Reason, shown in lists and in the audit log
    #[arg(long)]
    pub(super) reason: Option<String>,
}
