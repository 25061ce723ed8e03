//! What each view shows, and that it is what the other ways of asking say.

use crate::support::{Server, config_file, ratekeeper, service};
use crate::{ask, open, serve};
use serde_json::{Value, json};

const VIEWS: [&str; 8] = [
    "overview",
    "policies",
    "keys",
    "shadow",
    "try",
    "holds",
    "audit",
    "playground",
];

/// The exact number behind one that is written short.
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
fn figures_move_and_are_those_of_metrics() {
    let server = serve("");
    let mut page = open(&server, "overview");
    page.until("document.getElementById('kpi-allowed').title === '0'");
    let passed = (0..5)
        .filter(|_| ask(&server, "203.0.113.7", "", "/login"))
        .count();
    assert_eq!(passed, 3);
    for _ in 0..20 {
        assert!(ask(&server, "198.51.100.1", "u7", "/api/x"));
    }
    for _ in 0..4 {
        assert!(
            ask(&server, "198.51.100.2", "", "/search"),
            "it is only watched"
        );
    }
    page.until("document.getElementById('kpi-denied').title === '2'");
    for (id, figure) in [
        ("kpi-allowed", "ratelimit_requests_allowed"),
        ("kpi-denied", "ratelimit_requests_blocked"),
    ] {
        let title = page.eval(&format!("document.getElementById('{id}').title"));
        assert_eq!(exact(&title), server.figure(figure), "{figure}");
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
        "Store\nmemory answering",
        "Configuration\n0 reloads in force",
    ] {
        page.until_text("#health > div", line);
    }
    page.until_text("#short-heaviest li", "user=u7");
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
            let figure =
                format!("ratekeeper_decisions_total{{policy=\"{policy}\",outcome=\"{outcome}\"}}");
            assert_eq!(exact(&page.eval(&cell)), server.figure(&figure), "{figure}");
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
        server.figure("ratelimit_current_usage{policy=\"everyone\"}")
    );

    page.click("nav a[href='#shadow']");
    page.until_text("#shadow .card", "75 % · 3 of 4");
    assert!(page.text("#shadow").contains("search") && !page.text("#shadow").contains("login"));
    page.click("nav a[href='#keys']");
    page.until_text("#most-denied li", "ip=203.0.113.7");
    page.no_complaints();
}

#[test]
fn a_chart_is_read_by_the_keyboard_and_as_a_table() {
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
    assert!(page.text("#traffic-said").contains("allowed and"));
    page.click("#span label:has([value='60'])");
    page.until(
        "[...document.querySelectorAll('#traffic text')].some((e) => e.textContent === '−48 s')",
    );
    page.no_complaints();
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
    // Nothing adapts here, so nothing is said of it.
    assert_eq!(
        page.eval("document.getElementById('nav-pressure').hidden"),
        json!(true)
    );
    page.no_complaints();
}

#[test]
fn a_subject_is_tried_and_nothing_is_charged() {
    let server = serve("");
    let mut page = open(&server, "try");
    page.until("document.querySelector('#try-fields [data-name=user]')");
    page.fill("#try-fields [data-name=ip]", "203.0.113.7");
    page.fill("#try-fields [data-name=path]", "/login");
    for _ in 0..5 {
        page.click("#try button[type=submit]");
        page.until_text("#try-told .verdict", "Allowed");
    }
    page.until_text("#try-told .level", "3 of 3 left, costs 1");
    page.until_text("#try-told .apart", "api does not apply");
    while ask(&server, "203.0.113.7", "", "/login") {}
    page.click("#try button[type=submit]");
    page.until_text("#try-told .verdict", "Denied by login");
    page.until_text("#try-told .level", "0 of 3 left, costs 1, admits in");
    page.fill("#try-more", "tenant");
    page.click("#try button[type=submit]");
    page.until_text("#try-wrong", "“tenant” is not name=value");
    page.no_complaints();
    page.fill("#try-more", "");
    page.fill("#try-fields [data-name=ip]", "nowhere");
    page.click("#try button[type=submit]");
    page.until_text("#try-wrong", "is not an IP address");
    page.no_complaints_but("400 (Bad Request)");
}

/// A gateway at work: the figures are those of its limit.
#[test]
fn a_gateway_shows_its_adaptive_limit_and_what_it_sheds() {
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
    let mut page = open(&gateway, "pressure");
    page.until_text("#view-pressure", "gradient2");
    let seen = page.eval("document.getElementById('view-pressure').innerText");
    let seen = seen.as_str().unwrap();
    for text in ["backend", "3 to 77", "critical plus", "sheddable"] {
        assert!(seen.contains(text), "{text} is not in {seen}");
    }
    page.no_complaints();
}

/// In figures that would take long to come by.
#[test]
fn limits_that_follow_the_load_and_what_is_shed_are_shown_where_there_are_any() {
    let server = serve("");
    let mut page = open(&server, "pressure");
    let adaptive = json!({"policy": "api", "algorithm": "gradient2", "limit": 37, "min": 5, "max": 200, "in_flight": 21,
                          "queued": 3, "refused": {"queue_full": 2, "waited_too_long": 5}, "latency_ms": 12.4, "baseline_ms": 9.8});
    let classes = json!([{"class": "critical_plus", "admitted": 5214, "shed": 0},
                         {"class": "sheddable", "admitted": 9000, "shed": 123456}]);
    let shed = json!({"pressure": 0.42, "lowest_served": "sheddable_plus", "classes": classes});
    let told = json!({"pressure": {"limits": [adaptive], "shed": shed, "late": 1234}});
    page.until_text("#no-adaptive", "No limit follows the load");
    // In one go: the next second says again that nothing does.
    let seen = page.eval(&format!(
        "import('/assets/pressure.js').then((view) => (view.pressure.update({told}), document.getElementById('view-pressure').innerText))"
    ));
    let seen = seen.as_str().unwrap();
    for text in [
        "gradient2",
        "37 of 5 to 200",
        "12 ms",
        "9.8 ms",
        "pressure 42 %",
        "down to sheddable plus",
        "critical plus",
        "123K",
        "1,234 came after their deadline",
    ] {
        assert!(seen.contains(text), "{text} is not in {seen}");
    }
    page.no_complaints();
}

/// Whoever sends requests chooses their keys.
#[test]
fn what_strangers_write_is_shown_as_text() {
    let evil = "<img src=x onerror=alert(1)>";
    let server = serve("");
    while ask(&server, "203.0.113.7", evil, "/api/x") {}
    let mut page = open(&server, "keys");
    page.until_text("#heaviest li", evil);
    page.until_text("#most-denied li", evil);
    page.click("nav a[href='#try']");
    page.fill("#try-fields [data-name=user]", evil);
    page.fill("#try-fields [data-name=path]", "/api/x");
    page.click("#try button[type=submit]");
    page.until_text("#try-told", evil);
    assert_eq!(
        page.eval("document.querySelectorAll('main img, dialog img').length"),
        json!(0)
    );
    page.no_complaints();
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
        ("tag well".into(), "tag denied".into())
    );
    page.no_complaints();
}
