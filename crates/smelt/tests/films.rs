//! Films as `smelt serve` is shown them, read by a confined `ffmpeg`; where that is missing, nothing is tested, and it is said.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use crate::world::server::{BUILT, Server, base64};
use crate::world::{data, until};
use serde_json::{Value, json};

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

/// A stream of 5 s at 10 frames a second as encoders write it, each picture behind a mark.
fn stream(folder: &Path, name: &str) -> Vec<u8> {
    let path = folder.join(name);
    let codec = if name.contains("265") { "hevc" } else { "h264" };
    let format = if name.ends_with("mkv") { "matroska" } else { codec };
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-nostdin", "-y", "-f", "lavfi"]);
    ffmpeg.args(["-i", "testsrc=size=640x480:rate=10:duration=5"]);
    ffmpeg.args(["-c:v", if codec == "hevc" { "libx265" } else { "libx264" }]);
    if codec == "hevc" {
        ffmpeg.args(["-x265-params", "log-level=none:bframes=0"]);
    }
    ffmpeg.args([
        "-preset",
        "ultrafast",
        "-tune",
        "zerolatency",
        "-g",
        "20",
        "-pix_fmt",
        "yuv420p",
    ]);
    ffmpeg.args(["-bsf:v", &format!("{codec}_metadata=aud=insert"), "-f", format]).arg(&path);
    assert!(ffmpeg.status().unwrap().success());
    fs::read(path).unwrap()
}

/// The NAL units of a stream.
fn nals(stream: &[u8]) -> Vec<&[u8]> {
    let starts: Vec<_> = stream.windows(3).enumerate().filter(|(_, at)| at == &[0, 0, 1]).collect();
    let starts: Vec<_> = starts.iter().map(|(at, _)| at + 3).collect();
    let ends = starts.iter().skip(1).map(|next| next - 3).chain([stream.len()]);
    let cut = |(from, to): (&usize, usize)| {
        let nal = &stream[*from..to];
        &nal[..nal.len() - nal.iter().rev().take_while(|byte| **byte == 0).count()]
    };
    starts.iter().zip(ends).map(cut).collect()
}

/// What a packet holds of a NAL unit, which goes in parts where it is long.
fn parts(nal: &[u8], is_265: bool) -> Vec<Vec<u8>> {
    if nal.len() <= 1400 {
        return vec![nal.to_vec()];
    }
    let header = if is_265 { 2 } else { 1 };
    let (kind, first) = match is_265 {
        true => (nal[0] >> 1 & 0x3f, vec![nal[0] & 0x81 | 49 << 1, nal[1]]),
        false => (nal[0] & 0x1f, vec![nal[0] & 0xe0 | 28]),
    };
    let parts: Vec<_> = nal[header..].chunks(1400).collect();
    let part = |(at, part): (usize, &&[u8])| {
        let begins = if at == 0 { 0x80 } else { 0 };
        let ends = if at + 1 == parts.len() { 0x40 } else { 0 };
        [&first[..], &[begins | ends | kind], part].concat()
    };
    parts.iter().enumerate().map(part).collect()
}

/// A camera that shows `stream` to everybody who asks, and tells what each asked; `asks` says whether it asks who they are.
fn camera(stream: Vec<u8>, is_265: bool, asks: bool) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = BufReader::new(client.unwrap());
            while let Some(question) = question(&mut client) {
                answer(client.get_mut(), &question, is_265, asks);
                if question.starts_with("PLAY") {
                    show(client.get_mut(), &stream, is_265);
                }
                _ = sender.send(question);
            }
        }
    });
    (at, asked)
}

fn question(client: &mut BufReader<TcpStream>) -> Option<String> {
    let mut question = String::new();
    while !question.ends_with("\r\n\r\n") {
        if client.read_line(&mut question).ok()? == 0 {
            return None;
        }
    }
    Some(question)
}

