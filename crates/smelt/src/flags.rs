//! Declares the command line.

#[cfg(any(test, not(feature = "build")))]
pub(crate) mod absent;
mod bench;
#[cfg(feature = "build")]
mod building;
mod bundle;
mod cache;
#[cfg(feature = "build")]
mod checkpoint;
pub(crate) mod deliver;
mod doctor;
#[cfg(feature = "build")]
mod fit;
pub(crate) mod fleet;
mod image_options;
#[cfg(feature = "build")]
mod onnx;
mod sampling;
mod serve;
mod show;
mod watch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Command, CommandFactory as _, Parser};
use smelt_backend::KvType;
use smelt_exec::Space;
use smelt_plan::{Rung, Side, quantity};
use smelt_runtime::image::{FRAMES_MAX, Wanted};

use crate::cards::DeviceChoice;
use crate::console::Volume;
use crate::paint::When;
#[cfg(not(feature = "build"))]
pub(crate) use absent::{ModelCommand, PipelineCommand};
pub(crate) use bench::{AccuracyFlags, AccuracyOfFlags, BenchCommand, BenchServeFlags};
#[cfg(feature = "build")]
pub(crate) use bench::{Arm, ArmsFlags};
#[cfg(feature = "build")]
pub(crate) use building::{ModelCommand, PipelineCommand};
pub(crate) use bundle::{BundleFlags, UnbundleFlags};
pub(crate) use cache::{CacheCommand, DuFlags, FsckFlags, GcFlags, LsFlags, PinFlags, PinsFlags};
#[cfg(feature = "build")]
pub(crate) use checkpoint::{
    CalibrateFlags, ExportFlags, ExportPart, FloatType, QuantizeFlags, TokenInput,
};
pub(crate) use deliver::{
    DeliverCommand, DeliverPullFlags, DeliverPushFlags, DeliverShowFlags, DeliverSignFlags,
    PlaceFlags,
};
pub(crate) use doctor::DoctorFlags;
#[cfg(feature = "build")]
pub(crate) use fit::{BuildFlags, FitFlags, InitFlags, OverruleFlags};
#[cfg(feature = "build")]
pub(crate) use fleet::WorkerFlags;
pub(crate) use fleet::{
    FleetCommand, FleetFlags, FleetStatusFlags, FleetVerifyFlags, HeartbeatFlags, KeyFlags,
    KeygenFlags, NamedWorker, PeerFlags, ProvenanceFlags, Push, PushFlags, PushLimits, ShareFlags,
    TrustFlags, UntrustFlags, WORKER_WAIT,
};
pub(crate) use image_options::ImageFlags;
#[cfg(feature = "build")]
pub(crate) use onnx::{Judge, OnnxCommand, Output};
pub(crate) use sampling::SamplingFlags;
pub(crate) use serve::{DoorFlags, LimitFlags, MemoryFlags, ServeFlags};
#[cfg(feature = "build")]
pub(crate) use show::ResumeFlags;
pub(crate) use show::{
    CompletionsFlags, ConfigFlags, ForgetFlags, GraphFlags, GraphFormat, ListFlags, ManFlags,
    ReportFlags, RmFlags, RunsCommand, RunsFlags,
};
pub(crate) use watch::WatchFlags;

/// The version, and which commit and target it was built of and for.
const VERSION: &str = crate::version::TEXT;

