//! Sends and fetches by a directory and by a registry in memory, which lies in every way that it can.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;
use smelt_store::bundle::{BundledKey, BundledOutput};
use smelt_store::{Digest, FileEntry, Manifest};
use tempfile::TempDir;

use super::artifact::{Artifact, SLICE_BYTES};
use super::auth::Credentials;
use super::delivery::Delivery;
use super::fetch::{FetchError, Fetched, Found, Offer, look, open};
use super::place::{Place, PlaceError};
use super::reference::Reference;
use super::registry::Access;
use super::send::{Sent, put_statement, put_tag, send};
use crate::dsse::Envelope;
use crate::trust::tests::{key, trusted};
use crate::trust::{Purpose, Trust, TrustedKey};

const NAME: &str = "fleet/demo:prod";

/// Two outputs, the second of which refers to the first.  One file has three slices, two are equal, one is empty.
fn outputs(root: &Path) -> Vec<(BundledOutput, PathBuf)> {
    let large: Vec<u8> = (0..2 * SLICE_BYTES + 1000).map(|at| (at / 97) as u8).collect();
    let output = |name: &str, files: &[(&str, &[u8])], refers: Vec<Digest>| {
        let folder = root.join(name);
        let entries = files.iter().map(|&(path, content)| {
            let file = folder.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content).unwrap();
            let (size, sha256) = (content.len() as u64, Digest::of(content));
            FileEntry { path: path.to_owned(), size, sha256, executable: path.ends_with(".sh") }
        });
        let files = Manifest::new(entries.collect()).unwrap();
        let keys = vec![BundledKey::new(Digest::of(name.as_bytes()), vec![], &json!({ "a": 1 }))];
        (BundledOutput { tree: files.digest(), files, refers, keys }, folder)
    };
    let first = output(
        "engine",
        &[("weights.bin", &large), ("a/b", b"x"), ("a/run.sh", b"x"), ("e", b"")],
        vec![],
    );
    let tree = first.0.tree;
    vec![first, output("deployment", &[("deployment.json", b"{}")], vec![tree])]
}

fn deliverer() -> Trust {
    let boss = TrustedKey { purposes: [Purpose::Delivery].into(), ..trusted("boss", 1) };
    Trust { keys: vec![boss], ..Trust::default() }
}

fn delivery(artifact: &Artifact, outputs: &[(BundledOutput, PathBuf)], version: u64) -> Delivery {
    Delivery {
        name: NAME.to_owned(),
        version,
        manifest: Digest::of(&artifact.manifest),
        outputs: outputs.iter().map(|(output, _)| output.tree).collect(),
        signed: 1_795_872_300,
        builder: "smelt 0.1.0".to_owned(),
    }
}

/// Pushes as version 1, signed by the first key.
fn push(place: &Place, outputs: &[(BundledOutput, PathBuf)]) -> Result<Sent, PlaceError> {
    let artifact = Artifact::of(outputs, &mut |_| {}).unwrap();
    let sent = send(place, &artifact, outputs, &mut |_| {})?;
    let payload = delivery(&artifact, outputs, 1).to_json().unwrap();
    put_statement(place, &artifact.manifest, &Envelope::sign(payload, &[&key(1)]).unwrap())?;
    put_tag(place, "prod", &artifact.manifest)?;
    Ok(sent)
}

fn found(place: &Place) -> Result<Found, FetchError> {
    look(place, ("prod", Some(NAME)), &deliverer(), (1, 10))
}

fn fetch(place: &Place, offer: &Offer, to: &Path) -> Result<Fetched, PlaceError> {
    let mut all = Fetched::default();
    for number in 0..offer.outputs.len() {
        let folder = to.join(number.to_string());
        fs::create_dir_all(&folder).unwrap();
        let some = offer.fetch(place, number, &folder, &mut |_| {})?;
        all = Fetched { bytes: all.bytes + some.bytes, kept: all.kept + some.kept };
    }
    Ok(all)
}

#[track_caller]
fn check_equal(outputs: &[(BundledOutput, PathBuf)], to: &Path) {
    for (number, (output, folder)) in outputs.iter().enumerate() {
        for entry in output.files.files() {
            let fetched = fs::read(to.join(number.to_string()).join(&entry.path)).unwrap();
            assert!(fetched == fs::read(folder.join(&entry.path)).unwrap(), "{}", entry.path);
        }
    }
}

fn place(reference: &str) -> Place {
    let reference: Reference = reference.parse().unwrap();
    Place::of(&reference, Access::default()).unwrap()
}

fn size(outputs: &[(BundledOutput, PathBuf)]) -> u64 {
    outputs.iter().map(|(output, _)| output.files.bytes()).sum()
}

