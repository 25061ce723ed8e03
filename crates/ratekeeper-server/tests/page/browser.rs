//! A real Chromium without a window, told what to do over its DevTools protocol. What it needs of
//! that is little enough that the WebSocket client of the other tests will do.

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

/// Far longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One browser at a time: they are large.
static TURN: Mutex<()> = Mutex::new(());

/// A browser with one page in it. Ended when dropped.
pub(crate) struct Browser {
    child: Child,
    profile: PathBuf,
    runtime: Runtime,
    socket: WebSocketStream<TcpStream>,
    session: String,
    next: u64,
    /// What went wrong in the page, as the browser told it.
    complaints: Vec<String>,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
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
        // Its sandbox wants another user than root, and tests in containers often are root.
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
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = said.by_ref().map_while(Result::ok).find_map(|line| {
            line.strip_prefix("DevTools listening on ")
                .map(str::to_owned)
        });
        let url = url.expect("chromium ended before it listened");
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
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
            complaints: Vec::new(),
            _turn: turn,
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

    /// Asks for something and waits for the answer; what is told meanwhile is kept if it is a
    /// complaint.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let (id, mut message) = (
            self.next,
            json!({"id": self.next, "method": method, "params": params}),
        );
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let Self {
            runtime,
            socket,
            complaints,
            ..
        } = self;
        let asked = async {
            socket
                .send(Message::text(message.to_string()))
                .await
                .unwrap();
            loop {
                let said = socket.next().await.expect("chromium ended").unwrap();
                let Ok(said) = serde_json::from_str::<Value>(said.to_text().unwrap_or_default())
                else {
                    continue;
                };
                if said["id"] == json!(id) {
                    return said;
                }
                complaints.extend(complaint(&said));
            }
        };
        let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, asked).await });
        let answer = answer.unwrap_or_else(|_| panic!("{method} was not answered"));
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// What the system of whoever looks at the page prefers.
    pub(crate) fn prefers(&mut self, wishes: &[(&str, &str)]) {
        let wish = |(name, value): &(&str, &str)| json!({"name": format!("prefers-{name}"), "value": value});
        let features: Vec<_> = wishes.iter().map(wish).collect();
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    #[track_caller]
    pub(crate) fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
    }

    /// What an expression is in the page.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", asked);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression holds.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let guarded =
            format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        eventually(expression, || self.eval(&guarded) == json!(true));
    }

    /// What is written there, as whoever sees the page reads it.
    #[track_caller]
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let found = self.eval(&format!(
            "document.querySelector({})?.innerText ?? null",
            json!(selector)
        ));
        found
            .as_str()
            .unwrap_or_else(|| panic!("there is no {selector}"))
            .to_owned()
    }

    /// Waits until something with such a text is there.
    #[track_caller]
    pub(crate) fn until_text(&mut self, selector: &str, text: &str) {
        let (selector, text) = (json!(selector), json!(text));
        self.until(&format!(
            "[...document.querySelectorAll({selector})].some((e) => e.innerText.includes({text}))"
        ));
    }

    /// Where the middle of something is that can be seen there.
    #[track_caller]
    pub(crate) fn middle(&mut self, selector: &str) -> (f64, f64) {
        let place = format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null;
              e.scrollIntoView({{block: 'center', behavior: 'instant'}}); const b = e.getBoundingClientRect();
              const x = b.left + b.width / 2, y = b.top + b.height / 2, hit = document.elementFromPoint(x, y);
              return hit && (e.contains(hit) || hit.contains(e)) ? [x, y] : null }})()",
            json!(selector)
        );
        let mut found = Value::Null;
        eventually(&format!("{selector} can be clicked"), || {
            found = self.eval(&place);
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

    /// Puts a text in the place of what is in a field.
    #[track_caller]
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        self.click(selector);
        self.eval("document.activeElement.select()");
        self.write(text);
    }

    /// Writes where the focus is.
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
            _ => panic!("no test has pressed {key} yet"),
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

    /// Goes on with Tab until what an expression says of the element with the focus holds.
    #[track_caller]
    pub(crate) fn tab_to(&mut self, is_it: &str) {
        for _ in 0..60 {
            self.press("Tab");
            if self.eval(&format!("((e) => !!({is_it}))(document.activeElement)")) == json!(true) {
                return;
            }
        }
        panic!("Tab does not lead to where {is_it}");
    }

    /// A picture of what is seen.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        use base64::Engine;
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        base64::engine::general_purpose::STANDARD
            .decode(answer["data"].as_str().unwrap())
            .unwrap()
    }

    /// Fails if the browser found anything to complain of, but for answers that a test asked for.
    #[track_caller]
    pub(crate) fn no_complaints_but(&mut self, expected: &str) {
        // What was said last may still be on its way.
        self.eval("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))");
        let others: Vec<_> = self
            .complaints
            .iter()
            .filter(|text| expected.is_empty() || !text.contains(expected))
            .collect();
        assert!(others.is_empty(), "{others:#?}");
    }

    #[track_caller]
    pub(crate) fn no_complaints(&mut self) {
        self.no_complaints_but("");
    }
}

/// An error in the console, an exception, something that the page's policy forbade.
fn complaint(said: &Value) -> Option<String> {
    let params = &said["params"];
    let is_wrong = match said["method"].as_str()? {
        "Runtime.exceptionThrown" | "Audits.issueAdded" | "Page.javascriptDialogOpening" => true,
        "Runtime.consoleAPICalled" => matches!(
            params["type"].as_str(),
            Some("error" | "warning" | "assert")
        ),
        "Log.entryAdded" => matches!(params["entry"]["level"].as_str(), Some("error" | "warning")),
        _ => false,
    };
    is_wrong.then(|| params.to_string())
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its helpers end by themselves and may still write.
        let _ = fs::remove_dir_all(&self.profile);
    }
}