/// The variables that smelt reads.
const ENVIRONMENT: &str = "\
Environment:
  SMELT_CACHE     The store, where everything that is built lies (default: ./cache)
  SMELT_API_KEY   The key that clients of `smelt serve` must send
  HF_HOME         Where what is fetched lies (default: ~/.cache/huggingface)
  HF_ENDPOINT     The hub that hf: means, as in a mirror (default: https://huggingface.co)
  HF_TOKEN        The token for gated and private models
  HF_HUB_OFFLINE  1: ask no hub, use what was fetched
  SMELT_CONFIG    The only file of configuration: smelt config
  SMELT_KEEP_FREE  Memory that stages leave to other programs, as in 1GiB
  SMELT_FLEET     The server that shares results, as in grpc://10.0.0.5:5200
  SMELT_FLEET_TOKEN  The token that it wants
  SMELT_FLEET_LOCK  The server of leases, as in nats://10.0.0.5:4222; its token: SMELT_FLEET_LOCK_TOKEN
  SMELT_FLEET_HEARTBEAT  How often serve, run and fleet peer announce this board there, as in 1m
  SMELT_FLEET_PEERS  Boards of this site that are asked before the server, as in 10.0.0.7:5210, or mdns
  SMELT_WORKER    The machine that builds stages which say where, as in ssh://orin
  SMELT_CONFINE   The only way to confine stages: landlock, mounts or none (default: what there is)
  SMELT_TOKENS    Where what runs of this machine share is locked (default: /run/lock/smelt-tokens)
  NO_COLOR        Set: no colours, unless --color says otherwise";

/// Where a command's store is, for those that have one.
const STORE: &str = "The store is $SMELT_CACHE, else what `smelt config` says, else ./cache.";
const WITH_STORE: &[&str] = &[
    "demo", "build", "run", "resume", "plan", "explain", "out", "runs", "report", "graph", "ls",
    "rm", "chat", "serve", "embed", "cache", "bench",
];

/// The whole command line, with what the declarations cannot say.
pub(crate) fn command() -> Command {
    let with_store = |command: Command, name: &&str| {
        command.mut_subcommand(name, |subcommand| subcommand.after_help(STORE))
    };
    WITH_STORE.iter().fold(Flags::command(), with_store)
}

/// Turns vision-language models into inference engines on devices too small for the job.
#[derive(Debug, Parser)]
#[command(name = "smelt", version = VERSION, max_term_width = 100, after_help = ENVIRONMENT)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) command: Option<Subcommand>,
    #[command(flatten)]
    pub(crate) manner: MannerFlags,
}

