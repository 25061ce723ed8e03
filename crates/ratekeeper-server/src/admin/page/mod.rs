//! The live page: files in the binary, and the security headers for browsers.

use axum::Router;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::get;

/// The path of the page.
pub(super) const PAGE: &str = "/";

/// The content security policy: only files of this listener, no inline script or style, no form
/// targets, no framing. Untrusted text in keys stays text.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    // For browsers without frame-ancestors.
    (header::X_FRAME_OPTIONS, "DENY"),
    // Another version of the binary may serve another page.
    (header::CACHE_CONTROL, "no-cache"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page: path, content type, text.
type Asset = (&'static str, &'static str, &'static str);

/// A file under `/assets/`.
macro_rules! asset {
    ($name:literal, $kind:expr) => {
        (concat!("/assets/", $name), $kind, include_str!($name))
    };
}

const ASSETS: [Asset; 23] = [
    (PAGE, HTML, include_str!("index.html")),
    asset!("base.css", CSS),
    asset!("parts.css", CSS),
    asset!("views.css", CSS),
    asset!("icon.svg", SVG),
    asset!("act.js", SCRIPT),
    asset!("api.js", SCRIPT),
    asset!("app.js", SCRIPT),
    asset!("audit.js", SCRIPT),
    asset!("chart.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("drawing.js", SCRIPT),
    asset!("explain.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("history.js", SCRIPT),
    asset!("keys.js", SCRIPT),
    asset!("overload.js", SCRIPT),
    asset!("overrides.js", SCRIPT),
    asset!("overview.js", SCRIPT),
    asset!("playground.js", SCRIPT),
    asset!("policies.js", SCRIPT),
    asset!("shadow.js", SCRIPT),
    asset!("subject.js", SCRIPT),
];

/// The routes of all files.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ASSETS.into_iter().fold(Router::new(), |router, asset| {
        router.route(asset.0, get(async move || response(asset)))
    })
}

fn response((_, kind, text): Asset) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.headers_mut() = security_headers();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn security_headers() -> HeaderMap {
    HEADERS
        .into_iter()
        .map(|(name, value)| (name, HeaderValue::from_static(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn is_served(path: &str) -> bool {
        ASSETS.iter().any(|(known, ..)| *known == path)
    }

    #[test]
    fn every_file_is_served_and_nothing_else_is_requested() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/page");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let path = if name == "index.html" {
                PAGE.to_owned()
            } else {
                format!("/assets/{name}")
            };
            assert!(
                name == "mod.rs" || is_served(&path),
                "{name} is not in ASSETS"
            );
        }
        for (path, _, text) in ASSETS {
            for begin in ["src=\"", "href=\"/", "from \"./"] {
                for found in text.split(begin).skip(1) {
                    let name = found
                        .split('"')
                        .next()
                        .unwrap()
                        .trim_start_matches("/assets/")
                        .trim_start_matches("assets/");
                    assert!(
                        name == "metrics" || is_served(&format!("/assets/{name}")),
                        "{path} requests {name}"
                    );
                }
            }
        }
    }

    /// The policy would block these, and inserting text as HTML would let keys inject markup.
    #[test]
    fn the_page_needs_nothing_that_the_policy_blocks() {
        for (path, _, text) in ASSETS {
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                " style=\"",
            ] {
                assert!(!text.contains(forbidden), "{path} has {forbidden}");
            }
            let outside = text
                .split("://")
                .skip(1)
                .any(|after| !after.starts_with("www.w3.org/2000/svg"));
            assert!(
                !outside || path == "/assets/overview.js",
                "{path} names another host"
            );
        }
        for forbidden in [
            "<style",
            " onclick=",
            " onload=",
            " onerror=",
            "javascript:",
        ] {
            assert!(!ASSETS[0].2.contains(forbidden), "the page has {forbidden}");
        }
    }
}
