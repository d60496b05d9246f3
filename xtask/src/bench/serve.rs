//! Measures `smelt serve` beside llama-server: equal weights, the same client, in turns.
//!
//! `inputs` makes what both serve, `rival` builds llama-server from its sources, `client` asks with `smelt
//! bench serve`, `idle` holds streams open, `protocols` compares what each takes, `report` tells what was found.

pub(super) mod client;
mod idle;
mod inputs;
mod protocols;
pub(super) mod report;
pub(super) mod rival;

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::measure::median;
use crate::server::Server;
use client::Client;
use inputs::Inputs;
use report::{Figures, Measurements, middle, number};

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

/// What is asked in the first mixture, and beside it until it is answered.
const SHORT: [&str; 6] = ["--lengths", "64:16", "--concurrency", "2", "--requests", "24"];
const LONG: [&str; 6] = ["--lengths", "1024:8", "--concurrency", "2", "--requests", "2000"];

/// In the second: three texts for each picture of one tile, each picture another, beside streams.
const SEEING: [&str; 6] = ["--lengths", "64:16", "--mix", "3:1", "--images", "1"];
const SEEING_CLIENTS: [&str; 4] = ["--concurrency", "4", "--requests", "32"];
const STREAMING: [&str; 6] = ["--lengths", "64:512", "--concurrency", "2", "--requests", "2000"];

/// In the third the same, from clients that ask whether others are answered or not, so that both sides are
/// asked equally often: this part of what the rival answered in the second.
const LOAD: f64 = 0.6;
const SEEING_COMING: [&str; 4] = ["--concurrency", "64", "--requests", "40"];

/// How long what goes on beside a mixture has begun before it.
const LEAD: Duration = Duration::from_secs(2);

/// Tokens by which both sides may differ over a picture: a line's end behind it.
const TOKENS_APART: f64 = 2.0;

/// Pictures one after the other behind a start, and starts for each size.
const PICTURES: usize = 10;
const STARTS: usize = 3;

/// Their sides in pixels: of one tile, and of four with the whole beside them.
const SIDES: [usize; 2] = [448, 896];

/// Turns in which protocols, and servers of few and of many keys, are asked for one token.
const TOKEN_TURNS: usize = 400;

/// Keys of which each has limits.
const KEYS: usize = 1000;

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
    let client = Client { program: inputs.smelt.clone() };
    // What takes seconds comes before what takes minutes, and leaves nothing in the server that they ask.
    eprintln!("bench: {IDLE} idle clients");
    let idle_mib = idle::memory_mib(&inputs.serve()?, IDLE)?;
    let (smelt, rival) = (inputs.serve()?, inputs.serve_rival()?);
    let mut rows = Vec::new();
    for streams in STREAMS {
        eprintln!("bench: {streams} streams");
        rows.push((streams, throughput(&client, [&smelt, &rival], streams, runs)?));
    }
    eprintln!("bench: short requests beside long ones");
    let servers = [&smelt, &rival];
    let beside_prompts = mixture(&client, servers, runs, (&SHORT, 1000), &LONG)?;
    eprintln!("bench: texts and pictures beside streams");
    let picture_tokens = [picture_tokens(&client, &smelt)?, picture_tokens(&client, &rival)?];
    let [ours, theirs] = picture_tokens;
    ensure!(
        (ours - theirs).abs() <= TOKENS_APART,
        "a picture is {ours} tokens to smelt and {theirs} to its rival"
    );
    let asked = [&SEEING[..], &SEEING_CLIENTS].concat();
    let beside_streams = mixture(&client, servers, runs, (&asked, 2000), &STREAMING)?;
    let per_s = LOAD * middle(&beside_streams[1], "/requests_per_s/median")?;
    eprintln!("bench: the same, {per_s:.3} times a second");
    let rate = per_s.to_string();
    let asked = [&SEEING[..], &SEEING_COMING, &["--rate", &rate]].concat();
    let coming = mixture(&client, servers, runs, (&asked, 3000), &STREAMING)?;
    drop(rival);
    eprintln!("bench: steps of {STEADY_STREAMS} streams, served and alone");
    let steps = steady(&inputs, &client, &smelt, runs)?;
    eprintln!("bench: one token in every protocol");
    let token_ms = protocols::token_ms(&smelt, TOKEN_TURNS)?;
    drop(smelt);
    eprintln!("bench: one token under {KEYS} keys");
    let keyed_ms = keyed(&inputs, TOKEN_TURNS)?;
    eprintln!("bench: first pictures");
    let firsts =
        SIDES.iter().map(|&side| Ok((side, first_picture(&inputs, &client, side, STARTS)?)));
    let firsts = firsts.collect::<Result<_>>()?;
    let coming = (per_s, coming);
    let found = Measurements {
        rows,
        beside_prompts,
        beside_streams,
        coming,
        picture_tokens,
        firsts,
        steps,
        token_ms,
        keyed_ms,
        idle_mib,
    };
    report::write(&facts, &inputs.served()?, runs, &found, &inputs.folder)
}