/// How smelt speaks.
#[derive(Debug, Args)]
pub(crate) struct MannerFlags {
    /// Tell every word of what goes on
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Tell nothing but the answer and what is wrong
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Whether words are coloured: on a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto")]
    pub(crate) color: When,
    /// The only file of configuration, instead of /etc/smelt/config.toml and ~/.config/smelt/config.toml
    #[arg(long, value_name = "FILE", global = true, env = "SMELT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

impl MannerFlags {
    /// How much is told.
    pub(crate) fn volume(&self) -> Volume {
        match (self.verbose, self.quiet) {
            (true, _) => Volume::Verbose,
            (_, true) => Volume::Quiet,
            _ => Volume::Usual,
        }
    }
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Ask a small model that smelt carries about a picture: no download, no build
    Demo(DemoFlags),
    #[command(flatten)]
    Pipeline(PipelineCommand),
    /// Say why a stage would be built or not: what changed since the last run
    Explain(ExplainFlags),
    /// Print the directory of a stage's sealed output
    Out(OutFlags),
    /// List the runs so far, newest first
    Runs(RunsFlags),
    /// Tell what a run did: a table, JSON, a page for a browser, a trace
    Report(ReportFlags),
    /// Draw a pipeline, coloured by what is built
    Graph(GraphFlags),
    /// List the deployments that are built, by the names that chat, serve and embed take
    Ls(ListFlags),
    /// Remove deployments by name, with what only they need; what else needs it is told
    Rm(RmFlags),
    /// Write built deployments, or stages, with their records as one file for another machine
    Bundle(BundleFlags),
    /// Unpack such a file into the store, or into a directory that needs none
    Unbundle(UnbundleFlags),
    /// Hand a built deployment over by a registry of OCI artifacts, signed: push, pull, sign, show
    #[command(subcommand)]
    Deliver(DeliverCommand),
    /// Ask a built model about text and pictures
    Chat(ChatFlags),
    /// Answer OpenAI-style requests over HTTP with a built model
    Serve(Box<ServeFlags>),
    /// Print the embeddings of texts by a built encoder, one JSON array a line
    Embed(EmbedFlags),
    /// Print texts by how well they answer a query, best first, each behind its score
    Rerank(RerankFlags),
    #[command(flatten)]
    Model(ModelCommand),
    /// Look after the store: how large it is, what may go, whether it is sound
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Share results with other machines: keys, whom this one believes, what the server says
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Print what is true of a stage's output, as in-toto's statement: what made it, of what, with what
    Provenance(ProvenanceFlags),
    /// Compare what was built
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print what is configured on this machine, and where each value comes from
    Config(ConfigFlags),
    /// Examine this device: what would make builds fail or slow, and the command that cures it
    Doctor(DoctorFlags),
    /// Show what memory, GPU and attempts do: live, as lines, or as JSON
    Watch(WatchFlags),
    /// Print the JSON Schema of the pipeline file, for editors
    Schema,
    /// Print completions for a shell, as in: smelt completions bash > /etc/bash_completion.d/smelt
    Completions(CompletionsFlags),
    /// Print a manual page, as in: smelt man run | man -l -
    Man(ManFlags),
    /// Run one part of a stage (smelt starts these itself)
    #[command(hide = true)]
    Stage(StageFlags),
}

/// Which pipeline, and with which params.
#[derive(Debug, Args)]
pub(crate) struct PipelineFlags {
    /// The pipeline file
    pub(crate) pipeline: PathBuf,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

impl PipelineFlags {
    /// The folder that the pipeline's relative paths start from; empty for the one we are in.
    pub(crate) fn folder(&self) -> &Path {
        self.pipeline.parent().unwrap_or_else(|| Path::new(""))
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// Build only this stage and what it needs (may be given several times)
    #[arg(long, value_name = "STAGE")]
    pub(crate) only: Vec<String>,
    /// Build this stage even if the store has its result (may be given several times)
    #[arg(long, value_name = "STAGE")]
    pub(crate) force: Vec<String>,
    /// Build this stage once more and compare: exit 1 where it made other bytes (may be given several
    /// times)
    #[arg(long, value_name = "STAGE")]
    pub(crate) check: Vec<String>,
    /// Build the stages of one side, host or device, as they say by `on`, and what these need; what the
    /// other side builds must be here, say by smelt unbundle
    #[arg(long, value_name = "SIDE", value_parser = side)]
    #[arg(conflicts_with_all = ["only", "force", "check"])]
    pub(crate) on: Option<Side>,
    /// After a failure, go on with the stages that do not need the failed one
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Stages at once; memory, not cores, is what small devices lack
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = jobs)]
    pub(crate) jobs: usize,
    /// Start stages although this device is not expected to hold them
    #[arg(long)]
    pub(crate) overcommit: bool,
    /// Memory that stages leave to other programs, as in 1GiB
    #[arg(long, value_name = "SIZE", env = "SMELT_KEEP_FREE", value_parser = size)]
    pub(crate) keep_free: Option<u64>,
    /// How soon this run gets tokens (of `resources`) that other runs wait for, too: the higher, the
    /// sooner, from -100 to 100
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-100..=100))]
    pub(crate) priority: i32,
    /// Exit with 5 where the kernel cannot hold stages to what they declare that they write
    #[arg(long)]
    pub(crate) require_confinement: bool,
    /// Exit with 7 instead of waiting when another run is building the same thing
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// This is the warm-up of another run's stage (smelt starts these itself)
    #[arg(long, hide = true)]
    pub(crate) warm_up: bool,
    /// A trial: the stage of --only is tried once, behind this (smelt starts these itself)
    #[arg(long, hide = true, value_name = "RUNG", requires = "only", value_parser = rung)]
    pub(crate) begin: Vec<Rung>,
    /// The same behind nothing
    #[arg(long, hide = true)]
    pub(crate) once: bool,
    /// A file with outputs of the fleet that the stages of --only are made of (smelt worker names it itself)
    #[arg(long, hide = true, value_name = "FILE", requires = "only")]
    pub(crate) given: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// The machine that builds stages which say where, as in ssh://orin or ssh://USER@HOST:PORT/PATH/OF/smelt; it needs no server
    #[arg(long, value_name = "ADDRESS", env = "SMELT_WORKER", value_parser = fleet::worker)]
    #[arg(default_value = "", hide_default_value = true, help_heading = "Fleet")]
    pub(crate) worker: NamedWorker,
    /// How long a stage that says where waits for a worker of the fleet that takes it
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = fleet::worker_wait)]
    #[arg(help_heading = "Fleet")]
    pub(crate) worker_wait: Duration,
    /// Which results this run publishes to the fleet
    #[arg(long, value_name = "WHICH", default_value = "never", help_heading = "Fleet")]
    pub(crate) push: Push,
    #[command(flatten)]
    pub(crate) push_limits: PushLimits,
    /// Announce this board to the fleet's lock server when the run ends, signed, if any time is named, as in 1m
    #[arg(long, value_name = "TIME", env = "SMELT_FLEET_HEARTBEAT", value_parser = fleet::heartbeat)]
    #[arg(default_value = "", hide_default_value = true, help_heading = "Fleet")]
    pub(crate) heartbeat: fleet::Every,
    /// Print the report as JSON instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Print what happens as JSON lines while it happens; the last one has the report
    #[arg(long, conflicts_with = "json")]
    pub(crate) events: bool,
}

