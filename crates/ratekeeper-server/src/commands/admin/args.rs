//! What a user types behind `ratekeeper admin`.

use crate::cli::{Format, TlsArgs};
use clap::{Args, Subcommand};
use ratekeeper_policy::PolicyLimit;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct AdminArgs {
    #[command(subcommand)]
    pub(super) command: AdminCommand,
    /// Where the admin listener is
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:9090"
    )]
    pub(super) url: String,
    /// A file with the admin_token of the service, for what changes something; else
    /// RATEKEEPER_ADMIN_TOKEN has it
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    /// How to print it
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(super) format: Format,
}

#[derive(Subcommand)]
pub(crate) enum AdminCommand {
    /// How things stand
    Status,
    /// The policies with their figures
    Policies,
    /// The keys that ask most, and those that are turned away most
    Top {
        /// How many of each
        #[arg(short, default_value_t = 20)]
        n: usize,
    },
    /// Say what would become of a request on the counters of the service; nothing is charged
    Explain {
        #[command(flatten)]
        subject: SubjectArgs,
        /// How much it costs
        #[arg(long, default_value_t = 1)]
        cost: u64,
    },
    /// Turn a key away for a while
    Ban {
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        lasting: LastingArgs,
    },
    /// Give a key other limits for a while
    Override {
        #[command(flatten)]
        key: KeyArgs,
        /// A limit that stands in for those of the policy, as in "200/min"; may be given several
        /// times
        #[arg(long = "limit", value_name = "LIMIT", required = true)]
        limits: Vec<PolicyLimit>,
        #[command(flatten)]
        lasting: LastingArgs,
    },
    /// End a ban or an override
    Lift {
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Give a key tokens, as far as there is room for them
    Grant {
        #[command(flatten)]
        key: KeyArgs,
        /// How many
        #[arg(long)]
        tokens: u64,
    },
    /// Make a key as if it had never been seen: its limits full, bans, penalties and overrides
    /// ended
    Reset {
        #[command(flatten)]
        key: KeyArgs,
    },
    /// The bans and overrides in force
    Overrides,
    /// What policies that only watch would have turned away
    Shadow,
    /// What operators did, and tried, the newest first
    Audit {
        /// How many
        #[arg(short, default_value_t = 100)]
        n: usize,
    },
    /// Load the configuration again
    Reload,
}

#[derive(Args)]
pub(crate) struct KeyArgs {
    /// The policy, by its name
    pub(super) policy: String,
    /// The key, as in ip=203.0.113.7 or, by a fingerprint, api_key=#f8c0a1b2c3d4e5f6; nothing where
    /// a policy has one bucket for all
    #[arg(value_name = "NAME=VALUE")]
    pub(super) subject: Vec<String>,
}

#[derive(Args)]
pub(crate) struct SubjectArgs {
    /// Who it is about, as in ip=203.0.113.7 user=42 header:x-tenant=acme, or by a fingerprint:
    /// api_key=#f8c0a1b2c3d4e5f6
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub(super) subject: Vec<String>,
}

#[derive(Args)]
pub(crate) struct LastingArgs {
    /// How long, as in 15min, 1h or 7d
    #[arg(long = "for", value_name = "TIME")]
    pub(super) lasts: String,
    /// Why, for whoever looks at it later
    #[arg(long)]
    pub(super) reason: Option<String>,
}
