//! Judges the statement of a result of 2 GiB a hundred times, and prints how many milliseconds each took: `cargo xtask bench fleet
//! cached` starts this.
//!
//! The result has 32 files, as a tower of several grids beside a decoder has.  What is timed is what a pull does with an envelope
//! that has come: it is read, its signature compared, the statement read, and held against what was asked and who is believed.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use serde_json::json;
use smelt_fleet::dsse::Envelope;
use smelt_fleet::judge::{Asked, judge};
use smelt_fleet::keys::SigningKey;
use smelt_fleet::remote::Key;
use smelt_fleet::statement::{Provenance, Statement};
use smelt_fleet::trust::{Trust, TrustedKey, usual_purposes};
use smelt_store::{Digest, FileEntry, Manifest};

const FILES: u64 = 32;
const RESULT_BYTES: u64 = 2 << 30;
const TIMES: usize = 100;
/// In seconds of the Unix era.
const NOW: u64 = 1_800_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let (signer, _) = SigningKey::generate()?;
    let statement = statement()?;
    let json = Envelope::sign(statement.to_json()?, &[&signer])?.to_json()?;
    let trust = trusting(&signer)?;
    for _ in 0..TIMES {
        let begin = Instant::now();
        let asked = Asked { key: Key::Content(statement.key), instance: "site", least: 1 };
        let vouched = judge(&trust, &Envelope::from_json(&json)?, &asked, NOW)?;
        let took = begin.elapsed();
        assert_eq!(vouched.statement.files.bytes(), RESULT_BYTES);
        println!("{}", took.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn trusting(signer: &SigningKey) -> Result<Trust, Box<dyn Error>> {
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

fn statement() -> Result<Statement, Box<dyn Error>> {
    let file = |number: u64| {
        let path = format!("part-{number:02}");
        let sha256 = Digest::of(path.as_bytes());
        FileEntry { path, size: RESULT_BYTES / FILES, sha256, executable: false }
    };
    let files = Manifest::new((0..FILES).map(file).collect())?;
    let provenance = Provenance {
        stage: "llm-engine".to_owned(),
        kind: "llm-engine-build".to_owned(),
        kind_version: 1,
        pipeline: "judge".to_owned(),
        params: BTreeMap::new(),
        device: BTreeMap::new(),
        tools: Vec::new(),
        inputs: vec![("checkpoint".to_owned(), Digest::of(b"checkpoint"))],
        run: "20261130-000000-0000".to_owned(),
    };
    Ok(Statement {
        key: Digest::of(b"key"),
        recipes: vec![Digest::of(b"recipe")],
        anywhere: None,
        instance: "site".to_owned(),
        tree: files.digest(),
        files,
        refers: Vec::new(),
        record: json!({ "stage": "llm-engine" }),
        provenance,
        finished: NOW - 5,
        builder: concat!("smelt ", env!("CARGO_PKG_VERSION")).to_owned(),
    })
}