impl RunFlags {
    /// Whether another command started it, and nobody goes on with it: a stage is tried once.
    pub(crate) fn is_trial(&self) -> bool {
        self.warm_up || self.once || !self.begin.is_empty()
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// Print the plan as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// The stage
    pub(crate) stage: String,
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    /// Print the explanation as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OutFlags {
    #[command(flatten)]
    pub(crate) pipeline: PipelineFlags,
    /// The stage
    pub(crate) stage: String,
}

#[derive(Debug, Args)]
pub(crate) struct DemoFlags {
    /// What to ask; the model knows pictures of coloured shapes and signs, and nothing else
    pub(crate) prompt: Option<String>,
    /// A PNG, JPEG, WebP or GIF picture of your own to ask about (may be given several times)
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ChatFlags {
    /// A pipeline that builds a deployment, PIPELINE#STAGE, a deployment's directory, or a name that
    /// `smelt ls` lists
    pub(crate) target: PathBuf,
    /// What to ask; without it, a conversation: a line of standard input a turn
    pub(crate) prompt: Option<String>,
    /// A PNG, JPEG, WebP or GIF picture to ask about (may be given several times)
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Vec<PathBuf>,
    /// A film to ask about, MP4, QuickTime, WebM or Matroska of at most 64 MiB (may be given several times); ffmpeg
    /// reads it
    #[arg(long, value_name = "FILE")]
    pub(crate) video: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) frames: FrameFlags,
    /// Do not hold engines against the reference behind the conversation, where that was left for later
    #[arg(long)]
    pub(crate) no_check: bool,
    /// The most tokens to answer with
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) max_tokens: usize,
    /// The most memory of the whole command, as in 3GiB (default: what the deployment says, else what is free)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// How keys and values are kept: f32, f16 or int8, a byte and a scale for each head (default: what the deployment
    /// says, else f16)
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv: Option<KvType>,
    /// The longest conversation with its answer, up to the positions of the model (default: what the
    /// deployment says, else what the engine was built for)
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) max_seq_len: Option<u32>,
    /// What runs it: the GPU where card and engine agree (auto), the processors, or a card by its number, as in cuda:1
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value_t)]
    pub(crate) device: DeviceChoice,
    #[command(flatten)]
    pub(crate) image_options: ImageFlags,
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
    /// Fetch and build a model of which nothing is built without asking, however large it is
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

