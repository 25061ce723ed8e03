//! The live page: files that are in the binary, and the rules that browsers are told to keep to.

use axum::Router;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::get;

/// Where the page is.
pub(super) const PAGE: &str = "/";

/// Nothing but what this listener serves itself: no script or style in the page, none from
/// elsewhere, nowhere to send a form, and no frame of another page around it. What a stranger wrote
/// into a key stays text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    // For browsers that do not know frame-ancestors.
    (header::X_FRAME_OPTIONS, "DENY"),
    // Another version of the binary has another page.
    (header::CACHE_CONTROL, "no-cache"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page: where it is, what it is, what is in it.
type Part = (&'static str, &'static str, &'static str);

/// One of them under `/assets/`.
macro_rules! asset {
    ($name:literal, $kind:expr) => {
        (concat!("/assets/", $name), $kind, include_str!($name))
    };
}

const PARTS: [Part; 23] = [
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
    asset!("holds.js", SCRIPT),
    asset!("keys.js", SCRIPT),
    asset!("overview.js", SCRIPT),
    asset!("playground.js", SCRIPT),
    asset!("policies.js", SCRIPT),
    asset!("pressure.js", SCRIPT),
    asset!("shadow.js", SCRIPT),
    asset!("subject.js", SCRIPT),
];

/// All of it, each file where the page looks for it.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    PARTS.into_iter().fold(Router::new(), |router, part| {
        router.route(part.0, get(async move || served(part)))
    })
}

fn served((_, kind, text): Part) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.headers_mut() = rules();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn rules() -> HeaderMap {
    HEADERS
        .into_iter()
        .map(|(name, value)| (name, HeaderValue::from_static(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn is_there(path: &str) -> bool {
        PARTS.iter().any(|(known, ..)| *known == path)
    }

    #[test]
    fn every_file_of_the_page_is_served_and_nothing_else_is_asked_for() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/page");
        for file in std::fs::read_dir(folder).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let path = if name == "index.html" {
                PAGE.to_owned()
            } else {
                format!("/assets/{name}")
            };
            assert!(
                name == "mod.rs" || is_there(&path),
                "{name} is not in PARTS"
            );
        }
        for (path, _, text) in PARTS {
            for begin in ["src=\"", "href=\"/", "from \"./"] {
                for found in text.split(begin).skip(1) {
                    let name = found
                        .split('"')
                        .next()
                        .unwrap()
                        .trim_start_matches("/assets/")
                        .trim_start_matches("assets/");
                    assert!(
                        name == "metrics" || is_there(&format!("/assets/{name}")),
                        "{path} asks for {name}"
                    );
                }
            }
        }
    }

    /// The policy would keep them from working, and whoever writes text as HTML lets strangers
    /// write the page.
    #[test]
    fn nothing_in_the_page_needs_more_than_the_policy_allows() {
        for (path, _, text) in PARTS {
            for never in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                " style=\"",
            ] {
                assert!(!text.contains(never), "{path} has {never}");
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
        for never in [
            "<style",
            " onclick=",
            " onload=",
            " onerror=",
            "javascript:",
        ] {
            assert!(!PARTS[0].2.contains(never), "the page has {never}");
        }
    }
}
