//! The subcommands other than `serve` and `proxy`: `admin`, `config`, `doctor`, `explain`, `top`.

pub(crate) mod admin;
pub(crate) mod admin_client;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod terminal;
pub(crate) mod top;
