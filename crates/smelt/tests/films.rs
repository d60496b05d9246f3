//! Films as `smelt serve` is shown them, read by a confined `ffmpeg`; where that is missing, nothing is tested, and it is said.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod world;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use world::server::{BUILT, Server, base64};
use world::{data, until};

const SMELT: &str = env!("CARGO_BIN_EXE_smelt");

fn has_ffmpeg() -> bool {
    let has = Command::new("ffmpeg").arg("-version").output().is_ok();
    if !has {
        println!("not run: no ffmpeg here");
    }
    has
}

/// A film of so many seconds at 10 frames a second, its index behind its pictures.
fn film(folder: &Path, size: &str, seconds: u32) -> Vec<u8> {
    let path = folder.join("film.mp4");
    let source = format!("testsrc=size={size}:rate=10:duration={seconds}");
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-nostdin", "-y", "-f", "lavfi", "-i", &source]);
    ffmpeg.args(["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"]).arg(&path);
    assert!(ffmpeg.status().unwrap().success());
    fs::read(path).unwrap()
}

fn shown(bytes: &[u8], more: &Value) -> Value {
    let url = format!("data:video/mp4;base64,{}", base64(bytes));
    let mut part = json!({ "type": "video_url", "video_url": { "url": url } });
    part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let content = json!([part, { "type": "text", "text": "What is this?" }]);
    json!({ "messages": [{ "role": "user", "content": content }], "temperature": 0, "max_tokens": 2 })
}

#[test]
fn films_are_shown_frame_by_frame() {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&["--max-frames", "6"]);
    let bytes = film(folder.path(), "640x480", 4);
    let tokens = |more: Value| {
        let answer = server.chat(shown(&bytes, &more));
        let usage = &answer.json()["usage"]["prompt_tokens_details"];
        usage["image_tokens"].as_u64().unwrap_or_else(|| panic!("{}", answer.body))
    };
    let one = tokens(json!({ "nframes": 1 }));
    assert_eq!(tokens(json!({})), 6 * one);
    assert_eq!(tokens(json!({ "fps": 1 })), 4 * one);
    // What a film takes is counted before anything is answered, as it is then.
    let answer = server.chat(shown(&bytes, &json!({ "fps": 1 })));
    let counted =
        server.post("/tokenize", shown(&bytes, &json!({ "fps": 1 })).to_string().as_bytes());
    assert_eq!(
        counted.json()["count"],
        answer.json()["usage"]["prompt_tokens"],
        "{}",
        counted.body
    );
    // `chat` looks at the same frames, and is answered the same.
    let said = answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let path = folder.path().join("film.mp4");
    let path = path.to_str().unwrap();
    let flags = ["--max-frames", "6", "--fps", "1", "--max-tokens", "2"];
    let asked = [&["chat", "p.toml", "--video", path][..], &flags, &["What is this?"]].concat();
    let chat = BUILT.smelt(&asked);
    assert_eq!((chat.code, chat.stdout.trim()), (Some(0), said.trim()), "{}", chat.stderr);
    assert!(chat.stderr.contains("(4 tiles)"), "{}", chat.stderr);
    let none = data("shapes-1.png");
    let none = BUILT.smelt(&["chat", "p.toml", "--video", none.to_str().unwrap(), "What?"]);
    assert_eq!(none.code, Some(4), "{}", none.stderr);
    assert!(none.stderr.contains("shapes-1.png: it is no film"), "{}", none.stderr);
    let refused = |bytes: &[u8], says: &str| {
        let answer = server.chat(shown(bytes, &json!({})));
        let error = &answer.json()["error"];
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert_eq!(error["param"], "messages[0].content[0].video_url.url");
        assert!(error["message"].as_str().unwrap().contains(says), "{}", answer.body);
    };
    refused(&bytes[..1000], "nothing that can be read");
    refused(b"#EXTM3U\nfile:///etc/passwd\n", "MP4, QuickTime, WebM or Matroska");
    let is_left = || {
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .any(|entry| is_child(&entry.path(), server.child.id()))
    };
    assert!(until(|| !is_left()), "no ffmpeg is left");
}

/// Whether a process is `ffmpeg`, of this server.
fn is_child(process: &Path, server: u32) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
    stat.contains("(ffmpeg)") && parent == Some(server)
}

/// What a confined `ffmpeg` says that is told so.
fn confined(words: &str, path: Option<&Path>) -> Output {
    let mut command = Command::new(SMELT);
    command.args(["stage", "film", "--", "-v", "error", "-nostdin"]).args(words.split(' '));
    if let Some(path) = path {
        command.env("PATH", path);
    }
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_reader_of_films_reaches_nothing() {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    film(folder.path(), "64x48", 1);
    let here = folder.path().display();
    let works = confined("-f lavfi -i testsrc=size=64x48:duration=1 -f framecrc pipe:1", None);
    let said = String::from_utf8_lossy(&works.stderr);
    assert!(works.status.success() && works.stdout.len() > 100, "{said}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    for words in [
        format!("-i {here}/film.mp4 -f null -"),
        "-f lavfi -i movie=/etc/passwd -f null -".to_owned(),
        "-f data -i /etc/passwd -f data pipe:1".to_owned(),
        format!("-f lavfi -i testsrc=duration=1 -f rawvideo {here}/new"),
        format!("-i http://{at}/a.mp4 -f null -"),
        format!("-rtsp_transport tcp -i rtsp://{at}/a -f null -"),
    ] {
        let output = confined(&words, None);
        assert!(!output.status.success(), "{words}");
        assert!(output.stdout.is_empty(), "{words}");
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(
            said.contains("permission denied")
                || said.contains("read-only")
                || said.contains("no such"),
            "{words}: {said}"
        );
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "nobody came");
    assert!(!folder.path().join("new").exists());
    assert_eq!(confined("-version", Some(folder.path())).status.code(), Some(127));
}
