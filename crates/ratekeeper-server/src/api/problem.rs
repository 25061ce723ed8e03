//! Error responses as `application/problem+json` (RFC 9457).

use super::json_bytes;
use axum::body::{Body, Bytes};
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::borrow::Cow;

/// Declares [`Code`] and the name of each variant.
macro_rules! codes {
    ($($name:ident = $text:literal,)+) => {
        /// Stable error code that programs may match on.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Code {
            $($name,)+
        }

        impl Code {
            #[cfg(test)]
            pub(super) const ALL: &'static [Self] = &[$(Self::$name,)+];

            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

codes! {
    InvalidJson = "invalid_json",
    NotAnObject = "not_an_object",
    UnknownField = "unknown_field",
    DuplicateField = "duplicate_field",
    MissingField = "missing_field",
    InvalidField = "invalid_field",
    InvalidLimit = "invalid_limit",
    UnknownAlgorithm = "unknown_algorithm",
    AlgorithmConflict = "algorithm_conflict",
    BadRequest = "bad_request",
    HeadTooLarge = "head_too_large",
    TargetTooLong = "target_too_long",
    BrokenBody = "broken_body",
    BodyTimeout = "body_timeout",
    BodyTooLarge = "body_too_large",
    Forbidden = "forbidden",
    Unauthorized = "unauthorized",
    NotFound = "not_found",
    MethodNotAllowed = "method_not_allowed",
    TooManyLimits = "too_many_limits",
    InvalidConfig = "invalid_config",
    BadTarget = "bad_target",
    BadHost = "bad_host",
    WrongHost = "wrong_host",
    UnknownCoding = "unknown_coding",
    BadUpstream = "bad_upstream",
    SlowUpstream = "slow_upstream",
    Unavailable = "unavailable",
    BatchSize = "batch_size",
    InvalidId = "invalid_id",
    ForgedId = "forged_id",
    ExpiredId = "expired_id",
    LostId = "lost_id",
    AlreadySettled = "already_settled",
    TooManyReservations = "too_many_reservations",
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooManyLimits | Self::Unavailable | Self::TooManyReservations => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::ForgedId => StatusCode::FORBIDDEN,
            Self::ExpiredId | Self::LostId => StatusCode::GONE,
            Self::AlreadySettled => StatusCode::CONFLICT,
            Self::InvalidConfig => StatusCode::UNPROCESSABLE_ENTITY,
            Self::WrongHost => StatusCode::MISDIRECTED_REQUEST,
            Self::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
            Self::BadUpstream => StatusCode::BAD_GATEWAY,
            Self::SlowUpstream => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

/// Value of `X-Content-Type-Options` in every response made here: browsers must not guess the
/// content type.
pub(crate) const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Problem {
    code: Code,
    detail: Cow<'static, str>,
}

impl Problem {
    /// `detail` says what is wrong and how to correct it.
    pub(crate) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }

    /// A sentence that says what is wrong.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// Adds the index of the request in a list.
    pub(super) fn in_request(self, index: usize) -> Self {
        Self {
            detail: format!("request {index} of the list (from 0): {}", self.detail).into(),
            ..self
        }
    }
}

#[derive(Serialize)]
struct ProblemBody<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: &'a str,
}

impl Problem {
    /// The response with its body in memory, for listeners without axum.
    pub(crate) fn plain(&self) -> Response<Bytes> {
        let status = self.code.status();
        let body = ProblemBody {
            // With this type RFC 9457 requires the status phrase as the title; `code` tells
            // problems apart.
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            code: self.code.name(),
            detail: &self.detail,
        };
        let mut response = json_bytes(status, "application/problem+json", &body);
        // A gateway in front of a site responds to browsers.
        response
            .headers_mut()
            .insert(X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.plain().map(Body::from)
    }
}

/// Text of a client for an error message: escaped, and cut if it is long.
pub(crate) fn quoted(written: &str) -> String {
    const MAX_CHARS: usize = 64;
    match written.char_indices().nth(MAX_CHARS) {
        None => format!("`{}`", written.escape_debug()),
        Some((end, _)) => format!("`{}…`", written[..end].escape_debug()),
    }
}
