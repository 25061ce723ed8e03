//! The route that a framework found for a request.

use http::Extensions;

/// The route, such as `/users/{id}`, where the framework says it.
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
