//! Runs a headless Chromium, and speaks the DevTools protocol with it through a pipe. The messages
//! are JSON, and each ends with a NUL.

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Looks for mistakes in the layout of a page.
const CHECK: &str = include_str!("check.js");

/// A browser with a profile of its own. Dropping this ends the browser and deletes the profile.
pub struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    last_id: u64,
    /// The events since the page was opened: their methods and parameters.
    events: Vec<(String, Value)>,
    session: Value,
    _profile: tempfile::TempDir,
}

/// What the check found in a page, at one size and in one colour scheme.
#[derive(Debug)]
pub struct Seen {
    /// The mistakes, in words; empty if there are none.
    pub problems: Vec<String>,
    /// The titles of the visible plots.
    pub plots: Vec<String>,
    /// The background colour of the page.
    pub background: String,
    /// The addresses that the page requested.
    pub requests: Vec<String>,
}

/// The size, the colour scheme and the medium that a page is shown in.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub width: u32,
    /// `light` or `dark`.
    pub scheme: &'static str,
    /// `screen` or `print`.
    pub medium: &'static str,
}

impl Browser {
    /// Starts the browser. `None` if Chromium is not installed.
    pub fn start() -> Option<Self> {
        let there = |name: &&&str| {
            let found = Command::new(name)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            found.is_ok_and(|status| status.success())
        };
        let name = ["chromium", "chromium-browser"].iter().find(there)?;
        let profile = tempfile::tempdir().unwrap();
        // The browser reads from descriptor 3 and writes to descriptor 4. It ends when descriptor 3
        // is closed. `timeout` ends a browser that hangs.
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", "300", "sh", "-c"])
            .args(["exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2", name])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().unwrap());
        let (events, session) = (Vec::new(), Value::Null);
        let mut browser = Self { child, to, from, last_id: 0, events, session, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
        for domain in ["Page", "Network", "Runtime"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Opens a page and checks it.
    pub fn look(&mut self, page: &Path, view: View) -> Seen {
        let View { width, scheme, medium } = view;
        let metrics =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "media": medium, "features": features }));
        self.events.clear();
        self.call("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        while !self.events.iter().any(|(method, _)| method == "Page.loadEventFired") {
            let message = self.receive();
            self.note(&message);
        }
        let evaluate = json!({ "expression": CHECK, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", evaluate);
        let found = &answer["result"]["value"];
        assert!(found.is_object(), "the check has failed: {answer}");
        let texts = |name: &str| -> Vec<String> {
            let list = found[name].as_array().unwrap().iter();
            list.map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        let sent = self.events.iter().filter(|(method, _)| method == "Network.requestWillBeSent");
        Seen {
            problems: texts("problems"),
            plots: texts("plots"),
            background: found["background"].as_str().unwrap().to_owned(),
            requests: sent
                .map(|(_, event)| event["request"]["url"].as_str().unwrap().to_owned())
                .collect(),
        }
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        let to = self.to.as_mut().unwrap();
        to.write_all(format!("{message}\0").as_bytes()).unwrap();
        to.flush().unwrap();
        loop {
            let answer = self.receive();
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, message: &Value) {
        if let Some(method) = message["method"].as_str() {
            self.events.push((method.to_owned(), message["params"].clone()));
        }
    }

    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&message).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Once its pipe is closed, the browser ends, and ends its child processes.
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
