//! The flags of `smelt serve`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use smelt_backend::KvType;
use smelt_plan::quantity;
use smelt_runtime::image::FRAMES_MAX;
use smelt_runtime::service::KvMemory;
use smelt_serve::HeaderValue;

use super::{HeartbeatFlags, ImageFlags, kv_type, size};
use crate::cards::DeviceChoices;

/// More answers at once than this is a mistake: each has keys and values of its own.
const BATCH_MAX: usize = 256;

/// More connections than this are more than a process may have files.
const CONNECTIONS_MAX: u32 = 65_536;

#[derive(Debug, Args)]
pub(crate) struct ServeFlags {
    /// Pipelines that build deployments, PIPELINE#STAGE, deployments' directories, names that `smelt ls`
    /// lists, or what is delivered at oci://REGISTRY/NAME:TAG.  The first is loaded
    /// at once, others when they are asked for
    #[arg(required = true, value_name = "TARGET")]
    pub(crate) targets: Vec<PathBuf>,
    /// Where to listen; port 0 is any that is free
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000", value_parser = addr)]
    pub(crate) addr: SocketAddr,
    /// What clients call a model, in the order of the targets (default: what its deployment does)
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) model_name: Vec<String>,
    /// Look for newer deployments of the pipelines, or versions of what is delivered, so often, and put them in place
    /// without a pause; SIGHUP asks for it once (default of what is delivered: 60s)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) watch: Option<Duration>,
    /// Golden prompts, as `verify` takes them, that a newer deployment must answer right, or the older one
    /// stays; an encoder has only to run
    #[arg(long, value_name = "DIR")]
    pub(crate) golden: Option<PathBuf>,
    /// Where a target is a directory whose deployment names another program's server: start that program
    #[arg(long)]
    pub(crate) allow_program: bool,
    /// A chat template (Jinja) in the place of the deployments' own
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// What runs it: the GPU where card and engine agree (auto), the processors, a card by its number, as in cuda:1, or
    /// several, each with the whole model, as in cuda:0,cuda:1
    #[arg(long, value_name = "auto|cpu|cuda[:N][,cuda:N…]", default_value_t)]
    pub(crate) device: DeviceChoices,
    #[command(flatten)]
    pub(crate) doors: DoorFlags,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    #[command(flatten)]
    pub(crate) memory: MemoryFlags,
    #[command(flatten)]
    pub(crate) image_options: ImageFlags,
    #[command(flatten)]
    pub(crate) heartbeat: HeartbeatFlags,
    /// Write the log as JSON, an object a line
    #[arg(long)]
    pub(crate) log_json: bool,
    /// Send traces of requests to a collector of OpenTelemetry's, by OTLP/HTTP, as in http://localhost:4318
    /// (default: what OTEL_EXPORTER_OTLP_ENDPOINT says, else none)
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
    /// Write what engines did and when into a file when the server ends: a trace that chrome://tracing and Perfetto open
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Warn of requests that take longer
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) slow: Duration,
    /// How long answers may still take after SIGTERM or SIGINT
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub(crate) drain: Duration,
    /// Fetch and build a model of which nothing is built without asking, however large it is
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Override a param of the pipeline
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) sets: Vec<String>,
}

/// Who may ask, and what for.
#[derive(Debug, Args)]
pub(crate) struct DoorFlags {
    /// A key that clients must send (may be given several times); others see it in the list of
    /// processes, so prefer a file or the variable
    #[arg(long, value_name = "KEY", env = "SMELT_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// A file of such keys, one a line, each with a name and limits behind it if it has some: KEY name=NAME
    /// requests=N tokens=N (both a minute) slots=N kept=SIZE metrics=yes (told what all keys use)
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Let keys reuse what was read for others: quicker, but counts and times tell a key what others ask
    #[arg(long)]
    pub(crate) share_cache: bool,
    /// A PEM file of certificates: serve HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// A PEM file of the certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// An origin whose web pages may ask, as in `https://example.org`; * is any (may be given several
    /// times)
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub(crate) cors_origin: Vec<HeaderValue>,
    /// A name under which a server without keys may be asked, beside localhost and addresses, as in `board.local` (may
    /// be given several times)
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub(crate) allow_host: Vec<String>,
    /// Fetch pictures and films that requests name by http(s), and record cameras by rtsp, from hosts of the public internet
    #[arg(long)]
    pub(crate) allow_remote_images: bool,
    /// Fetch them from private networks and this machine, too: whoever may ask can make the server ask there
    #[arg(long, requires = "allow_remote_images")]
    pub(crate) allow_private_images: bool,
}

