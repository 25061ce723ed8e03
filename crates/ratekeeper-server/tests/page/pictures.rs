//! The pictures of docs/page.md, from a service under traffic: `make screenshots`.

use crate::browser::Browser;
use crate::support::{Server, config_file, ratekeeper};
use serde_json::json;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const POLICIES: &str = r#"
[server]
http = "127.0.0.1:0"
[stats]
keys = "plain"
[[policy]]
name = "login"
match = { path = "/login" }
key = ["ip"]
limit = "10/min"
algorithm = "sliding_log"
[[policy]]
name = "api"
match = { path = "/api/**" }
key = ["user"]
limits = ["300/min burst 40", "5000/h"]
[[policy]]
name = "search"
match = { path = "/search" }
key = ["ip"]
limit = "20/min burst 5"
action = "shadow"
[[policy]]
name = "everyone"
limit = "200/s"
"#;

/// Sample traffic: users of an API, two of them over their limit, and some password guessing.
fn traffic(server: &Server, stop: &AtomicBool) {
    let mut connection = server.connect();
    let mut tick = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let wave = 6.0 + 3.0 * (tick as f64 / 90.0).sin() + 1.5 * (tick as f64 / 17.0).sin();
        let rush = if tick % 260 < 70 { 5 } else { 0 };
        for one in 0..wave as u64 + rush {
            let (user, path) = match (tick * 7 + one * 13) % 20 {
                0..12 => ((tick + one * one) % 24, "/api/orders"),
                12..15 => (3, "/api/export"),
                15..18 => (0, "/search"),
                _ => (0, "/login"),
            };
            let user = if one >= wave as u64 { 7 } else { user };
            let ip = format!("203.0.113.{}", 7 + (tick / 9 + one) % 5 * (one % 3));
            let subject =
                json!({"ip": ip, "user": format!("u{user}"), "method": "GET", "path": path});
            connection.send(
                "POST",
                "/v1/check",
                &json!({"subject": subject}).to_string(),
            );
            connection.answer();
        }
        tick += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Stops the traffic when dropped, also if the test fails.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn save(page: &mut Browser, name: &str) {
    let picture = page.picture();
    assert!(
        picture.len() < 200 * 1024,
        "{name} has {} bytes",
        picture.len()
    );
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/img")
        .join(name);
    std::fs::write(file, picture).unwrap();
}

#[test]
#[ignore = "writes docs/img and takes a minute: make screenshots"]
fn pictures_for_the_docs() {
    let mut command = ratekeeper();
    command
        .arg("serve")
        .arg("--config")
        .arg(config_file(POLICIES));
    let server = Server::run(command);
    let (server, stop) = (&server, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| traffic(server, stop));
        let _guard = StopGuard(stop);
        let mut page = Browser::start();
        page.size(1280, 1040);
        page.prefers(&[("color-scheme", "light")]);
        page.open(&format!("http://{}/", server.admin));
        page.click("#span label:has([value='60'])");
        for seconds in [30, 52] {
            let drawn = "document.querySelector('#traffic .allowed-line').getAttribute('d').split('L').length";
            page.until(&format!("{drawn} > {seconds}"));
        }
        page.eval("scrollTo(0, 0); document.activeElement.blur()");
        save(&mut page, "page-light.png");
        page.prefers(&[("color-scheme", "dark")]);
        page.eval("new Promise((done) => setTimeout(done, 400))");
        save(&mut page, "page-dark.png");
        page.click("nav a[href='#playground']");
        page.until("document.querySelector('#limit-rows .allowed')");
        page.prefers(&[("color-scheme", "light")]);
        page.eval("new Promise((done) => setTimeout(done, 400))");
        save(&mut page, "playground.png");
    });
}