#[test]
fn a_directory_carries_a_delivery() {
    let root = TempDir::new().unwrap();
    let (outputs, dir) = (outputs(root.path()), root.path().join("layout"));
    let place = place(&format!("oci:{}:prod", dir.display()));
    let sent = push(&place, &outputs).unwrap();
    // Of two equal files one goes.
    assert_eq!((sent.bytes, sent.sent), (size(&outputs), size(&outputs) - 1));
    assert_eq!(push(&place, &outputs).unwrap().sent, 0);
    let offer = open(&place, &found(&place).unwrap()).unwrap();
    let to = root.path().join("to");
    assert_eq!(fetch(&place, &offer, &to).unwrap(), Fetched { bytes: size(&outputs), kept: 0 });
    check_equal(&outputs, &to);
    assert_eq!(fetch(&place, &offer, &to).unwrap(), Fetched { bytes: 0, kept: size(&outputs) });
    // Whatever was left behind is gone on with, within a slice too; what is another's goes.
    let weights = to.join("0/weights.bin");
    fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(SLICE_BYTES + 7).unwrap();
    fs::create_dir(to.join("0/other")).unwrap();
    fs::write(to.join("0/other/file"), "x").unwrap();
    let again = fetch(&place, &offer, &to).unwrap();
    assert_eq!(again.bytes, SLICE_BYTES + 1000 - 7);
    assert_eq!(again.bytes + again.kept, size(&outputs));
    check_equal(&outputs, &to);
    assert!(!to.join("0/other").exists());
    // Other bytes there are fetched again.
    fs::write(&weights, vec![7; SLICE_BYTES as usize + 7]).unwrap();
    fetch(&place, &offer, &to).unwrap();
    check_equal(&outputs, &to);
}

#[test]
fn what_is_damaged_in_a_directory_is_refused() {
    let root = TempDir::new().unwrap();
    let (outputs, dir) = (outputs(root.path()), root.path().join("layout"));
    let layout = place(&format!("oci:{}:prod", dir.display()));
    push(&layout, &outputs).unwrap();
    let to = root.path().join("to");
    let pull = || {
        let offer = open(&layout, &found(&layout)?)?;
        let _ = fs::remove_dir_all(&to);
        fetch(&layout, &offer, &to).map_err(FetchError::from)
    };
    pull().unwrap();
    for blob in fs::read_dir(dir.join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let whole = fs::read(&path).unwrap();
        let (mut changed, middle) = (whole.clone(), whole.len() / 2);
        changed[middle] ^= 1;
        fs::write(&path, changed).unwrap();
        // The empty config of a statement says nothing.
        assert!(pull().is_err() || whole == b"{}", "{}", path.display());
        fs::write(&path, whole).unwrap();
    }
    pull().unwrap();
    let other = place(&format!("oci:{}:test", dir.display()));
    let none = look(&other, ("test", None), &deliverer(), (1, 10)).unwrap_err();
    assert!(matches!(none, FetchError::NoTag { .. }), "{none}");
    let nothing = place(&format!("oci:{}:prod", root.path().join("nothing").display()));
    assert!(found(&nothing).unwrap_err().to_string().contains("no image layout"));
    // A folder of something else is not made one.
    assert!(push(&place(&format!("oci:{}:prod", root.path().display())), &outputs).is_err());
}

/// A request: its method, its path, its headers by their names in small letters, its body.
struct Asked {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Its status, further headers, and its body.
type Answer = (u16, Vec<(String, String)>, Vec<u8>);
type Answers = dyn Fn(&Asked) -> Option<Answer> + Send + Sync;

/// The method and the path of a request, and who asked.
type Heard = (String, String, Option<String>);

/// A registry.  What `lie` does not answer is answered as it should be.
struct Server {
    port: u16,
    heard: Arc<Mutex<Vec<Heard>>>,
}

#[derive(Default)]
struct Kept {
    blobs: BTreeMap<String, Vec<u8>>,
    manifests: BTreeMap<String, Vec<u8>>,
}

impl Server {
    fn new(lie: Box<Answers>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (log, kept) = (heard.clone(), Mutex::new(Kept::default()));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(asked) = read(&stream) else { continue };
                let authorization = asked.headers.get("authorization").cloned();
                log.lock().unwrap().push((asked.method.clone(), asked.path.clone(), authorization));
                let answer = lie(&asked).unwrap_or_else(|| kept.lock().unwrap().answer(&asked));
                write(stream, &asked, answer);
            }
        });
        Self { port, heard }
    }

    fn honest() -> Self {
        Self::new(Box::new(|_| None))
    }

    fn place(&self) -> Place {
        place(&format!("oci+http://127.0.0.1:{}/{NAME}", self.port))
    }

    fn count(&self, method: &str, part: &str) -> usize {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(own, path, _)| own == method && path.contains(part)).count()
    }
}

