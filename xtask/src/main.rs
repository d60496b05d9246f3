//! Runs the development commands: `cargo xtask ci`, `bench`, `cma`, `conformance`, `containers`, `cuda`, `demo`, `fit`, `fleet`, `fuzz`, `llama`, `mutants`,
//! `onnxruntime`, `operation`, `other-kernel`, `picture`, `power-cuts`, `sanitize`, `scale`, `soak`, `tidy`, `toolchains`,
//! `transformers`, `walks`.

mod bench;
mod check;
mod ci;
mod cma;
mod conformance;
mod containers;
mod cross;
mod cuda;
mod debian;
mod demo;
mod fetch;
mod fleet;
mod fuzz;
mod guest;
mod llama;
mod mutants;
mod nightly;
mod node;
mod nvrtc;
mod onnxruntime;
mod operation;
mod other_kernel;
mod page;
mod picture;
mod power_cuts;
mod python;
mod sanitize;
mod scale;
mod server;
mod shapes;
mod soak;
mod tidy;
mod toolchains;
mod transformers;
mod unchanged;
mod walks;

use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask aarch64|check|ci|bench front|bench workflow|bench watch|bench cpu|bench serve|bench cuda|bench film|bench first|bench bundle|bench fleet|bench boards|bench site|bench router|bench upstream|cma|conformance|containers|cuda|demo|fit|fleet|fuzz|llama|mutants|shapes|onnxruntime|operation|other-kernel|picture|power-cuts|sanitize|scale|soak|tidy|toolchains|transformers|walks

  aarch64
         the engine's tests as the boards compute, under qemu-user
  check [COMMIT]
         what is quick of ci, for what differs from a commit, the last one where none is named: format, lints,
         unit tests of the crates that changed and of those that depend on them, test programs that changed
  ci [--all]
         everything a change must pass: format, lints, tests, docs, tidy, onnxruntime, conformance, smoke runs of
         bench, operation, fleet, walks, aarch64, exhausted contiguous memory, 20 power cuts; what held within a week with the
         same inputs is left out, but for --all
  bench front [--runs N] [CASE]...
         exporters, quantisers and surgery at true size beside a numpy rival, held to their targets
  bench workflow [--runs N] [CASE]...
         runs with nothing to do, the cost of a stage, plans and hashing beside ninja and openssl
  bench watch [--runs N]
         what sampling 11 and 51 processes ten times a second costs the supervisor
  bench cpu [--runs N] [--threads N] [--only TEXT]... [--smoke]
         the CPU engine beside llama.cpp and ONNX Runtime, weights of true size, and beside what memory gives
  bench serve [--runs N] [--smoke]
         smelt serve beside llama-server, equal weights of true size, one client; builds llama-server
  bench cuda [FOLDER] | bench cuda --results FILE
         a folder with what times the decoder for GPUs and a tower at true size on a machine with a card, the tower in
         PyTorch, too; of what that printed a page in docs/figures, held to targets
  bench fleet [--runs N]
         1 GiB shared by a server of this machine beside a client that sends and fetches whole blobs
  bench fleet deltas [--runs N] [--program FILE] [CASE]...
         what a changed version of 1 GiB costs who has the old one, beside casync and zchunk of Debian; some 10 GB of disk
  bench fleet cached [--runs N]
         a fresh board that fetches a pipeline of twelve stages, beside fetching its last files alone; judging a statement
  bench boards [--boards N]
         1,000 boards that take one output from a server of this machine, in turns and at once, beside 100
  bench site [--boards N] [--mib N] [--mdns] [--program FILE]
         20 boards in name spaces that fetch 256 MiB from each other and by one line of 20 Mbit/s; needs root
  bench bundle [--runs N]
         moving 2 GiB of sealed output beside tar and sha256sum
  bench film [--runs N] [minute] [small-minute] [ten-minutes]
         what showing a film takes beside ffmpeg that decodes it
  bench first [--runs N]
         from a command to its first answer: smelt chat of a GGUF file, and llama-server; builds that
  bench upstream [--runs N]
         llama-server alone and behind smelt serve, one stream; builds llama-server
  bench router [--questions N] [--smoke]
         answers, image tokens and times of one model that looks closely everywhere, nowhere, or where it pays
  cma
         smelt for aarch64 in a guest whose contiguous memory is exhausted: seen, classed, retried;
         and low for a harmless reason: no alarm
  conformance
         smelt serve on the demo and on SmolLM2 under the official clients of four APIs and the libraries above them,
         of Python and JavaScript, its page in Chromium, then requests that schemathesis makes up from /openapi.json
  containers
         stages that start containers by docker's daemon and by podman: measured, limited and killed with them; needs root
  cuda [FOLDER]
         a folder of some MB that tries the CUDA back end on a machine with a GPU, by the driver and python3 alone: test
         programs, engines with their kernels, run.py; needs NVRTC
  demo   what `smelt demo` carries, built and packed anew: crates/smelt/demo/model.gz
  fit [--only TEXT]... [--smoke]
         what `smelt fit` says of twelve models of all families beside what their builds and answers really take
  fleet
         two boards share what one has built by a real server, which then goes and loses half of what it had
  fuzz [TARGET]...
         each fuzz target for a minute; installs nightly and cargo-fuzz where they are not
  llama  text models beside llama.cpp, compiled once: the tokens of ten thousand lines by six vocabularies, and a
         Q4_K_M file of its own quantiser, built and asked (some 10 minutes for the compiler)
  mutants [--only NAME]... [--shard K/N] [--minutes M]
         cargo-mutants over what decides, by rows: of the mutants that compile the crate's own tests must catch 95 %, and
         xtask/mutants/survivors.txt must say why the others live; no part of a row is begun after M minutes (120)
  onnxruntime
          the exported golden graphs in onnxruntime against what transformers computed
  operation
         the unit by systemd, the alerts by Prometheus, the container file's paths and flags
  other-kernel [--if-possible]
         the attacks on confinement, strict stages and stores on vfat, exFAT and 9P in a virtual machine whose kernel
         has no Landlock
  picture
         the picture of the README, from a server that runs: the page answering about the demo
  power-cuts [--points N] [--seed S] [--again]
         smelt in a virtual machine whose power is cut N times: nothing it told of may be lost
  sanitize
         the engine's tests under Miri where that can run them, then all kernels under AddressSanitizer;
         installs nightly and Miri where they are not
  shapes train|eval|train-clip|generate DIR [FLAG]...
         train the models of tests/data/shapes-vl, score one, train the CLIP of tests/data/shapes-clip, or
         draw held-out pictures into DIR
  scale [--memory 1536MiB] [--keep]
         the 2B pipeline on weights of true size inside a control group of so much memory, then its
         decoder build killed for want of memory and done by its retry
  soak [NAME]...
         the sweeps of ci without their bounds: walks, every kernel, a million worlds, the store under every crash,
         pictures of all shapes shown to random models of true size, llama, sanitize, exhausted contiguous memory,
         another kernel, 200 power cuts, fuzz, then mutants; or those that are named
  tidy   what compilers do not check: crate edges, file headers, pipelines, pages
  toolchains
         vendors' tools that run here without their devices: TensorRT for RTX, and the headers that the shim is held to;
         what is run, a stand-in or projected
  transformers
         tiny models that see, written for other tools in every format, opened and asked by transformers (5 GB of packages)
  walks  every command of the README as it stands, answers included; models that only a hub has are
         random weights of the same sizes; ci asks the tests' smelt, and builds no other";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check::run(None),
        ["check", since] => check::run(Some(since)),
        ["ci"] => ci::run(false),
        ["ci", "--all"] => ci::run(true),
        // Started by `ci`.
        ["ci", "--beside"] => ci::beside(),
        ["aarch64"] => cross::test_engine(),
        ["llama"] => llama::run(),
        ["mutants", ref rest @ ..] => mutants::run(rest),
        ["onnxruntime"] => onnxruntime::run(),
        ["operation"] => operation::run(),
        ["bench", "front", ref rest @ ..] => bench::front(rest),
        ["bench", "workflow", ref rest @ ..] => bench::workflow::run(rest),
        ["bench", "watch", ref rest @ ..] => bench::watch::run(rest),
        ["bench", "cpu", ref rest @ ..] => bench::cpu::run(rest),
        ["bench", "serve", ref rest @ ..] => bench::serve::run(rest),
        ["bench", "cuda", ref rest @ ..] => bench::cuda::run(rest),
        ["bench", "bundle", ref rest @ ..] => bench::bundle::run(rest),
        ["bench", "fleet", "cached", ref rest @ ..] => bench::cached::run(rest),
        ["bench", "fleet", "deltas", ref rest @ ..] => bench::deltas::run(rest),
        ["bench", "fleet", ref rest @ ..] => bench::fleet::run(rest),
        ["bench", "boards", ref rest @ ..] => bench::boards::run(rest),
        ["bench", "site", ref rest @ ..] => bench::site::run(rest),
        ["bench", "film", ref rest @ ..] => bench::film::run(rest),
        ["bench", "first", ref rest @ ..] => bench::first::run(rest),
        ["bench", "router", ref rest @ ..] => bench::router::run(rest),
        ["bench", "upstream", ref rest @ ..] => bench::upstream::run(rest),
        // Started by `bench workflow`, and measured.
        ["floor", ref rest @ ..] => bench::workflow::floor(rest),
        // Started by `bench` for each process it measures.
        ["measure", ..] => bench::measure::child(&arguments[1..]),
        ["cma"] => cma::run(),
        ["conformance"] => conformance::run(),
        ["cuda", ref rest @ ..] => cuda::run(rest),
        ["demo"] => demo::run(),
        ["fit", ref rest @ ..] => bench::fit::run(rest),
        ["fuzz", ref rest @ ..] => fuzz::run(rest),
        ["other-kernel", ref rest @ ..] => other_kernel::run(rest),
        ["picture"] => picture::run(),
        ["power-cuts", ref rest @ ..] => power_cuts::run(rest),
        ["sanitize"] => sanitize::run(),
        ["scale", ref rest @ ..] => scale::run(rest),
        ["shapes", ref rest @ ..] => shapes::run(rest),
        ["soak", ref rest @ ..] => soak::run(rest),
        ["tidy"] => tidy::run(),
        ["toolchains"] => toolchains::run(),
        ["containers"] => containers::run().map(drop),
        ["fleet"] => fleet::run().map(drop),
        ["transformers"] => transformers::run(),
        ["walks"] => walks::run(walks::Walker::Reader),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Where cargo builds.
fn target() -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// The repository's root: the folder above this crate.
fn root() -> std::path::PathBuf {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("xtask lies in the repository").to_owned()
}