/// What a token takes under one key, and under the last of many that have limits, in milliseconds.
fn keyed(inputs: &Inputs, turns: usize) -> Result<[f64; 2]> {
    let one = inputs.serve_keyed(1)?;
    let many = inputs.serve_keyed(KEYS)?;
    let servers = [(&one, inputs::key(0)), (&many, inputs::key(KEYS - 1))];
    match protocols::keyed_ms(&servers, turns)?[..] {
        [one, many] => Ok([one, many]),
        _ => bail!("there are two servers"),
    }
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
    Ok(taken.map(median))
}

/// What the client saw of each side, asking one thing while another is asked too, in turns.  What is asked
/// comes with the seed of its first run.
fn mixture(
    client: &Client,
    servers: [&Server; 2],
    runs: usize,
    (asked, seed): (&[&str], usize),
    beside: &[&str],
) -> Result<[Vec<Value>; 2]> {
    let mut taken = [Vec::new(), Vec::new()];
    for run in 0..runs {
        // Both sides are asked the same, at the same moments of a run, and nothing twice.
        let seed = (seed + run).to_string();
        let asked = [asked, &["--seed", &seed]].concat();
        for (server, taken) in servers.iter().zip(&mut taken) {
            let beside = client.begin(server, beside)?;
            thread::sleep(LEAD);
            taken.push(client.ask(server, &asked)?);
            beside.end()?;
            // A server that answers has ended what was cut off: the other has the machine for itself.
            client.ask(server, &["--lengths", "16:1", "--concurrency", "1", "--requests", "1"])?;
        }
    }
    Ok(taken)
}

/// How many tokens a picture adds to a prompt.
fn picture_tokens(client: &Client, server: &Server) -> Result<f64> {
    let tokens = |images: &str| {
        let flags = ["--lengths", "64:1", "--concurrency", "1", "--requests", "1", "--seed", "7"];
        let row = client.ask(server, &[&flags[..], &["--images", images]].concat())?;
        number(&row, "/prompt_tokens_hit/median")
    };
    Ok(tokens("1")? - tokens("0")?)
}

/// The time to the first text about the first picture behind a start, of that about those that follow: the
/// median of so many starts.
fn first_picture(inputs: &Inputs, client: &Client, side: usize, starts: usize) -> Result<f64> {
    let flags = ["--lengths", "32:2", "--concurrency", "1", "--requests", "1", "--images", "1"];
    let side = side.to_string();
    let flags = [&flags[..], &["--image-size", &side]].concat();
    let mut ratios = Vec::new();
    for _ in 0..starts {
        let server = inputs.serve()?;
        let time = |_| number(&client.ask(&server, &flags)?, "/ttft_image_ms/median");
        let times: Vec<f64> = (0..PICTURES).map(time).collect::<Result<_>>()?;
        eprintln!("bench: {times:.0?} ms");
        ratios.push(times[0] / median(times[1..].iter().copied()));
    }
    Ok(median(ratios))
}

/// Every step of our side once, on the tiny model, and no clock.
fn smoke() -> Result<()> {
    println!("\n$ cargo xtask bench serve --smoke");
    let inputs = Inputs::tiny()?;
    let server = inputs.serve()?;
    let client = Client { program: inputs.smelt.clone() };
    let flags = ["--lengths", "40:8", "--concurrency", "2", "--requests", "4"];
    client.ask(&server, &flags)?;
    for asked in [&SEEING_CLIENTS[..2], &["--concurrency", "64", "--rate", "10"]] {
        let asked = [&SEEING[..], asked].concat();
        let [seen, _] = mixture(&client, [&server, &server], 1, (&asked, 1000), &STREAMING)?;
        ensure!(number(&seen[0], "/ttft_image_ms/p99")? > 0.0);
    }
    ensure!(picture_tokens(&client, &server)? > 0.0, "a picture is no tokens");
    let idle_mib = idle::memory_mib(&server, 40)?;
    let token_ms = protocols::token_ms(&server, 3)?;
    ensure!(token_ms.iter().all(|ms| *ms > 0.0));
    drop(server);
    keyed(&inputs, 3)?;
    first_picture(&inputs, &client, SIDES[0], 1)?;
    println!("texts, pictures beside streams and 40 idle clients ({idle_mib:.1} MiB) were served");
    Ok(())
}
