//! Measures `smelt serve` beside llama-server: equal weights, the same client, in turns.
//!
//! `inputs` makes what both serve, `rival` builds llama-server from its sources, `server` starts and ends
//! them, `idle` holds streams open, `report` tells what was found.  The client is `smelt bench serve`.

mod idle;
mod inputs;
mod report;
mod rival;
mod server;

use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use inputs::Inputs;
use report::{Figures, Mixed};
use server::{Client, Server};

/// Turns of both sides when `--runs` does not say.
const RUNS: usize = 5;

/// Streams at once, of each row.
const STREAMS: [usize; 4] = [1, 2, 4, 8];

/// Tokens of prompt and answer where throughput is measured.
const LENGTHS: &str = "128:64";

/// Streams whose steps are compared with the engine's own, and how far behind their prompts: so far that
/// hardly any step waits for a prompt.
const STEADY_STREAMS: usize = 8;
const STEADY_PROMPT: usize = 16;
const STEADY_STEPS: usize = 256;

/// What is asked in the mixture, and beside it.
const SHORT: &str = "64:16";
const LONG: &str = "1024:8";

/// Clients that wait and hear nothing.
const IDLE: usize = 1000;

/// `cargo xtask bench serve [--runs N] [--smoke]`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut runs = RUNS;
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        match argument {
            "--smoke" => return smoke(),
            "--runs" => {
                let count = arguments.next().and_then(|text| text.parse().ok());
                runs = count.filter(|&runs| runs > 0).context("--runs takes a number")?;
            }
            _ => bail!("bench serve takes --runs and --smoke, not {argument}"),
        }
    }
    let facts = super::cpu::machine()?;
    let inputs = Inputs::prepare()?;
    let (smelt, rival) = (inputs.serve()?, inputs.serve_rival()?);
    let client = Client { program: inputs.smelt.clone() };
    let mut rows = Vec::new();
    for streams in STREAMS {
        eprintln!("bench: {streams} streams");
        rows.push((streams, throughput(&client, [&smelt, &rival], streams, runs)?));
    }
    eprintln!("bench: short requests beside long ones");
    let mixed = mixture(&client, [&smelt, &rival], runs)?;
    drop(rival);
    eprintln!("bench: steps of {STEADY_STREAMS} streams, served and alone");
    let steps = steady(&inputs, &client, &smelt, runs)?;
    eprintln!("bench: {IDLE} idle clients");
    let idle_mib = idle::memory_mib(&smelt, IDLE)?;
    report::write(&facts, runs, &rows, &mixed, steps, idle_mib, &inputs.folder)
}

/// Medians of both sides, which take turns.
fn throughput(
    client: &Client,
    servers: [&Server; 2],
    streams: usize,
    runs: usize,
) -> Result<[Figures; 2]> {
    let (count, requests) = (streams.to_string(), (2 * streams).to_string());
    let flags = ["--lengths", LENGTHS, "--concurrency", &count, "--requests", &requests];
    let mut taken = [Vec::new(), Vec::new()];
    // The first turn warms both up.
    for turn in 0..=runs {
        for (server, taken) in servers.iter().zip(&mut taken) {
            let row = client.ask(server, &flags)?;
            if turn > 0 {
                taken.push(Figures::of(&row)?);
            }
        }
    }
    Ok(taken.map(|figures| Figures::medians(&figures)))
}

/// What a token takes each stream of the server, and a step the engine alone, in milliseconds, in turns.
fn steady(inputs: &Inputs, client: &Client, server: &Server, runs: usize) -> Result<[f64; 2]> {
    let (lengths, count) = (format!("{STEADY_PROMPT}:{STEADY_STEPS}"), STEADY_STREAMS.to_string());
    let flags = ["--lengths", &lengths, "--concurrency", &count, "--requests", &count];
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        taken[0].push(Figures::of(&client.ask(server, &flags)?)?.tpot_ms);
        taken[1].push(inputs.engine_step_ms(STEADY_STREAMS, STEADY_PROMPT, STEADY_STEPS)?);
    }
    Ok(taken.map(report::median))
}

/// The time to the first text of short requests while long prompts are read.
fn mixture(client: &Client, servers: [&Server; 2], runs: usize) -> Result<[Mixed; 2]> {
    let short = ["--lengths", SHORT, "--concurrency", "2", "--requests", "24"];
    let long = ["--lengths", LONG, "--concurrency", "2", "--requests", "6"];
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        for (server, taken) in servers.iter().zip(&mut taken) {
            let row = thread::scope(|scope| -> Result<Value> {
                let beside = scope.spawn(|| client.ask(server, &long));
                let row = client.ask(server, &short)?;
                let other = beside.join().ok().context("the other client panicked")??;
                ensure!(other["errors"] == row["errors"], "requests failed: {other}");
                Ok(row)
            })?;
            taken.push(Mixed::of(&row)?);
        }
    }
    Ok(taken.map(|mixed| Mixed::medians(&mixed)))
}

/// Every step of our side once, on the tiny model, and no clock.
fn smoke() -> Result<()> {
    println!("\n$ cargo xtask bench serve --smoke");
    let inputs = Inputs::tiny()?;
    let server = inputs.serve()?;
    let client = Client { program: inputs.smelt.clone() };
    let flags = ["--lengths", "40:8", "--concurrency", "2", "--requests", "4"];
    let row = client.ask(&server, &flags)?;
    ensure!(row["errors"].as_array().is_some_and(Vec::is_empty), "requests failed: {row}");
    let seen = client.ask(&server, &[&flags[..], &["--images", "1", "--mix", "1:1"]].concat())?;
    ensure!(seen["ttft_image_ms"].is_object(), "no request with a picture was answered: {seen}");
    let idle_mib = idle::memory_mib(&server, 40)?;
    println!("2 streams, texts, pictures and 40 idle clients ({idle_mib:.1} MiB) were served");
    Ok(())
}
