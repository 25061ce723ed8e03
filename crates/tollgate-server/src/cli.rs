//! What a user types: `tollgate [serve] [--config FILE]`, `tollgate version`.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Rate limits served to any stack. Without a command: serve.
#[derive(Parser)]
#[command(name = "tollgate", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve decisions until SIGTERM or SIGINT
    Serve(ServeArgs),
    /// Print the version
    Version,
}

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The configuration, in TOML; without it everything has its default
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
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
