//! Looks at a page in a real browser, headless Chromium, for tests.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use std::fs;
use std::path::Path;
use std::process::Command;

use image::RgbImage;
use serde_json::Value;

/// What a browser made of a page.
pub(super) struct RenderedPage {
    /// What the measuring script said.
    pub(super) facts: Value,
    /// What the browser's console said.
    pub(super) console: Vec<String>,
    pub(super) picture: RgbImage,
}

/// How large the window is, and whether its user likes the dark.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) is_dark: bool,
}

/// Opens `page` and then asks `script`, the body of a function, for what it measured.
pub(super) fn look(page: &str, window: Window, script: &str) -> RenderedPage {
    let dir = tempfile::tempdir().unwrap();
    let asking = format!(
        "<script>document.body.dataset.facts = JSON.stringify((() => {{ {script} }})())</script></body>"
    );
    let [plain, asked, picture] =
        ["plain.html", "asked.html", "page.png"].map(|name| dir.path().join(name));
    fs::write(&plain, page).unwrap();
    fs::write(&asked, page.replace("</body>", &asking)).unwrap();
    let (_, console) =
        chromium(dir.path(), window, &format!("--screenshot={}", picture.display()), &plain);
    let (dom, _) = chromium(dir.path(), window, "--dump-dom", &asked);
    let facts = dom.split("data-facts=\"").nth(1).and_then(|rest| rest.split('"').next());
    let facts = facts.expect("the script ran").replace("&quot;", "\"");
    RenderedPage {
        facts: serde_json::from_str(&facts).unwrap(),
        console,
        picture: image::open(&picture).unwrap().into_rgb8(),
    }
}

/// The browser's standard output, and the lines of its console.
fn chromium(dir: &Path, window: Window, what: &str, page: &Path) -> (String, Vec<String>) {
    let Window { width, height, is_dark } = window;
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--hide-scrollbars", "--force-device-scale-factor=1", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .arg(format!("--window-size={width},{height}"))
        .args(is_dark.then_some("--force-dark-mode"))
        .arg(what)
        .arg(format!("file://{}", page.display()));
    let output = command.output().expect("these tests need chromium; it is a Debian package");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let console = String::from_utf8_lossy(&output.stderr);
    let console = console.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned);
    (String::from_utf8_lossy(&output.stdout).into_owned(), console.collect())
}
