//! Metrics in the Prometheus text format.

mod families;
mod process;
mod text;

pub(crate) use families::page;
pub(crate) use text::CONTENT_TYPE;