fn answer(client: &mut TcpStream, question: &str, is_265: bool, asks: bool) {
    let number = question.lines().find_map(|line| line.strip_prefix("CSeq: ")).unwrap();
    let name = if is_265 { "H265" } else { "H264" };
    let sdp =
        format!("v=0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 {name}/90000\r\na=control:t1\r\n");
    let (status, headers, body) = match question.split(' ').next() {
        // "me:right" in base64.
        _ if asks && !question.contains("Authorization: Basic bWU6cmlnaHQ=\r\n") => {
            ("401 Unauthorized", "WWW-Authenticate: Basic realm=\"cam\"\r\n", "")
        }
        Some("DESCRIBE") => ("200 OK", "", &sdp[..]),
        Some("SETUP") => ("200 OK", "Session: 1\r\nTransport: RTP/AVP/TCP;interleaved=0-1\r\n", ""),
        _ => ("200 OK", "", ""),
    };
    let length = body.len();
    let text = format!(
        "RTSP/1.0 {status}\r\nCSeq: {number}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    _ = client.write_all(text.as_bytes());
}

/// Sends a stream's pictures, all at once, and says goodbye.
fn show(client: &mut TcpStream, stream: &[u8], is_265: bool) {
    let (mut number, mut time) = (0_u16, 0_u32.wrapping_sub(9000));
    for nal in nals(stream) {
        let is_mark = if is_265 { nal[0] >> 1 == 35 } else { nal[0] & 0x1f == 9 };
        time = time.wrapping_add(if is_mark { 9000 } else { 0 });
        for part in parts(nal, is_265) {
            let head =
                [&[0x80, 96][..], &number.to_be_bytes(), &time.to_be_bytes(), &[0; 4]].concat();
            let length = ((head.len() + part.len()) as u16).to_be_bytes();
            _ = client.write_all(&[&[b'$', 0], &length[..], &head, &part].concat());
            number = number.wrapping_add(1);
        }
    }
    _ = client.write_all(&[b'$', 1, 0, 8, 0x81, 203, 0, 1, 0, 0, 0, 0]);
}

fn of_camera(url: &str, more: &Value) -> Value {
    let mut part = json!({ "type": "video_url", "video_url": { "url": url } });
    part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let content = json!([part, { "type": "text", "text": "What is this?" }]);
    json!({ "messages": [{ "role": "user", "content": content }], "temperature": 0, "max_tokens": 2 })
}

const REACH: [&str; 4] = ["--allow-remote-images", "--allow-private-images", "--max-frames", "6"];

/// Tokens of what is shown.
#[track_caller]
fn image_tokens(server: &Server, body: Value) -> u64 {
    let answer = server.chat(body);
    let usage = &answer.json()["usage"]["prompt_tokens_details"];
    usage["image_tokens"].as_u64().unwrap_or_else(|| panic!("{}", answer.body))
}

#[test]
fn cameras_are_shown_as_films_are() {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = Command::new("sh");
    command.args(["-c", "log=$1; shift; exec \"$0\" \"$@\" 2>\"$log\"", SMELT]).arg(&log);
    command.args(Server::arguments(&["p.toml"], &REACH));
    BUILT.prepare(&mut command);
    let server = Server::started(&mut command);
    assert!(until(|| server.get("/health").status == 200));
    for name in ["film.264", "film.265"] {
        let is_265 = name.ends_with("265");
        let (at, asked) = camera(stream(folder.path(), name), is_265, true);
        let url = format!("rtsp://me:right@{at}/live");
        let one = image_tokens(&server, of_camera(&url, &json!({ "nframes": 1 })));
        assert_eq!(image_tokens(&server, of_camera(&url, &json!({}))), 6 * one, "{name}");
        // Of the first 4 s, as of a film that lasts so long.
        assert_eq!(image_tokens(&server, of_camera(&url, &json!({ "fps": 1 }))), 4 * one, "{name}");
        assert!(asked.try_iter().any(|question| question.starts_with("TEARDOWN")));
        let wrong = server.chat(of_camera(&url.replace("right", "secret"), &json!({})));
        let error = &wrong.json()["error"];
        assert_eq!(
            (wrong.status, &error["param"]),
            (400, &json!("messages[0].content[0].video_url.url"))
        );
        let says = error["message"].as_str().unwrap();
        assert!(says.contains("the camera refuses this user and password"), "{says}");
        assert!(!wrong.body.contains("secret") && !wrong.body.contains("me:"), "{}", wrong.body);
    }
    let content = json!([{ "type": "image_url", "image_url": { "url": "rtsp://me:secret@cam/" } }]);
    let still = server.chat(json!({ "messages": [{ "role": "user", "content": content }] }));
    assert_eq!(still.status, 400);
    assert!(still.body.contains("send its address as a video_url"), "{}", still.body);
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("400") && log.contains("the camera refuses"), "{log}");
    assert!(
        !log.contains("secret") && !log.contains("right@") && !log.contains("rtsp://me"),
        "{log}"
    );
}

#[test]
fn cameras_need_leave() {
    let (at, asked) = camera(Vec::new(), false, false);
    let body = of_camera(&format!("rtsp://me:secret@{at}/live"), &json!({}));
    for (flags, says) in
        [(&[][..], "--allow-remote-images"), (&REACH[..1], "not of the public internet")]
    {
        let answer = Server::start(flags).chat(body.clone());
        assert_eq!(answer.status, 400, "{}", answer.body);
        assert!(answer.body.contains(says) && !answer.body.contains("secret"), "{}", answer.body);
    }
    assert!(asked.try_recv().is_err(), "nobody came");
}

/// Another's server, which ends with this.
struct Live(Child);

impl Drop for Live {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Fails where what `camera.py` needs is missing.
const CAMERA_PARTS: &str = "
import gi
gi.require_version('Gst', '1.0')
gi.require_version('GstRtspServer', '1.0')
from gi.repository import Gst, GstRtspServer
Gst.init()
assert Gst.ElementFactory.find('rtph264pay')";

#[test]
fn a_server_of_others_is_recorded() {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["264.mkv", "265.mkv"] {
        stream(folder.path(), name);
    }
    // Debian's own, since others lack its packages.
    let python = || Command::new("/usr/bin/python3");
    let proof = python().args(["-c", CAMERA_PARTS]).stderr(Stdio::null()).status();
    if !proof.is_ok_and(|status| status.success()) {
        eprintln!(
            "not run: no python3-gi, gir1.2-gst-rtsp-server-1.0 or gstreamer1.0-plugins-good here"
        );
        return;
    }
    let mut live = python();
    live.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/camera.py")).arg(folder.path());
    let live = live.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut live = Live(live.unwrap());
    let mut port = String::new();
    BufReader::new(live.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    assert!(!port.is_empty(), "the camera has ended");
    let server = Server::start(&REACH);
    for name in ["264", "265"] {
        let url = format!("rtsp://me:right@127.0.0.1:{}/{name}", port.trim());
        let one = image_tokens(&server, of_camera(&url, &json!({ "nframes": 1 })));
        assert_eq!(image_tokens(&server, of_camera(&url, &json!({}))), 6 * one, "{name}");
        let wrong = server.chat(of_camera(&url.replace("right", "wrong"), &json!({})));
        assert!(wrong.body.contains("refuses this user and password"), "{}", wrong.body);
    }
}
