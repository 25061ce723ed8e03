//! The route template that a framework matched for a request.

use http::Extensions;

/// The route template, such as `/users/{id}`, if the framework provides it.
#[cfg(feature = "axum")]
pub(crate) fn of(extensions: &Extensions) -> Option<&str> {
    extensions
        .get::<axum::extract::MatchedPath>()
        .map(|path| path.as_str())
}

#[cfg(not(feature = "axum"))]
pub(crate) fn of(_: &Extensions) -> Option<&str> {
    None
}