/// Which frames of films are looked at.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FrameFlags {
    /// Most frames of a film that are looked at
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=FRAMES_MAX as i64))]
    pub(crate) max_frames: u16,
    /// Frames of each second that are looked at (default: as many as the model's own processor does)
    #[arg(long, value_name = "N", value_parser = frames_per_second)]
    pub(crate) fps: Option<f64>,
}

impl FrameFlags {
    pub(crate) fn wanted(self) -> Wanted {
        Wanted { fps: self.fps, frames: None, frames_max: self.max_frames.into() }
    }
}

fn frames_per_second(text: &str) -> Result<f64, String> {
    let fps = text.parse().ok().filter(|fps: &f64| *fps > 0.0 && fps.is_finite());
    fps.ok_or_else(|| "must be more than 0".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct EmbedFlags {
    /// A pipeline that builds an encoder's deployment, PIPELINE#STAGE, a deployment's directory, or a
    /// name that `smelt ls` lists
    pub(crate) target: PathBuf,
    /// What to embed
    #[arg(required = true, value_name = "TEXT")]
    pub(crate) texts: Vec<String>,
    /// What runs it: the GPU where card and engine agree (auto), the processors, or a card by its number, as in cuda:1
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value_t)]
    pub(crate) device: DeviceChoice,
    /// Print one JSON document with the texts and their numbers of tokens
    #[arg(long)]
    pub(crate) json: bool,
    /// Fetch and build a model of which nothing is built without asking, however large it is
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RerankFlags {
    /// A pipeline that builds a cross-encoder's deployment, PIPELINE#STAGE, a deployment's directory, or
    /// a name that `smelt ls` lists
    pub(crate) target: PathBuf,
    /// What is asked
    pub(crate) query: String,
    /// What may answer it
    #[arg(required = true, value_name = "TEXT")]
    pub(crate) texts: Vec<String>,
    /// Print one JSON document with all scores
    #[arg(long)]
    pub(crate) json: bool,
    /// Fetch and build a model of which nothing is built without asking, however large it is
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StageFlags {
    #[command(subcommand)]
    pub(crate) part: StagePart,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum StagePart {
    /// Lead a stage's processes
    Shim {
        /// The name spaces that hold them: own, strict, shared, own-privileged, shared-privileged or free
        #[arg(value_parser = |word: &str| Space::parse(word).ok_or("own, strict, shared, own-privileged, shared-privileged or free"))]
        space: Space,
        /// Enter a user name space that the supervisor maps
        #[arg(long)]
        mapped: bool,
    },
    /// Do the work of a stage of smelt's own
    Work {
        /// The stage's name, for whoever lists processes
        name: Option<String>,
    },
    /// Lead another program's server until standard input ends
    Lead {
        /// The program
        program: OsString,
        /// What it is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Read a film by ffmpeg, confined
    Film {
        /// What ffmpeg is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// More attempts at once than this is a mistake: every one is a whole model in memory.
const JOBS_MAX: usize = 256;

fn kv_type(text: &str) -> Result<KvType, String> {
    KvType::parse(text).ok_or_else(|| "it is f32, f16 or int8".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    quantity::bytes(text).map_err(|error| error.to_string())
}

pub(crate) fn side(text: &str) -> Result<Side, String> {
    Side::parse(text).ok_or_else(|| format!("one of {}", Side::WORDS.join(", ")))
}

/// A rung that may come before any attempt.
pub(crate) fn rung(text: &str) -> Result<Rung, String> {
    let all = [Rung::Settle, Rung::WarmUp, Rung::DropCaches, Rung::TemporarySwap];
    let words = || all.map(Rung::name).join(", ");
    all.into_iter().find(|rung| rung.name() == text).ok_or_else(|| format!("one of {}", words()))
}

pub(crate) fn jobs(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|jobs| (1..=JOBS_MAX).contains(jobs))
        .ok_or_else(|| format!("a whole number from 1 to {JOBS_MAX}"))
}
