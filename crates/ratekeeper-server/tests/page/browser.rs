//! A headless Chromium, controlled over the DevTools protocol with the WebSocket client of the
//! other tests.

use crate::support::eventually;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

/// Far longer than any response takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One browser at a time, because they are large.
static BROWSER_LOCK: Mutex<()> = Mutex::new(());

/// A browser with one page. Killed when dropped.
pub(crate) struct Browser {
    child: Child,
    profile: PathBuf,
    runtime: Runtime,
    socket: WebSocketStream<TcpStream>,
    session: String,
    next: u64,
    /// Problems in the page that the browser reported.
    problems: Vec<String>,
    _lock: MutexGuard<'static, ()>,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let lock = BROWSER_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = crate::support::directory(&[]);
        let mut command = Command::new("chromium");
        command.args([
            "--headless=new",
            "--remote-debugging-port=0",
            "--no-first-run",
            "--disable-gpu",
        ]);
        command.args([
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
        ]);
        // Its sandbox does not run as root, and tests in containers often do.
        command.args(["--no-sandbox", "--lang=en-GB", "--font-render-hinting=none"]);
        command
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("chromium, which opens the page, cannot be started: `make tools` installs it");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines.by_ref().map_while(Result::ok).find_map(|line| {
            line.strip_prefix("DevTools listening on ")
                .map(str::to_owned)
        });
        let url = url.expect("chromium ended before it listened");
        // Further output must not fill the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let address = url
            .trim_start_matches("ws://")
            .split('/')
            .next()
            .unwrap()
            .to_owned();
        let socket = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.unwrap();
            client_async(url, stream).await.unwrap().0
        });
        let mut browser = Self {
            child,
            profile,
            runtime,
            socket,
            session: String::new(),
            next: 0,
            problems: Vec::new(),
            _lock: lock,
        };
        let target =
            browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target, "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log", "Audits", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1280, 900);
        browser
    }

    /// Calls a method and waits for the response. Problems reported meanwhile are collected.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let Self {
            runtime,
            socket,
            problems,
            ..
        } = self;
        let exchange = async {
            socket
                .send(Message::text(message.to_string()))
                .await
                .unwrap();
            loop {
                let event = socket.next().await.expect("chromium ended").unwrap();
                let Ok(event) = serde_json::from_str::<Value>(event.to_text().unwrap_or_default())
                else {
                    continue;
                };
                if event["id"] == json!(id) {
                    return event;
                }
                problems.extend(problem(&event));
            }
        };
        let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, exchange).await });
        let answer = answer.unwrap_or_else(|_| panic!("{method} got no response"));
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Emulates preferences of the user's system.
    pub(crate) fn prefers(&mut self, preferences: &[(&str, &str)]) {
        let feature = |(name, value): &(&str, &str)| json!({"name": format!("prefers-{name}"), "value": value});
        let features: Vec<_> = preferences.iter().map(feature).collect();
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    #[track_caller]
    pub(crate) fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
    }

    /// Evaluates an expression in the page.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let guarded =
            format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        eventually(expression, || self.eval(&guarded) == json!(true));
    }

    /// The visible text of an element.
    #[track_caller]
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let found = self.eval(&format!(
            "document.querySelector({})?.innerText ?? null",
            json!(selector)
        ));
        found
            .as_str()
            .unwrap_or_else(|| panic!("no element {selector}"))
            .to_owned()
    }

    /// Waits until an element contains a text.
    #[track_caller]
    pub(crate) fn until_text(&mut self, selector: &str, text: &str) {
        let (selector, text) = (json!(selector), json!(text));
        self.until(&format!(
            "[...document.querySelectorAll({selector})].some((e) => e.innerText.includes({text}))"
        ));
    }

    /// The centre of an element, once it is visible there.
    #[track_caller]
    pub(crate) fn middle(&mut self, selector: &str) -> (f64, f64) {
        let expression = format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null;
              e.scrollIntoView({{block: 'center', behavior: 'instant'}}); const b = e.getBoundingClientRect();
              const x = b.left + b.width / 2, y = b.top + b.height / 2, hit = document.elementFromPoint(x, y);
              return hit && (e.contains(hit) || hit.contains(e)) ? [x, y] : null }})()",
            json!(selector)
        );
        let mut found = Value::Null;
        eventually(&format!("{selector} can be clicked"), || {
            found = self.eval(&expression);
            !found.is_null()
        });
        (found[0].as_f64().unwrap(), found[1].as_f64().unwrap())
    }

    pub(crate) fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let buttons = u8::from(kind != "mouseReleased");
        let event = json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1});
        self.call("Input.dispatchMouseEvent", event);
    }

    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        let (x, y) = self.middle(selector);
        self.mouse("mousePressed", x, y);
        self.mouse("mouseReleased", x, y);
    }

    /// Replaces the text of a field.
    #[track_caller]
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        self.click(selector);
        self.eval("document.activeElement.select()");
        self.write(text);
    }

    /// Types into the focused element.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses a key: `Tab`, `Enter`, `ArrowUp` and so on.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Escape" => (27, ""),
            "Home" => (36, ""),
            "ArrowLeft" => (37, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            _ => panic!("unknown key {key}"),
        };
        let event = |kind: &str| json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
        let mut down = event(if text.is_empty() {
            "rawKeyDown"
        } else {
            "keyDown"
        });
        if !text.is_empty() {
            down["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", event("keyUp"));
    }

    /// Presses Tab until an expression about the focused element `e` is true.
    #[track_caller]
    pub(crate) fn tab_to(&mut self, is_it: &str) {
        for _ in 0..60 {
            self.press("Tab");
            if self.eval(&format!("((e) => !!({is_it}))(document.activeElement)")) == json!(true) {
                return;
            }
        }
        panic!("Tab does not reach {is_it}");
    }

    /// A screenshot of the page.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        use base64::Engine;
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        base64::engine::general_purpose::STANDARD
            .decode(answer["data"].as_str().unwrap())
            .unwrap()
    }

    /// Fails if the browser reported problems other than the expected one.
    #[track_caller]
    pub(crate) fn no_problems_except(&mut self, expected: &str) {
        // The last events may still be on their way.
        self.eval("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))");
        let others: Vec<_> = self
            .problems
            .iter()
            .filter(|text| expected.is_empty() || !text.contains(expected))
            .collect();
        assert!(others.is_empty(), "{others:#?}");
    }

    #[track_caller]
    pub(crate) fn no_problems(&mut self) {
        self.no_problems_except("");
    }
}

/// The event if it is a console error, an exception, or a violation of the page's policy.
fn problem(event: &Value) -> Option<String> {
    let params = &event["params"];
    let is_problem = match event["method"].as_str()? {
        "Runtime.exceptionThrown" | "Audits.issueAdded" | "Page.javascriptDialogOpening" => true,
        "Runtime.consoleAPICalled" => matches!(
            params["type"].as_str(),
            Some("error" | "warning" | "assert")
        ),
        "Log.entryAdded" => matches!(params["entry"]["level"].as_str(), Some("error" | "warning")),
        _ => false,
    };
    is_problem.then(|| params.to_string())
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its helper processes end by themselves and may still write.
        let _ = fs::remove_dir_all(&self.profile);
    }
}
