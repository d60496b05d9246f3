//! Plays boards that all take one output from a real server: `cargo xtask bench boards` starts this.
//!
//! `boards judge` judges the statement of a result of 2 GiB a hundred times, as a pull does with an envelope that has come, and
//! prints how many milliseconds each took.  `boards publish ADDRESS FOLDER MIB` makes an output of so many MiB in FOLDER, signs and publishes it, and writes there who is to
//! be believed.  `boards take ADDRESS FOLDER COUNT SECONDS` starts so many boards, spread over so many seconds, and prints a line of
//! JSON.  Each board is a thread with a connection, a client and a folder of its own, and does what a pull does: it connects,
//! asks for a recipe key, judges the statement, fetches the chunks, and compares every file with what was signed.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use smelt_fleet::address::Address;
use smelt_fleet::dsse::Envelope;
use smelt_fleet::judge::{Asked, judge};
use smelt_fleet::keys::SigningKey;
use smelt_fleet::local::LocalChunks;
use smelt_fleet::pull::offer;
use smelt_fleet::push::push;
use smelt_fleet::reapi::Client;
use smelt_fleet::remote::{Key, Remote as _};
use smelt_fleet::statement::{Provenance, Statement};
use smelt_fleet::trust::{Trust, TrustedKey, usual_purposes};
use smelt_random::Random;
use smelt_store::{Digest, FileEntry, Manifest};

/// Files of the output, as an engine has some: at 4 MiB they are 30 chunks.
const FILES: usize = 10;
/// What is judged: as many files as a tower of several grids beside a decoder has, of 2 GiB together, so many times.
const RESULT_FILES: u64 = 32;
const RESULT_BYTES: u64 = 2 << 30;
const JUDGED: usize = 100;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["publish", address, folder, mib] => {
            publish(&address.parse()?, Path::new(folder), mib.parse()?)
        }
        ["take", address, folder, count, seconds] => {
            let spread = Duration::from_secs_f64(seconds.parse()?);
            take(&address.parse()?, Path::new(folder), count.parse()?, spread)
        }
        ["judge"] => judge_often(),
        _ => Err(
            "usage: boards judge | publish ADDRESS FOLDER MIB | take ADDRESS FOLDER COUNT SECONDS"
                .into(),
        ),
    }
}

fn publish(address: &Address, folder: &Path, mib: usize) -> Outcome<()> {
    let out = folder.join("out");
    fs::create_dir_all(&out)?;
    let mut random = Random::new(1);
    let mut entries = Vec::new();
    for number in 0..FILES {
        let mut content = vec![0; (mib << 20) / FILES];
        content.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
        let path = format!("part-{number}");
        fs::write(out.join(&path), &content)?;
        let (size, sha256) = (content.len() as u64, Digest::of(&content));
        entries.push(FileEntry { path, size, sha256, executable: false });
    }
    let (client, _) = Client::connect(address, None, None, &Default::default())?;
    let statement = statement(Manifest::new(entries)?, client.instance());
    let (signer, _) = SigningKey::generate()?;
    fs::write(folder.join("trust.toml"), trusting(&signer)?.to_toml())?;
    push(&client, &statement, &out, &signer, &mut |_| true)?;
    Ok(())
}

