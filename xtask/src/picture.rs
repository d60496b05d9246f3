//! Makes the picture of the README: the web page of a running server, answering a question about the demo's picture.
//!
//! Everything in it is real: the demo is built and served, and headless Chromium asks as a person would.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::server::{Server, http_get};
use crate::tidy::build_smelt;
use crate::{debian, root, target};

/// Where the picture belongs.
const OUT: &str = "docs/page.png";

/// Width and height of the window.
const WINDOW: &str = "1100,620";

/// What a person does on the page.
const ASK: &str = r#"
    const bytes = await (await fetch("PICTURE")).blob();
    await show(new File([bytes], "shapes.png", { type: "image/png" }));
    at("question").value = "What is left of the red circle?";
    at("form").requestSubmit();
    while (!at("ask").disabled) await new Promise(done => setTimeout(done, 5));
    while (at("ask").disabled) await new Promise(done => setTimeout(done, 5));
    await look();
    document.body.dataset.answer = at("answer").textContent;
"#;

pub(crate) fn run() -> Result<()> {
    debian::need("chromium", || debian::runs("chromium", "--version"))?;
    let smelt = build_smelt()?;
    let folder = target().join("picture");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let command = || {
        let mut command = Command::new(&smelt);
        command.current_dir(root()).env("SMELT_CACHE", folder.join("cache"));
        command
    };
    let built = command().args(["run", "pipelines/demo.toml"]).status()?;
    ensure!(built.success(), "the demo's run ended with {built}");
    let arguments = ["serve", "pipelines/demo.toml", "--addr", "127.0.0.1:PORT"];
    let arguments = [&arguments[..], &["--cors-origin", "*"]].concat();
    let server = Server::start(&mut command(), &arguments, &folder.join("log"))?;
    let page = folder.join("page.html");
    fs::write(&page, asking(&server)?)?;
    let dom = photograph(&page, &folder.join("browser"))?;
    ensure!(dom.contains("data-answer=\"a blue circle\""), "the page has no answer: {dom}");
    println!("{OUT}: the page with its answer");
    Ok(())
}

/// The page with a script more, as a page of another origin.
fn asking(server: &Server) -> Result<String> {
    let response = http_get(server.port(), "/").context("the page")?;
    let (_, page) = response.split_once("\r\n\r\n").context("the page has no body")?;
    let shown = root().join("tests/data/shapes-1.png");
    let ask = ASK.replace("PICTURE", &format!("file://{}", shown.display()));
    let page = page.replace("<head>", &format!("<head><base href=\"{}/\">", server.url()));
    Ok(page.replace("</body>", &format!("<script>(async () => {{ {ask} }})()</script></body>")))
}

/// What the page became, and its picture in [`OUT`].
fn photograph(page: &Path, profile: &Path) -> Result<String> {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--hide-scrollbars", "--virtual-time-budget=20000", "--dump-dom"])
        .args(["--allow-file-access-from-files", &format!("--window-size={WINDOW}")])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--screenshot={}", root().join(OUT).display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .context("cannot start chromium")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