impl Kept {
    fn answer(&mut self, asked: &Asked) -> Answer {
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        let kept = if path.contains("/manifests/") { &self.manifests } else { &self.blobs };
        let none =
            || (404, Vec::new(), br#"{"errors":[{"code":"UNKNOWN","message":"none"}]}"#.to_vec());
        match asked.method.as_str() {
            "GET" | "HEAD" => match (kept.get(&name(path)), asked.headers.get("range")) {
                (None, _) => none(),
                (Some(content), None) => (200, Vec::new(), content.clone()),
                (Some(content), Some(range)) => {
                    let begin: usize =
                        range["bytes=".len()..].split('-').next().unwrap().parse().unwrap();
                    let said = format!("bytes {begin}-{}/{}", content.len() - 1, content.len());
                    (206, vec![("content-range".to_owned(), said)], content[begin..].to_vec())
                }
            },
            "POST" => {
                (202, vec![("location".to_owned(), format!("{path}some-session?a=b"))], Vec::new())
            }
            "PUT" if path.contains("/manifests/") => {
                let digest = format!("sha256:{}", Digest::of(&asked.body));
                self.manifests.insert(digest, asked.body.clone());
                self.manifests.insert(name(path), asked.body.clone());
                (201, Vec::new(), Vec::new())
            }
            "PUT" => {
                let digest = query.split_once("digest=").unwrap().1.to_owned();
                if digest != format!("sha256:{}", Digest::of(&asked.body)) {
                    return (400, Vec::new(), Vec::new());
                }
                self.blobs.insert(digest, asked.body.clone());
                (201, Vec::new(), Vec::new())
            }
            _ => none(),
        }
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, path, headers, body })
}

fn write(mut stream: TcpStream, asked: &Asked, (status, headers, body): Answer) {
    let mut head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| name == "content-length") {
        head += &format!("content-length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    if asked.method != "HEAD" {
        let _ = stream.write_all(&body);
    }
}

#[test]
fn a_registry_carries_a_delivery_and_gets_nothing_twice() {
    let root = TempDir::new().unwrap();
    let (outputs, server) = (outputs(root.path()), Server::honest());
    let place = server.place();
    // One layer was sent by somebody else.
    let artifact = Artifact::of(&outputs, &mut |_| {}).unwrap();
    let slice = artifact.slices.iter().find(|slice| slice.bytes == SLICE_BYTES).unwrap();
    let path = outputs[0].1.join("weights.bin");
    let content = super::place::Content::Part { path: &path, at: slice.at, bytes: slice.bytes };
    place.write(slice.digest, content).unwrap();
    let sent = push(&place, &outputs).unwrap();
    assert_eq!((sent.bytes, sent.sent), (size(&outputs), size(&outputs) - 1 - SLICE_BYTES));
    let puts = server.count("PUT", "blobs");
    assert_eq!(push(&place, &outputs).unwrap().sent, 0);
    assert_eq!(server.count("PUT", "blobs"), puts);
    let offer = open(&place, &found(&place).unwrap()).unwrap();
    let to = root.path().join("to");
    fetch(&place, &offer, &to).unwrap();
    check_equal(&outputs, &to);
    let weights = to.join("0/weights.bin");
    fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(7).unwrap();
    assert_eq!(fetch(&place, &offer, &to).unwrap().bytes, 2 * SLICE_BYTES + 1000 - 7);
    check_equal(&outputs, &to);
}

