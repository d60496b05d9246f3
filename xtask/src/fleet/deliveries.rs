//! Delivers by a real registry, docker-registry, and by a directory that a foreign client, skopeo, has filled from it.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Board, Daemon, PICTURE, PIPELINE, text};
use crate::debian;
use crate::server::{Server, free_port, http_get};

/// As long as a server may take to put a version in place.
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "fleet/demo:prod";
/// Nobody listens there.
const NO_FLEET: u16 = 1;
const QUESTION: [&str; 3] = ["--image", PICTURE, "what shape?"];

/// Brings registry and client.
pub(super) fn fetch() -> Result<()> {
    let has = |program: &'static str| move || debian::path_of(program).is_ok();
    debian::need_alone("docker-registry", has("docker-registry"))?;
    debian::need_alone("skopeo", has("skopeo"))
}

/// `builder` has built the pipeline.
pub(super) fn deployments_are_handed_over(
    smelt: &Path,
    builder: &Board,
    work: &Path,
) -> Result<()> {
    fetch()?;
    let site = Site::new(smelt, work.join("deliveries"))?;
    let key = builder.ok(&["fleet", "keygen", "--out", &site.path("boss.pem")])?;
    let place = site.place();
    push(&site, builder, &[PIPELINE, &place])?;
    let board = site.board("board")?;
    nobody_is_believed_unasked(&board, &place)?;
    believe(&board, &key, "boss")?;
    let told = board.json(&["deliver", "pull", &place, "--json"])?;
    ensure!(told["version"] == 1 && told["fetched_bytes"].as_u64() > Some(0), "{told}");
    answers_as(builder, &board)?;
    once_more_moves_nothing(&site, builder, &board, &place)?;
    a_killed_push_and_pull_go_on(&site, builder, &key)?;
    an_older_version_is_refused(&site, builder, &board, &place)?;
    two_must_sign(&site, builder, &board, &place)?;
    a_foreign_client_carries_it(&site, &key)?;
    damage_is_refused(&site, &key)?;
    whoever_is_revoked_delivered_nothing(&board)?;
    a_server_takes_the_newer_one(&site, builder, &key)
}

/// A registry, and boards.
struct Site<'a> {
    smelt: &'a Path,
    work: PathBuf,
    registry: Daemon,
}

impl<'a> Site<'a> {
    fn new(smelt: &'a Path, work: PathBuf) -> Result<Self> {
        fs::create_dir_all(&work)?;
        let port = free_port()?;
        let config = work.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }}, cache: {{}} }}\n\
             http: {{ addr: 127.0.0.1:{port}, secret: some }}\n",
            work.join("registry").display()
        );
        fs::write(&config, text)?;
        let mut registry = Command::new(debian::path_of("docker-registry")?);
        registry.arg("serve").arg(&config);
        let registry = Daemon::start(&mut registry, port, &work.join("registry.log"))?;
        Ok(Self { smelt, work, registry })
    }

    fn board(&self, name: &str) -> Result<Board> {
        Board::new(self.smelt, self.work.join(name), NO_FLEET)
    }

    fn path(&self, name: &str) -> String {
        self.work.join(name).display().to_string()
    }

    fn place(&self) -> String {
        self.place_of(NAME)
    }

    fn place_of(&self, name: &str) -> String {
        format!("oci+http://127.0.0.1:{}/{name}", self.registry.port())
    }

    fn blobs(&self) -> PathBuf {
        self.work.join("registry/docker/registry/v2/blobs/sha256")
    }
}

fn push(site: &Site<'_>, builder: &Board, more: &[&str]) -> Result<String> {
    let key = site.path("boss.pem");
    builder.ok(&[&["deliver", "push"], more, &["--fleet-key", &key]].concat())
}

fn believe(board: &Board, key: &str, name: &str) -> Result<()> {
    board.ok(&["fleet", "trust", key, "--name", name, "--for", "delivery"]).map(drop)
}

/// The one line by which a command is refused with an exit code.
fn refused(board: &Board, arguments: &[&str], code: i32, words: &str) -> Result<()> {
    let output = board.output(arguments)?;
    let said = text(&output.stderr);
    ensure!(output.status.code() == Some(code), "{arguments:?}: {}: {said}", output.status);
    ensure!(said.contains(words) && said.lines().count() == 1, "{arguments:?}: {said}");
    Ok(())
}

fn nobody_is_believed_unasked(board: &Board, place: &str) -> Result<()> {
    refused(board, &["deliver", "pull", place], 1, "smelt fleet trust")?;
    let out = board.home.join("cache/out");
    ensure!(!out.read_dir()?.any(|_| true), "something was sealed");
    Ok(())
}

/// Both give the same answer, the board by the name of the model.
fn answers_as(builder: &Board, board: &Board) -> Result<()> {
    let expect = builder.ok(&[&["chat", PIPELINE], &QUESTION[..]].concat())?;
    let listed = board.json(&["ls", "--json"])?;
    let name = listed["deployments"][0]["name"].as_str().or(listed[0]["name"].as_str());
    let name = name.with_context(|| listed.to_string())?;
    let answer = board.ok(&[&["chat", name], &QUESTION[..]].concat())?;
    ensure!(!answer.is_empty() && answer == expect, "{answer:?} and {expect:?}");
    board.ok(&["cache", "fsck"]).map(drop)
}

