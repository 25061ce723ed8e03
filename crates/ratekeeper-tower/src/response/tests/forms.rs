//! Which form of a denial a client gets.

use super::super::Asker;
use http::{HeaderMap, HeaderValue};

fn asker(name: &'static str, value: &'static str) -> Asker {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_static(value));
    Asker::of(&headers)
}

#[test]
fn the_form_is_what_the_client_wants_most() {
    assert_eq!(Asker::of(&HeaderMap::new()), Asker::Problem);
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
    for (accept, form) in [
        ("*/*", Asker::Problem),
        ("", Asker::Problem),
        ("image/png", Asker::Problem),
        ("application/json, text/plain, */*", Asker::Problem),
        ("application/json, text/plain", Asker::Problem),
        (
            "APPLICATION/problem+json;q=0.9, text/html;q=0.8",
            Asker::Problem,
        ),
        (browser, Asker::Html),
        ("text/html", Asker::Html),
        ("Text/Plain", Asker::Plain),
        ("text/*", Asker::Plain),
        ("text/*, text/plain;q=0.1", Asker::Html),
        (
            "text/plain;q=0.3, text/html ; level=1 ; q=0.4, */*;q=0.1",
            Asker::Html,
        ),
        ("text/plain, */*;q=0", Asker::Plain),
        ("text/html;q=0, */*", Asker::Problem),
        ("*/*, application/*;q=0.5", Asker::Plain),
        ("text/html;q=nan, text/plain;q=0.1", Asker::Plain),
        ("text/html;q=7, text/plain;q=0.001", Asker::Plain),
    ] {
        assert_eq!(asker("accept", accept), form, "{accept}");
    }
    let mut headers = HeaderMap::new();
    headers.append("accept", HeaderValue::from_static("application/json;q=0.2"));
    headers.append("accept", HeaderValue::from_static("text/plain;q=0.4"));
    assert_eq!(Asker::of(&headers), Asker::Plain);
}

#[test]
fn grpc_is_told_by_its_content() {
    for (content_type, form) in [
        ("application/grpc", Asker::Grpc("application/grpc")),
        ("Application/gRPC+proto", Asker::Grpc("application/grpc")),
        (
            "application/grpc-web+proto",
            Asker::Grpc("application/grpc-web"),
        ),
        (
            "application/grpc-web-text",
            Asker::Grpc("application/grpc-web-text"),
        ),
        ("application/json", Asker::Problem),
        ("application/g", Asker::Problem),
    ] {
        assert_eq!(asker("content-type", content_type), form, "{content_type}");
    }
}
