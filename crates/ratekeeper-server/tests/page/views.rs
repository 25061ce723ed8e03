//! The views: what they show equals what the API and `/metrics` return.

use crate::support::{Server, config_file, ratekeeper, service};
use crate::{ask, open, serve};
use serde_json::{Value, json};

const VIEWS: [&str; 8] = [
    "overview",
    "policies",
    "keys",
    "shadow",
    "try",
    "overrides",
    "audit",
    "playground",
];

/// The exact number in a title.
fn exact(title: &Value) -> f64 {
    title
        .as_str()
        .unwrap()
        .replace(',', "")
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn numbers_update_and_equal_the_metrics() {
    let server = serve("");
    let mut page = open(&server, "overview");
    page.until("document.getElementById('kpi-allowed').title === '0'");
    let allowed = (0..5)
        .filter(|_| ask(&server, "203.0.113.7", "", "/login"))
        .count();
    assert_eq!(allowed, 3);
    for _ in 0..20 {
        assert!(ask(&server, "198.51.100.1", "u7", "/api/x"));
    }
    for _ in 0..4 {
        assert!(ask(&server, "198.51.100.2", "", "/search"), "shadow mode");
    }
    page.until("document.getElementById('kpi-denied').title === '2'");
    for (id, metric) in [
        ("kpi-allowed", "ratelimit_requests_allowed"),
        ("kpi-denied", "ratelimit_requests_blocked"),
    ] {
        let title = page.eval(&format!("document.getElementById('{id}').title"));
        assert_eq!(exact(&title), server.metric(metric), "{metric}");
    }
    assert_eq!(page.text("#kpi-allowed"), "27");
    // The rate, the share and the chart come from the difference of two seconds.
    page.until("document.querySelector('#traffic .denied-line')");
    assert_eq!(page.text("#kpi-share"), "6.9 %", "2 of 29");
    assert_eq!(page.text("#by-policy tr:first-child th"), "login");
    page.until("document.querySelector('#by-policy tr:first-child .spark .denied-line')");
    assert_eq!(page.text("#by-policy tr:first-child td:last-child"), "40 %");
    for line in [
        "Serving\ndecisions ready",
        "Store\nmemory available",
        "Configuration\n0 reloads in force",
    ] {
        page.until_text("#health > div", line);
    }
    page.until_text("#short-most-active li", "user=u7");
    page.until_text("#short-denied li", "ip=203.0.113.7");

    page.click("nav a[href='#policies']");
    page.until("document.querySelectorAll('#policies tr').length === 4");
    let columns = [
        (4, "allowed"),
        (5, "denied"),
        (6, "shadow_denied"),
        (7, "delayed"),
        (8, "error"),
    ];
    for (row, policy) in [(1, "login"), (2, "api"), (3, "search"), (4, "everyone")] {
        for (column, outcome) in columns {
            let cell = format!(
                "document.querySelector('#policies tr:nth-child({row}) > :nth-child({column})').title"
            );
            let metric =
                format!("ratekeeper_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}");
            assert_eq!(exact(&page.eval(&cell)), server.metric(&metric), "{metric}");
        }
    }
    assert!(page.text("#policies tr:nth-child(2)").contains("by user"));
    assert!(
        page.text("#policies tr:nth-child(2)")
            .contains("100/min burst 50")
    );
    assert!(page.text("#policies tr:nth-child(3)").contains("shadow"));
    assert!(
        page.text("#policies tr:nth-child(4)")
            .contains("one bucket for all")
    );
    let level = page.eval("document.querySelector('#policies tr:nth-child(4) .level span').title");
    assert_eq!(
        exact(&level),
        server.metric("ratelimit_current_usage{policy=\"everyone\"}")
    );

    page.click("nav a[href='#shadow']");
    page.until_text("#shadow .card", "75 % · 3 of 4");
    assert!(page.text("#shadow").contains("search") && !page.text("#shadow").contains("login"));
    page.click("nav a[href='#keys']");
    page.until_text("#most-denied li", "ip=203.0.113.7");
    page.no_problems();
}

#[test]
fn the_chart_is_readable_by_keyboard_and_as_a_table() {
    let server = serve("");
    let mut page = open(&server, "overview");
    page.until("document.querySelector('#traffic .allowed-line')");
    assert!(ask(&server, "203.0.113.7", "", "/login"));
    page.until("document.getElementById('kpi-allowed').title === '1'");
    page.eval("document.getElementById('traffic').focus()");
    page.press("ArrowLeft");
    page.until_text("#traffic .readout", "allowed/s");
    page.press("Home");
    page.until_text("#traffic .readout", "denied/s");
    page.press("Escape");
    page.until("document.querySelector('#traffic .readout').hidden");
    page.click("#view-overview .as-table summary");
    page.until("document.querySelectorAll('#minute tr').length > 1");
    assert!(page.text("#traffic-summary").contains("allowed and"));
    page.click("#span label:has([value='60'])");
    page.until(
        "[...document.querySelectorAll('#traffic text')].some((e) => e.textContent === '−48 s')",
    );
    page.no_problems();
}

#[test]
fn every_view_opens_by_its_address_and_by_a_click() {
    let server = serve("");
    let mut page = open(&server, "nonsense");
    page.until("!document.getElementById('view-overview').hidden");
    for view in VIEWS.into_iter().chain(VIEWS.into_iter().rev()) {
        page.click(&format!("nav a[href='#{view}']"));
        page.until(&format!("!document.getElementById('view-{view}').hidden"));
        let shown = page
            .eval("[...document.querySelectorAll('.view')].filter((view) => !view.hidden).length");
        assert_eq!(shown, json!(1));
        assert_eq!(
            page.eval("document.querySelector('[aria-current]').hash"),
            json!(format!("#{view}"))
        );
        let title = page.text(&format!("#h-{view}"));
        assert_eq!(
            page.eval("document.title"),
            json!(format!("{title} · ratekeeper"))
        );
    }
    // No adaptive limits, so no view of them.
    assert_eq!(
        page.eval("document.getElementById('nav-overload').hidden"),
        json!(true)
    );
    page.no_problems();
}

#[test]
fn trying_a_subject_charges_nothing() {
    let server = serve("");
    let mut page = open(&server, "try");
    page.until("document.querySelector('#try-fields [data-name=user]')");
    page.fill("#try-fields [data-name=ip]", "203.0.113.7");
    page.fill("#try-fields [data-name=path]", "/login");
    for _ in 0..5 {
        page.click("#try button[type=submit]");
        page.until_text("#try-result .verdict", "Allowed");
    }
    page.until_text("#try-result .level", "3 of 3 left, costs 1");
    page.until_text("#try-result .skipped", "api does not apply");
    while ask(&server, "203.0.113.7", "", "/login") {}
    page.click("#try button[type=submit]");
    page.until_text("#try-result .verdict", "Denied by login");
    page.until_text("#try-result .level", "0 of 3 left, costs 1, allowed in");
    page.fill("#try-more", "tenant");
    page.click("#try button[type=submit]");
    page.until_text("#try-error", "“tenant” is not name=value");
    page.no_problems();
    page.fill("#try-more", "");
    page.fill("#try-fields [data-name=ip]", "nowhere");
    page.click("#try button[type=submit]");
    page.until_text("#try-error", "is not an IP address");
    page.no_problems_except("400 (Bad Request)");
}

#[test]
fn a_gateway_shows_its_adaptive_limit_and_load_shedding() {
    let config = "[server]\nhttp = \"127.0.0.1:0\"\n[gateway]\naccess_log = \"off\"\n[shed]\n\
                  [[policy]]\nname = \"backend\"\nadaptive = { min = 3, max = 77 }\n";
    let mut command = ratekeeper();
    command
        .args([
            "proxy",
            "--upstream",
            &format!("http://{}", service()),
            "--config",
        ])
        .arg(config_file(config));
    let gateway = Server::run(command);
    for _ in 0..5 {
        assert_eq!(gateway.request("GET", "/", "").status(), 200);
    }
    let mut page = open(&gateway, "overload");
    page.until_text("#view-overload", "gradient2");
    let text = page.eval("document.getElementById('view-overload').innerText");
    let text = text.as_str().unwrap();
    for expected in ["backend", "3 to 77", "critical plus", "sheddable"] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    page.no_problems();
}

/// With numbers that real traffic would take long to produce.
#[test]
fn the_overload_view_shows_limits_and_shedding() {
    let server = serve("");
    let mut page = open(&server, "overload");
    let adaptive = json!({"policy": "api", "algorithm": "gradient2", "limit": 37, "min": 5, "max": 200, "in_flight": 21,
                          "queued": 3, "denied": {"queue_full": 2, "waited_too_long": 5}, "latency_ms": 12.4, "baseline_ms": 9.8});
    let classes = json!([{"class": "critical_plus", "allowed": 5214, "shed": 0},
                         {"class": "sheddable", "allowed": 9000, "shed": 123456}]);
    let shed = json!({"pressure": 0.42, "lowest_served": "sheddable_plus", "classes": classes});
    let status = json!({"overload": {"limits": [adaptive], "shed": shed, "late": 1234}});
    page.until_text("#no-adaptive", "No adaptive limits");
    // In one evaluation: the next status has no adaptive limits again.
    let text = page.eval(&format!(
        "import('/assets/overload.js').then((view) => (view.overload.update({status}), document.getElementById('view-overload').innerText))"
    ));
    let text = text.as_str().unwrap();
    for expected in [
        "gradient2",
        "37 of 5 to 200",
        "12 ms",
        "9.8 ms",
        "load 42 %",
        "lowest class served: sheddable plus",
        "critical plus",
        "123K",
        "1,234 requests had passed their deadline",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    page.no_problems();
}

/// Keys are chosen by clients.
#[test]
fn untrusted_text_is_shown_as_text() {
    let evil = "<img src=x onerror=alert(1)>";
    let server = serve("");
    while ask(&server, "203.0.113.7", evil, "/api/x") {}
    let mut page = open(&server, "keys");
    page.until_text("#most-active li", evil);
    page.until_text("#most-denied li", evil);
    page.click("nav a[href='#try']");
    page.fill("#try-fields [data-name=user]", evil);
    page.fill("#try-fields [data-name=path]", "/api/x");
    page.click("#try button[type=submit]");
    page.until_text("#try-result", evil);
    assert_eq!(
        page.eval("document.querySelectorAll('main img, dialog img').length"),
        json!(0)
    );
    page.no_problems();
}

#[test]
fn an_upstream_is_healthy_or_unhealthy_and_why() {
    let (well, gone) = (service(), "127.0.0.1:1");
    let config = format!(
        "[gateway]\nupstreams = [\"http://{well}\", \"http://{gone}\"]\nhealth_path = \"/\"\nhealth_interval = \"100ms\"\n\
         [[policy]]\nname = \"all\"\nlimit = \"unlimited\"\n"
    );
    let mut command = ratekeeper();
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--config"])
        .arg(config_file(&config));
    let server = Server::run(command);
    let mut page = open(&server, "overview");
    let line = |upstream: &str| {
        let term = format!(
            "[...document.querySelectorAll('#health dt')].find((dt) => dt.textContent === 'http://{upstream}')"
        );
        format!("{term}?.nextElementSibling")
    };
    let (well, gone) = (line(&well.to_string()), line(gone));
    page.until(&format!("{well}?.textContent.trim() === 'healthy'"));
    page.until(&format!(
        "{gone}?.textContent === 'health check fails unhealthy'"
    ));
    let tag = |line: &str| format!("{line}.querySelector('.tag').className");
    assert_eq!(
        (page.eval(&tag(&well)), page.eval(&tag(&gone))),
        ("tag ok".into(), "tag denied".into())
    );
    page.no_problems();
}