fn judge_often() -> Outcome<()> {
    let file = |number: u64| {
        let path = format!("part-{number:02}");
        let sha256 = Digest::of(path.as_bytes());
        FileEntry { path, size: RESULT_BYTES / RESULT_FILES, sha256, executable: false }
    };
    let statement = statement(Manifest::new((0..RESULT_FILES).map(file).collect())?, "site");
    let (signer, _) = SigningKey::generate()?;
    let json = Envelope::sign(statement.to_json()?, &[&signer])?.to_json()?;
    let trust = trusting(&signer)?;
    for _ in 0..JUDGED {
        let begin = Instant::now();
        let asked = Asked { key: Key::Content(statement.key), instance: "site", least: 1 };
        let vouched = judge(&trust, &Envelope::from_json(&json)?, &asked, now())?;
        let took = begin.elapsed();
        assert_eq!(vouched.statement.files.bytes(), RESULT_BYTES);
        println!("{}", took.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn trusting(signer: &SigningKey) -> Outcome<Trust> {
    let mut trust = Trust::default();
    trust.add(TrustedKey {
        name: "builder".to_owned(),
        key: signer.public(),
        purposes: usual_purposes(),
        facts: BTreeMap::new(),
        until: None,
        revoked: None,
    })?;
    Ok(trust)
}

fn recipe() -> Digest {
    Digest::of(b"recipe")
}

fn statement(files: Manifest, instance: &str) -> Statement {
    let provenance = Provenance {
        stage: "llm-engine".to_owned(),
        kind: "llm-engine-build".to_owned(),
        kind_version: 1,
        pipeline: "boards".to_owned(),
        params: BTreeMap::new(),
        device: BTreeMap::new(),
        tools: Vec::new(),
        inputs: vec![("checkpoint".to_owned(), Digest::of(b"checkpoint"))],
        run: "20261130-000000-0000".to_owned(),
    };
    Statement {
        key: Digest::of(b"key"),
        recipes: vec![recipe()],
        anywhere: None,
        instance: instance.to_owned(),
        tree: files.digest(),
        files,
        refers: Vec::new(),
        record: json!({ "stage": "llm-engine" }),
        provenance,
        finished: now() - 5,
        builder: concat!("smelt ", env!("CARGO_PKG_VERSION")).to_owned(),
    }
}

/// Seconds of the Unix era.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// How long a board took until it was connected, from its question to an entry that was judged, and for all.
struct Took {
    connected: Duration,
    hit: Duration,
    whole: Duration,
}

fn take(address: &Address, folder: &Path, count: u32, spread: Duration) -> Outcome<()> {
    let trust = Trust::parse(&fs::read_to_string(folder.join("trust.toml"))?)?;
    // All threads are there before the first board begins.
    let gate = Barrier::new(count as usize);
    let took: Vec<Result<Took, String>> = thread::scope(|scope| {
        let start = |number: u32| {
            let (gate, trust) = (&gate, &trust);
            let own = folder.join(format!("board-{number}"));
            scope.spawn(move || {
                gate.wait();
                thread::sleep(spread * number / count);
                let took = board(address, trust, &own);
                let _ = fs::remove_dir_all(&own);
                took.map_err(|error| error.to_string())
            })
        };
        let boards: Vec<ScopedJoinHandle<_>> = (0..count).map(start).collect();
        let ended = |board: ScopedJoinHandle<_>| {
            board.join().unwrap_or_else(|_| Err("it panicked".to_owned()))
        };
        boards.into_iter().map(ended).collect()
    });
    println!("{}", told(&took));
    Ok(())
}

fn told(took: &[Result<Took, String>]) -> Value {
    let seconds = |of: fn(&Took) -> Duration| -> Vec<f64> {
        took.iter().flatten().map(|took| of(took).as_secs_f64()).collect()
    };
    let failed: Vec<&String> = took.iter().filter_map(|took| took.as_ref().err()).collect();
    json!({
        "connected_s": seconds(|it| it.connected),
        "hit_s": seconds(|it| it.hit),
        "whole_s": seconds(|it| it.whole),
        "failed": failed,
    })
}

fn board(address: &Address, trust: &Trust, folder: &Path) -> Outcome<Took> {
    let begin = Instant::now();
    let (client, _) = Client::connect(address, None, None, &Default::default())?;
    let (connected, asked) = (begin.elapsed(), Instant::now());
    let offer = offer(&client, Key::Recipe(recipe()), trust, now())?;
    let offer = offer.ok_or("nobody has published it")?;
    let hit = asked.elapsed();
    offer.fetch(&client, &LocalChunks::default(), (folder, None), &mut |_| true)?;
    let files = &offer.vouched.statement.files;
    match files.difference(&fetched(files, folder)?) {
        Some(difference) => Err(difference.into()),
        None => Ok(Took { connected, hit, whole: begin.elapsed() }),
    }
}

/// What lies in a folder of these files.
fn fetched(files: &Manifest, folder: &Path) -> Outcome<Manifest> {
    let entry = |entry: &FileEntry| {
        let content = fs::read(folder.join(&entry.path))?;
        let (size, sha256) = (content.len() as u64, Digest::of(&content));
        Ok(FileEntry { size, sha256, ..entry.clone() })
    };
    let entries = files.files().iter().map(entry).collect::<Outcome<Vec<_>>>()?;
    Ok(Manifest::new(entries)?)
}
