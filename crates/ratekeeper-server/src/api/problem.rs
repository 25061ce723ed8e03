//! `application/problem+json` (RFC 9457): what is wrong with a request, for programs and for
//! people.

use super::json_bytes;
use axum::body::{Body, Bytes};
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::borrow::Cow;

/// What is wrong: the stable word that programs may match on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    InvalidJson,
    NotAnObject,
    UnknownField,
    DuplicateField,
    MissingField,
    InvalidField,
    InvalidLimit,
    UnknownAlgorithm,
    AlgorithmConflict,
    BadRequest,
    HeadTooLarge,
    TargetTooLong,
    UnknownVersion,
    BrokenBody,
    BodyTimeout,
    BodyTooLarge,
    Forbidden,
    Unauthorized,
    NotFound,
    MethodNotAllowed,
    TooManyLimits,
    InvalidConfig,
    BadTarget,
    BadHost,
    WrongHost,
    UnknownCoding,
    BadUpstream,
    SlowUpstream,
    Unavailable,
    BatchSize,
    InvalidId,
    ForgedId,
    ExpiredId,
    LostId,
    AlreadySettled,
    TooManyReservations,
}

impl Code {
    fn word(self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::NotAnObject => "not_an_object",
            Self::UnknownField => "unknown_field",
            Self::DuplicateField => "duplicate_field",
            Self::MissingField => "missing_field",
            Self::InvalidField => "invalid_field",
            Self::InvalidLimit => "invalid_limit",
            Self::UnknownAlgorithm => "unknown_algorithm",
            Self::AlgorithmConflict => "algorithm_conflict",
            Self::BadRequest => "bad_request",
            Self::HeadTooLarge => "head_too_large",
            Self::TargetTooLong => "target_too_long",
            Self::UnknownVersion => "unknown_version",
            Self::BrokenBody => "broken_body",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTooLarge => "body_too_large",
            Self::Forbidden => "forbidden",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::TooManyLimits => "too_many_limits",
            Self::InvalidConfig => "invalid_config",
            Self::BadTarget => "bad_target",
            Self::BadHost => "bad_host",
            Self::WrongHost => "wrong_host",
            Self::UnknownCoding => "unknown_coding",
            Self::BadUpstream => "bad_upstream",
            Self::SlowUpstream => "slow_upstream",
            Self::Unavailable => "unavailable",
            Self::BatchSize => "batch_size",
            Self::InvalidId => "invalid_id",
            Self::ForgedId => "forged_id",
            Self::ExpiredId => "expired_id",
            Self::LostId => "lost_id",
            Self::AlreadySettled => "already_settled",
            Self::TooManyReservations => "too_many_reservations",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::UnknownVersion => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
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

/// The value of `X-Content-Type-Options` in every response that is made here: browsers go by its
/// content type.
pub(crate) const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Problem {
    code: Code,
    detail: Cow<'static, str>,
}

impl Problem {
    /// `detail` says what is wrong and what would be right.
    pub(crate) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }

    /// What is wrong, in a sentence.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// The same of one request among several, counted from 0.
    pub(super) fn in_request(self, at: usize) -> Self {
        Self {
            detail: format!("request {at} of the list (from 0): {}", self.detail).into(),
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
    /// As a response that needs no framework.
    pub(crate) fn plain(&self) -> Response<Bytes> {
        let status = self.code.status();
        let body = ProblemBody {
            // The kind of problem is the status; `code` says which one it is. RFC 9457 wants its
            // phrase as the title.
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            code: self.code.word(),
            detail: &self.detail,
        };
        let mut response = json_bytes(status, "application/problem+json", &body);
        // Where a gateway stands in front of a site, a browser may be asking.
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

/// What a client wrote, fit to be told back to it: escaped, and only its beginning if it is long.
pub(crate) fn quoted(written: &str) -> String {
    const LONGEST: usize = 64;
    match written.char_indices().nth(LONGEST) {
        None => format!("`{}`", written.escape_debug()),
        Some((end, _)) => format!("`{}…`", written[..end].escape_debug()),
    }
}
