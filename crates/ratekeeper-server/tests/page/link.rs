//! The connection: lost and restored; and the security headers of the page.

use crate::support::{Server, config_file, ratekeeper};
use crate::{POLICIES, ask, open, serve};
use ratekeeper_testkit::free_port;

#[test]
fn a_lost_connection_is_shown_and_restored() {
    let file = config_file(&format!("[server]\nhttp = \"127.0.0.1:0\"\n{POLICIES}"));
    let port = free_port();
    let start = || {
        let mut command = ratekeeper();
        command
            .env("RATEKEEPER_SERVER__ADMIN", format!("127.0.0.1:{port}"))
            .arg("serve")
            .arg("--config")
            .arg(&file);
        Server::run(command)
    };
    let server = start();
    assert!(ask(&server, "203.0.113.7", "", "/login"));
    let mut page = open(&server, "overview");
    page.until("document.getElementById('kpi-allowed').title === '1'");
    drop(server);
    page.until_text("#banner-text", "Connection to the server lost at");
    page.until_text("#link-text", "Not connected");
    let server = start();
    page.until("document.getElementById('banner').hidden");
    page.until_text("#link-text", "Live");
    page.until("document.getElementById('kpi-allowed').title === '0'");
    assert!(ask(&server, "203.0.113.7", "", "/login"));
    page.until("document.getElementById('kpi-allowed').title === '1'");
    page.no_problems_except("net::ERR_");
}

#[test]
fn files_have_types_and_security_headers() {
    let server = serve("");
    let kinds = [
        ("/", "text/html; charset=utf-8"),
        ("/assets/app.js", "text/javascript; charset=utf-8"),
        ("/assets/base.css", "text/css; charset=utf-8"),
        ("/assets/icon.svg", "image/svg+xml"),
    ];
    for (path, kind) in kinds {
        let answer = server.admin("GET", path);
        assert_eq!(
            (answer.status(), answer.header("content-type")),
            (200, Some(kind)),
            "{path}"
        );
        assert_eq!(
            answer.header("content-security-policy"),
            Some(
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
        );
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
    }
    assert_eq!(server.admin("GET", "/assets/mod.rs").status(), 404);
    assert_eq!(server.admin("POST", "/").status(), 405);
}