fn once_more_moves_nothing(
    site: &Site<'_>,
    builder: &Board,
    board: &Board,
    place: &str,
) -> Result<()> {
    let told = push(site, builder, &[PIPELINE, place, "--json"])?;
    ensure!(told.contains("\"sent_bytes\":0") && told.contains("\"version\":1"), "{told}");
    let told = board.json(&["deliver", "pull", place, "--json"])?;
    ensure!(told["fetched_bytes"] == 0, "{told}");
    Ok(())
}

/// At a few moments each; what was whole when they died is there.
fn a_killed_push_and_pull_go_on(site: &Site<'_>, builder: &Board, key: &str) -> Result<()> {
    let (place, boss) = (site.place_of("fleet/killed:prod"), site.path("boss.pem"));
    let board = site.board("killed")?;
    believe(&board, key, "boss")?;
    let push = ["deliver", "push", PIPELINE, &place, "--fleet-key", &boss];
    let pull = ["deliver", "pull", &place];
    for (board, command) in [(builder, &push[..]), (&board, &pull[..])] {
        for millis in [3, 10, 20, 40] {
            let mut smelt = board.command(command);
            let mut child = smelt.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            thread::sleep(Duration::from_millis(millis));
            child.kill()?;
            child.wait()?;
        }
        board.ok(command)?;
    }
    board.ok(&["cache", "fsck"]).map(drop)
}

/// The registry brings back what was there before: it may, and no board takes it.
fn an_older_version_is_refused(
    site: &Site<'_>,
    builder: &Board,
    board: &Board,
    place: &str,
) -> Result<()> {
    let tag = |reference: &str| {
        let (to, tag) =
            (site.work.join("registry"), reference.rsplit(':').next().unwrap_or_default());
        to.join(format!(
            "docker/registry/v2/repositories/fleet/demo/_manifests/tags/{tag}/current/link"
        ))
    };
    let link = tag(place);
    let older = fs::read(&link).with_context(|| link.display().to_string())?;
    let other = [PIPELINE, place, "--set", "scheme=int4-g128"];
    builder.ok(&[
        "run",
        PIPELINE,
        "--set",
        "scheme=int4-g128",
        "--fleet",
        "",
        "--fleet-lock",
        "",
    ])?;
    push(site, builder, &other)?;
    let told = board.json(&["deliver", "pull", place, "--json"])?;
    ensure!(told["version"] == 2, "{told}");
    let newer = fs::read(&link)?;
    fs::write(&link, older)?;
    refused(board, &["deliver", "pull", place], 1, "version 2 was taken before")?;
    let told = board.json(&["deliver", "pull", place, "--allow-older", "--json"])?;
    ensure!(told["version"] == 1, "{told}");
    fs::write(&link, newer)?;
    board.ok(&["deliver", "pull", place]).map(drop)
}

fn two_must_sign(site: &Site<'_>, builder: &Board, board: &Board, place: &str) -> Result<()> {
    let pull = ["deliver", "pull", place, "--least", "2"];
    refused(board, &pull, 1, "1 of 2 trusted keys")?;
    let second = site.board("second")?;
    let key = second.ok(&["fleet", "keygen"])?;
    refused(&second, &["deliver", "sign", place], 1, "smelt fleet trust")?;
    let boss = builder.ok(&[
        "deliver",
        "show",
        place,
        "--json",
        "--fleet-trust",
        &board.path(".config/smelt/trust.toml"),
    ])?;
    ensure!(boss.contains("\"by\":[\"boss\"]"), "{boss}");
    fs::create_dir_all(second.home.join(".config/smelt"))?;
    fs::copy(board.path(".config/smelt/trust.toml"), second.path(".config/smelt/trust.toml"))?;
    second.ok(&["deliver", "sign", place])?;
    refused(board, &pull, 1, "1 of 2 trusted keys")?;
    believe(board, &key, "second")?;
    board.ok(&pull).map(drop)
}

/// skopeo takes it from the registry into a directory, with who vouches for it, and smelt takes it from there.
fn a_foreign_client_carries_it(site: &Site<'_>, key: &str) -> Result<()> {
    let (dir, from) =
        (site.path("layout"), format!("docker://127.0.0.1:{}/fleet/demo", site.registry.port()));
    let board = site.board("offline")?;
    believe(&board, key, "boss")?;
    let copy = |tag: &str| {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--all", "--src-tls-verify=false", "-q"]);
        let output = skopeo.args([format!("{from}:{tag}"), format!("oci:{dir}:{tag}")]).output();
        let output = output.context("cannot start skopeo")?;
        ensure!(output.status.success(), "skopeo: {}", text(&output.stderr));
        Ok(())
    };
    copy("prod")?;
    let place = format!("oci:{dir}:prod");
    refused(&board, &["deliver", "pull", &place], 1, "nobody signed it")?;
    let shown = board.json(&["deliver", "show", &site.place(), "--json"])?;
    copy(&format!("sha256-{}", shown["manifest"].as_str().context("no manifest")?))?;
    let told = board.json(&["deliver", "pull", &place, "--json"])?;
    ensure!(told["version"] == 2 && told["name"] == NAME, "{told}");
    Ok(())
}

