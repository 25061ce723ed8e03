//! Negotiation of the format of a denial.

use super::super::DenialFormat;
use http::{HeaderMap, HeaderValue};

fn format(name: &'static str, value: &'static str) -> DenialFormat {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_static(value));
    DenialFormat::from_headers(&headers)
}

#[test]
fn the_format_is_the_one_the_client_prefers() {
    assert_eq!(
        DenialFormat::from_headers(&HeaderMap::new()),
        DenialFormat::Problem
    );
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
    for (accept, form) in [
        ("*/*", DenialFormat::Problem),
        ("", DenialFormat::Problem),
        ("image/png", DenialFormat::Problem),
        ("application/json, text/plain, */*", DenialFormat::Problem),
        ("application/json, text/plain", DenialFormat::Problem),
        (
            "APPLICATION/problem+json;q=0.9, text/html;q=0.8",
            DenialFormat::Problem,
        ),
        (browser, DenialFormat::Html),
        ("text/html", DenialFormat::Html),
        ("Text/Plain", DenialFormat::Plain),
        ("text/*", DenialFormat::Plain),
        ("text/*, text/plain;q=0.1", DenialFormat::Html),
        (
            "text/plain;q=0.3, text/html ; level=1 ; q=0.4, */*;q=0.1",
            DenialFormat::Html,
        ),
        ("text/plain, */*;q=0", DenialFormat::Plain),
        ("text/html;q=0, */*", DenialFormat::Problem),
        ("*/*, application/*;q=0.5", DenialFormat::Plain),
        ("text/html;q=nan, text/plain;q=0.1", DenialFormat::Plain),
        ("text/html;q=7, text/plain;q=0.001", DenialFormat::Plain),
    ] {
        assert_eq!(format("accept", accept), form, "{accept}");
    }
    let mut headers = HeaderMap::new();
    headers.append("accept", HeaderValue::from_static("application/json;q=0.2"));
    headers.append("accept", HeaderValue::from_static("text/plain;q=0.4"));
    assert_eq!(DenialFormat::from_headers(&headers), DenialFormat::Plain);
}

#[test]
fn grpc_is_detected_by_content_type() {
    for (content_type, form) in [
        ("application/grpc", DenialFormat::Grpc("application/grpc")),
        (
            "Application/gRPC+proto",
            DenialFormat::Grpc("application/grpc"),
        ),
        (
            "application/grpc-web+proto",
            DenialFormat::Grpc("application/grpc-web"),
        ),
        (
            "application/grpc-web-text",
            DenialFormat::Grpc("application/grpc-web-text"),
        ),
        ("application/json", DenialFormat::Problem),
        ("application/g", DenialFormat::Problem),
    ] {
        assert_eq!(format("content-type", content_type), form, "{content_type}");
    }
}