/// How much at once.
#[derive(Debug, Args)]
pub(crate) struct LimitFlags {
    /// Answers at once (default: what the deployment says, else 8)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=BATCH_MAX as i64))]
    pub(crate) batch: Option<u16>,
    /// Requests that may wait; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) queue: usize,
    /// Most pictures and clips of a request
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) max_images: usize,
    /// Most frames of a clip that are looked at, equally far apart; as many as vLLM looks at by itself
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=FRAMES_MAX as i64))]
    pub(crate) max_frames: u16,
    /// The longest request; larger ones are refused with 413
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = body)]
    pub(crate) max_body: usize,
    /// Let clients list their slots (GET /slots), as llama-server does
    #[arg(long)]
    pub(crate) slots: bool,
    /// Let clients save in DIR what their slots hold, and put it back (POST /slots/ID?action=save)
    #[arg(long, value_name = "DIR")]
    pub(crate) slot_save_path: Option<PathBuf>,
    /// The most that is saved of all slots together
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = size, requires = "slot_save_path")]
    pub(crate) slot_save_max: u64,
    /// Connections at once; more wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=i64::from(CONNECTIONS_MAX)))]
    pub(crate) max_connections: u32,
}

/// What memory it may take.
#[derive(Debug, Args)]
pub(crate) struct MemoryFlags {
    /// The most memory of the whole server, as in 3GiB (default: what its deployments say, the least of them; else
    /// what is free)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Memory for keys and values, as in 512MiB or 50% of what is free (default: what is free)
    #[arg(long, value_name = "SIZE", value_parser = kv_memory)]
    pub(crate) kv_memory: Option<KvMemory>,
    /// How keys and values are kept: f32, f16 or int8, a byte and a scale for each head (default: what the deployment
    /// says, else f16)
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv: Option<KvType>,
    /// The longest prompt with its answer, up to the positions of the model (default: what the deployment
    /// says, else what the engine was built for)
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) max_seq_len: Option<u32>,
}

fn addr(text: &str) -> Result<SocketAddr, String> {
    if text.parse::<u16>().is_ok() {
        return Err(format!("the host is missing, as in 127.0.0.1:{text}"));
    }
    let found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    found.into_iter().next().ok_or_else(|| "the host has no address".to_owned())
}

/// An origin as browsers write it; any other text would never be equal to one.
fn origin(text: &str) -> Result<HeaderValue, String> {
    let is_origin = text == "*"
        || text.split_once("://").is_some_and(|(scheme, place)| {
            let (host, port) = match place.rsplit_once(':') {
                Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
                _ => (place, None),
            };
            let is_host = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._[]:".contains(&byte)
            };
            !scheme.is_empty()
                && scheme
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                && !host.is_empty()
                && host.bytes().all(is_host)
                && port.is_none_or(|port| port.parse::<u16>().is_ok())
        });
    let why = "an origin is SCHEME://HOST or SCHEME://HOST:PORT in small letters, without a path or slash behind it; or *";
    let origin = HeaderValue::from_str(text).ok().filter(|_| is_origin);
    origin.ok_or_else(|| why.to_owned())
}

/// A name as browsers write it, in small letters; a port does not matter, so none is said.
fn host(text: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_part) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("a host is a name alone, without scheme, port or path".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    quantity::duration(text).map_err(|error| error.to_string())
}

/// A body's budget is counted in KiB, and more than a few GiB is no request.
fn body(text: &str) -> Result<usize, String> {
    const BYTES_MAX: u64 = 4 << 30;
    match size(text)? {
        bytes if bytes > BYTES_MAX => Err("at most 4GiB".to_owned()),
        bytes => Ok(bytes as usize),
    }
}

fn kv_memory(text: &str) -> Result<KvMemory, String> {
    let Some(percent) = text.strip_suffix('%') else { return size(text).map(KvMemory::Bytes) };
    let percent: Option<f64> = percent.parse().ok().filter(|part| *part > 0.0 && *part <= 100.0);
    let percent = percent.ok_or_else(|| "a part is more than 0% and at most 100%".to_owned())?;
    Ok(KvMemory::Part(percent / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_or_a_part() {
        assert_eq!(kv_memory("512MiB"), Ok(KvMemory::Bytes(512 << 20)));
        assert_eq!(kv_memory("50%"), Ok(KvMemory::Part(0.5)));
        for text in ["0%", "101%", "half", "%", "NaN%"] {
            assert!(kv_memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_origin_is_what_browsers_send() {
        for text in
            ["*", "https://a.example", "http://localhost:3000", "http://[::1]", "http://[::1]:80"]
        {
            assert_eq!(origin(text).unwrap(), text);
        }
        for text in [
            "",
            "a.example",
            "https://",
            "https://a.example/",
            "https://a.example/x",
            "https://A.example",
            "http://a:port",
            "https://a, https://b",
            "://a",
            "null",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_is_a_name_alone() {
        assert_eq!(host("Board.local").as_deref(), Ok("board.local"));
        for text in ["", "http://a", "a:80", "a/b", "*"] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_body_has_an_end() {
        assert_eq!(body("8MiB"), Ok(8 << 20));
        assert!(body("5GiB").is_err());
    }
}