/// A byte of the largest blob of the registry is another one: it is refused, and sealed as nothing.
fn damage_is_refused(site: &Site<'_>, key: &str) -> Result<()> {
    let board = site.board("damaged")?;
    believe(&board, key, "boss")?;
    let mut largest = (0, PathBuf::new());
    for two in fs::read_dir(site.blobs())? {
        for blob in fs::read_dir(two?.path())? {
            let path = blob?.path().join("data");
            largest = largest.max((fs::metadata(&path)?.len(), path));
        }
    }
    let file = fs::OpenOptions::new().read(true).write(true).open(&largest.1)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, largest.0 / 2)?;
    file.write_all_at(&[byte[0] ^ 1], largest.0 / 2)?;
    let places = [site.place(), site.place_of("fleet/killed:prod")];
    let outputs = places.iter().map(|place| board.output(&["deliver", "pull", place]));
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    let damaged = outputs.iter().filter(|it| it.status.code() == Some(4)).collect::<Vec<_>>();
    ensure!(!damaged.is_empty(), "what is damaged is taken");
    for output in damaged {
        let said = text(&output.stderr);
        ensure!(said.lines().count() == 1 && said.contains("other bytes"), "{said}");
    }
    board.ok(&["cache", "fsck"])?;
    file.write_all_at(&byte, largest.0 / 2)?;
    places.iter().try_for_each(|place| board.ok(&["deliver", "pull", place]).map(drop))
}

fn whoever_is_revoked_delivered_nothing(board: &Board) -> Result<()> {
    let listed = board.json(&["ls", "--json"])?;
    let name = listed["deployments"][0]["name"].as_str().or(listed[0]["name"].as_str());
    let name = name.with_context(|| listed.to_string())?.to_owned();
    let question = [&["chat", &name], &QUESTION[..]].concat();
    board.ok(&question)?;
    board.ok(&["fleet", "untrust", "second"])?;
    board.ok(&["fleet", "untrust", "boss"])?;
    refused(board, &question, 1, "revoked")
}

/// `smelt serve` begins with what was delivered, puts the next version in place, and goes back where that does not answer right.
fn a_server_takes_the_newer_one(site: &Site<'_>, builder: &Board, key: &str) -> Result<()> {
    let place = site.place_of("fleet/served:prod");
    push(site, builder, &[PIPELINE, &place])?;
    let board = site.board("served")?;
    believe(&board, key, "boss")?;
    let golden = |folder: &str, answer: &str| -> Result<String> {
        let folder = board.path(folder);
        fs::create_dir_all(&folder)?;
        let prompt = format!(
            "{{\"task\": \"shape\", \"images\": [\"p.png\"], \"question\": \"what shape?\", \"answer\": \"{answer}\"}}\n"
        );
        fs::write(Path::new(&folder).join("questions.jsonl"), prompt)?;
        fs::copy(crate::root().join(PICTURE), Path::new(&folder).join("p.png"))?;
        Ok(folder)
    };
    let answer = builder.ok(&[&["chat", PIPELINE], &QUESTION[..]].concat())?;
    let (right, wrong) = (golden("right", &answer)?, golden("wrong", "a pony")?);
    let serve = |golden: &str, log: &str| {
        let mut smelt = board.command(&["serve", &place, "--watch", "1s", "--golden", golden]);
        Server::start(&mut smelt, &["--addr", "127.0.0.1:PORT"], Path::new(&board.path(log)))
    };
    let said = |log: &str, words: &str| -> Result<()> {
        let begin = Instant::now();
        loop {
            let log = fs::read_to_string(board.path(log)).unwrap_or_default();
            if log.contains(words) {
                return Ok(());
            }
            ensure!(begin.elapsed() < PATIENCE, "{words:?} was waited for in vain: {log}");
            thread::sleep(Duration::from_millis(100));
        }
    };
    let server = serve(&wrong, "wrong.log")?;
    push(site, builder, &[PIPELINE, &place, "--set", "scheme=int4-g128"])?;
    said("wrong.log", "the older deployment stays")?;
    ensure!(http_get(server.port(), "/health")?.contains("200"), "it does not answer");
    drop(server);
    // A version that was refused is not begun with, nor tried again.
    let server = serve(&right, "right.log")?;
    push(site, builder, &[PIPELINE, &place])?;
    said("right.log", "version 3")?;
    drop(server);
    let remembered = fs::read_to_string(board.home.join("cache/deliveries"))?;
    ensure!(
        remembered.lines().filter(|line| line.contains("refused")).count() == 1,
        "{remembered}"
    );
    Ok(())
}
