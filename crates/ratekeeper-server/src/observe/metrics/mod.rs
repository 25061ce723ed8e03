//! The figures of the service, as Prometheus reads them.

mod figures;
mod process;
mod text;

pub(crate) use figures::page;
pub(crate) use text::CONTENT_TYPE;