/// The last answers of a pull, each with a lie in it.
#[test]
fn lies_of_a_registry_are_refused() {
    let is_blob = |asked: &Asked| asked.method == "GET" && asked.path.contains("/blobs/");
    let is_tag = |asked: &Asked| asked.method == "GET" && asked.path.ends_with("/manifests/prod");
    let cases: Vec<(&str, Box<Answers>)> = vec![
        (
            "other bytes",
            Box::new(move |asked| is_blob(asked).then(|| (200, vec![], b"other".to_vec()))),
        ),
        ("nothing", Box::new(move |asked| is_blob(asked).then(|| (200, vec![], vec![])))),
        (
            "ten gigabytes",
            Box::new(move |asked| {
                let header = ("content-length".to_owned(), "10000000000".to_owned());
                is_blob(asked).then(|| (200, vec![header], vec![0; 1 << 20]))
            }),
        ),
        (
            "a circle",
            Box::new(move |asked| {
                is_blob(asked)
                    .then(|| (307, vec![("location".to_owned(), asked.path.clone())], vec![]))
            }),
        ),
        (
            "no place",
            Box::new(move |asked| {
                is_blob(asked).then(|| {
                    (307, vec![("location".to_owned(), "file:///etc/passwd".to_owned())], vec![])
                })
            }),
        ),
        (
            "no manifest",
            Box::new(move |asked| is_tag(asked).then(|| (200, vec![], b"{}".to_vec()))),
        ),
        (
            "a long manifest",
            Box::new(move |asked| is_tag(asked).then(|| (200, vec![], vec![b' '; 5 << 20]))),
        ),
        ("another status", Box::new(move |asked| is_blob(asked).then(|| (418, vec![], vec![])))),
        (
            "a list that is none",
            Box::new(|asked| {
                let is_list = asked.method == "GET" && asked.path.contains("/manifests/sha256-");
                is_list.then(|| (200, vec![], b"[]".to_vec()))
            }),
        ),
    ];
    let root = TempDir::new().unwrap();
    let outputs = outputs(root.path());
    for (what, lie) in cases {
        let told = Arc::new(Mutex::new(false));
        let lies = told.clone();
        let server = Server::new(Box::new(
            move |asked| if *lies.lock().unwrap() { lie(asked) } else { None },
        ));
        let place = server.place();
        push_small(&place, &outputs);
        let to = root.path().join("to");
        let pull = || {
            let _ = fs::remove_dir_all(&to);
            let offer = open(&place, &found(&place)?)?;
            fetch(&place, &offer, &to).map_err(FetchError::from)
        };
        pull().unwrap();
        *told.lock().unwrap() = true;
        let error = pull().expect_err(what).to_string();
        assert!(!error.contains('\n'), "{what}: {error}");
    }
}

/// The second of two outputs alone, which refers to none then.
fn push_small(place: &Place, outputs: &[(BundledOutput, PathBuf)]) {
    let (output, folder) = &outputs[1];
    let alone = [(BundledOutput { refers: Vec::new(), ..output.clone() }, folder.clone())];
    push(place, &alone).unwrap();
}

#[test]
fn whoever_asks_says_who_he_is_to_the_registry_alone() {
    let root = TempDir::new().unwrap();
    let outputs = outputs(root.path());
    let storage = Server::new(Box::new(|asked| {
        Some((200, vec![], if asked.path == "/stored" { b"{}".to_vec() } else { vec![] }))
    }));
    let stored = format!("http://127.0.0.1:{}/stored", storage.port);
    let digest = format!("sha256:{}", Digest::of(b"{}"));
    let server = Server::new(Box::new(move |asked| {
        let token = |asked: &Asked| asked.headers.get("authorization").cloned().unwrap_or_default();
        if asked.path.starts_with("/token") {
            let is_me = token(asked) == "Basic bWU6c2VjcmV0";
            let is_scoped = asked.path.contains("scope=repository:fleet/demo:pull,push");
            let good = is_me && is_scoped;
            return Some((if good { 200 } else { 401 }, vec![], br#"{"token":"abc"}"#.to_vec()));
        }
        if token(asked) != "Bearer abc" {
            let host = asked.headers["host"].clone();
            let challenge = format!(
                r#"Bearer realm="http://{host}/token",service="x",scope="repository:fleet/demo:pull,push""#
            );
            return Some((401, vec![("www-authenticate".to_owned(), challenge)], vec![]));
        }
        let is_stored =
            asked.method == "GET" && asked.path.ends_with(&digest) && asked.path.contains("blobs");
        is_stored.then(|| (307, vec![("location".to_owned(), stored.clone())], vec![]))
    }));
    let reference: Reference =
        format!("oci+http://127.0.0.1:{}/{NAME}", server.port).parse().unwrap();
    let of = |password: &str| {
        let credentials = Credentials { user: "me".to_owned(), password: password.to_owned() };
        Place::of(&reference, Access { credentials: Some(credentials), authority: None }).unwrap()
    };
    let place = of("secret");
    push_small(&place, &outputs);
    let offer = open(&place, &found(&place).unwrap()).unwrap();
    fetch(&place, &offer, &root.path().join("to")).unwrap();
    // The layer came from the storage, which heard of no token.
    let heard = storage.heard.lock().unwrap();
    assert!(!heard.is_empty() && heard.iter().all(|(_, _, authorization)| authorization.is_none()));
    let refused = found(&of("other")).unwrap_err().to_string();
    assert!(refused.contains("does not let this user") && !refused.contains("other"), "{refused}");
    let refused =
        found(&Place::of(&reference, Access::default()).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("SMELT_REGISTRY_USER"), "{refused}");
}

#[test]
fn a_registry_that_is_away_is_said_to_be() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let gone = found(&place(&format!("oci+http://127.0.0.1:{port}/{NAME}"))).unwrap_err();
    assert!(matches!(gone, FetchError::Place(PlaceError::Gone { .. })), "{gone}");
}
