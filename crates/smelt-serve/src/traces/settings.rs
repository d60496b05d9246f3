//! Where traces go, as a flag and OpenTelemetry's variables say.

use std::fmt;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};

use super::otlp::Attribute;
use super::sampler::Sampler;

/// Where collectors take traces, behind the address that is named.
const PATH: &str = "/v1/traces";

/// How long a collector may take where nobody says; the specification's.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Most attributes of the resource, and most headers: more is a mistake, and all are sent each time.
const PAIRS_MAX: usize = 32;

/// Where traces go, and which.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    pub(super) url: String,
    pub(super) headers: Headers,
    pub(super) timeout: Duration,
    pub(super) sampler: Sampler,
    /// What this server is called, and what else its owner says of it.
    pub(super) resource: Vec<Attribute>,
}

/// What lets spans in; nobody reads it by chance.
#[derive(Clone)]
pub(super) struct Headers(pub(super) Vec<(HeaderName, HeaderValue)>);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} headers", self.0.len())
    }
}

/// What is wrong with where traces go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {why}")]
pub struct TraceError {
    name: String,
    why: &'static str,
}

impl TraceOptions {
    /// What the flag `--otlp-endpoint` and the environment say, the flag first: nothing where nobody asks for traces.
    /// Gives besides what is passed over, as the specification wishes, and should be told.
    ///
    /// # Errors
    /// [`TraceError`] naming what has no meaning.
    pub fn read(
        flag: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(Option<Self>, Vec<String>), TraceError> {
        // What is empty is not set.
        let of = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let either = |what: &str| {
            let names =
                [format!("OTEL_EXPORTER_OTLP_TRACES_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")];
            names.into_iter().find_map(|name| Some((of(&name)?, name)))
        };
        let mut warnings = Vec::new();
        let Some(url) = endpoint(flag, &of)? else { return Ok((None, warnings)) };
        if of("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            warnings.push("OTEL_SDK_DISABLED is set: no traces are sent".to_owned());
            return Ok((None, warnings));
        }
        if let Some((protocol, name)) = either("PROTOCOL").filter(|(value, _)| value != "http/json")
        {
            warnings.push(format!("{name}={protocol}: traces are sent as http/json, which collectors take at the same port as http/protobuf, 4318"));
        }
        let headers = either("HEADERS").map(|(value, name)| headers(&value, name)).transpose()?;
        let timeout = either("TIMEOUT").map(|(value, name)| timeout(&value, name)).transpose()?;
        let sampler = sampler(&of, &mut warnings);
        let headers = headers.unwrap_or(Headers(Vec::new()));
        let timeout = timeout.unwrap_or(TIMEOUT);
        let resource = resource(&of)?;
        Ok((Some(Self { url, headers, timeout, sampler, resource }), warnings))
    }
}

/// Where traces are sent, if anywhere.
fn endpoint(
    flag: Option<&str>,
    of: &impl Fn(&str) -> Option<String>,
) -> Result<Option<String>, TraceError> {
    if let Some(base) = flag {
        return checked(beneath(base), "--otlp-endpoint").map(Some);
    }
    if of("OTEL_TRACES_EXPORTER").is_some_and(|exporter| exporter == "none") {
        return Ok(None);
    }
    let name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    if let Some(url) = of(name) {
        return checked(url, name).map(Some);
    }
    let name = "OTEL_EXPORTER_OTLP_ENDPOINT";
    of(name).map(|base| checked(beneath(&base), name)).transpose()
}

/// Where a collector at `base` takes traces.
fn beneath(base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

fn checked(url: String, name: &str) -> Result<String, TraceError> {
    let uri = url.parse::<Uri>().ok();
    let is_place = uri.is_some_and(|uri| {
        let host = uri.host().is_some_and(|host| !host.is_empty());
        let is_plain = uri.authority().is_some_and(|place| !place.as_str().contains('@'));
        host && is_plain && matches!(uri.scheme_str(), Some("http" | "https"))
    });
    // The address itself may hold a password.
    let why = "must be http://HOST:PORT or https://HOST:PORT, without a name or password (those go into OTEL_EXPORTER_OTLP_HEADERS)";
    is_place.then_some(url).ok_or(TraceError { name: name.to_owned(), why })
}

/// The pairs of a list as W3C's Baggage has them: `a=1,b=2`, with what cannot be written as %XX.
fn pairs(list: &str) -> Option<Vec<(String, String)>> {
    let members = list.split(',').map(str::trim).filter(|member| !member.is_empty());
    let pair = |member: &str| {
        let (key, value) = member.split_once('=')?;
        Some((key.trim().to_owned(), decoded(value.trim())?))
    };
    let pairs: Vec<_> = members.map(pair).collect::<Option<_>>()?;
    let are_keys = pairs.iter().all(|(key, _)| !key.is_empty());
    (pairs.len() <= PAIRS_MAX && are_keys).then_some(pairs)
}

/// A value without its %XX.
fn decoded(value: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), value.as_bytes());
    while let [first, after @ ..] = rest {
        (bytes, rest) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                (bytes, after)
            }
            (b'%', _) => return None,
            _ => {
                bytes.push(*first);
                (bytes, after)
            }
        };
    }
    String::from_utf8(bytes).ok()
}

fn headers(list: &str, name: String) -> Result<Headers, TraceError> {
    let read = || -> Option<Vec<_>> {
        let header = |(name, value): (String, String)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        };
        pairs(list)?.into_iter().map(header).collect()
    };
    // What it says is a secret.
    let why = "must be NAME=VALUE,NAME=VALUE, at most 32, with %XX for what cannot be written";
    read().map(Headers).ok_or(TraceError { name, why })
}

fn timeout(text: &str, name: String) -> Result<Duration, TraceError> {
    let milliseconds = text.trim().parse().ok().filter(|ms| (1..=600_000).contains(ms));
    let why = "must be 1 to 600000, in milliseconds";
    milliseconds.map(Duration::from_millis).ok_or(TraceError { name, why })
}

/// The sampler that is named; what nobody knows is told of and passed over, as the specification says.
fn sampler(of: &impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> Sampler {
    let argument = of("OTEL_TRACES_SAMPLER_ARG").and_then(|text| {
        let ratio = text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        if ratio.is_none() {
            warnings
                .push("OTEL_TRACES_SAMPLER_ARG is no part from 0 to 1 and passed over".to_owned());
        }
        ratio
    });
    let Some(name) = of("OTEL_TRACES_SAMPLER") else { return Sampler::default() };
    Sampler::named(name.trim(), argument).unwrap_or_else(|| {
        warnings.push(format!(
            "OTEL_TRACES_SAMPLER={name} is not known; parentbased_always_on is done"
        ));
        Sampler::default()
    })
}

fn resource(of: &impl Fn(&str) -> Option<String>) -> Result<Vec<Attribute>, TraceError> {
    let name = "OTEL_RESOURCE_ATTRIBUTES";
    let why = "must be NAME=VALUE,NAME=VALUE, at most 32, with %XX for what cannot be written";
    let pairs = pairs(&of(name).unwrap_or_default());
    let mut pairs = pairs.ok_or(TraceError { name: name.to_owned(), why })?;
    let service = "service.name";
    if let Some(called) = of("OTEL_SERVICE_NAME") {
        pairs.retain(|(key, _)| key != service);
        pairs.push((service.to_owned(), called));
    }
    let own = [
        (service, "smelt"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("telemetry.sdk.name", "smelt"),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ];
    for (key, value) in own {
        if !pairs.iter().any(|(known, _)| known == key) {
            pairs.push((key.to_owned(), value.to_owned()));
        }
    }
    Ok(pairs.into_iter().map(|(key, value)| Attribute::text(key, &value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Read = Result<(Option<TraceOptions>, Vec<String>), TraceError>;

    fn read(flag: Option<&str>, variables: &[(&str, &str)]) -> Read {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        TraceOptions::read(flag, value)
    }

    fn options(flag: Option<&str>, variables: &[(&str, &str)]) -> TraceOptions {
        read(flag, variables).unwrap().0.unwrap()
    }

    const BASE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://base:4318/");
    const TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://own/here");

    #[test]
    fn the_flag_goes_before_the_environment_and_nothing_is_sent_unasked() {
        assert_eq!(options(Some("http://flag:1"), &[BASE, TRACES]).url, "http://flag:1/v1/traces");
        assert_eq!(options(Some("http://a/v1/traces/"), &[]).url, "http://a/v1/traces");
        assert_eq!(options(None, &[BASE, TRACES]).url, "https://own/here");
        assert_eq!(options(None, &[BASE]).url, "http://base:4318/v1/traces");
        let off = |flag, variables: &[_]| read(flag, variables).unwrap().0.is_none();
        assert!(off(None, &[]) && off(None, &[(BASE.0, "")]));
        assert!(off(None, &[BASE, ("OTEL_TRACES_EXPORTER", "none")]));
        let (none, warnings) =
            read(Some("http://flag:1"), &[("OTEL_SDK_DISABLED", "true")]).unwrap();
        assert!(none.is_none() && warnings.len() == 1);
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_told() {
        let bad = |variables: &[_]| read(None, variables).unwrap_err().to_string();
        for url in ["collector:4318", "ftp://a", "http://", "http://u:secret@a", "http://a b"] {
            let told = read(Some(url), &[]).unwrap_err().to_string();
            assert!(told.starts_with("--otlp-endpoint: ") && !told.contains("secret"), "{told}");
            assert!(bad(&[(BASE.0, url)]).starts_with(BASE.0));
        }
        let name = "OTEL_EXPORTER_OTLP_HEADERS";
        for list in ["secret", "a b=secret", "a=%secret", "a=%0Asecret", "=secret"] {
            let told = bad(&[BASE, (name, list)]);
            assert!(told.starts_with(name) && !told.contains("secret"), "{told}");
        }
        assert!(bad(&[BASE, ("OTEL_EXPORTER_OTLP_TIMEOUT", "0")]).contains("milliseconds"));
        assert!(bad(&[BASE, ("OTEL_RESOURCE_ATTRIBUTES", "a")]).contains("NAME=VALUE"));
    }

    #[test]
    fn headers_are_decoded_and_kept_to_themselves() {
        let list = ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20c2VjcmV0,x-a = b=c,");
        let options = options(None, &[BASE, list]);
        let told: Vec<(&str, &str)> = options
            .headers
            .0
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(told, [("authorization", "Basic c2VjcmV0"), ("x-a", "b=c")]);
        assert!(!format!("{options:?}").contains("c2Vj"));
    }

    #[test]
    fn what_is_not_known_is_passed_over_and_told() {
        let (options, warnings) = read(
            None,
            &[
                BASE,
                ("OTEL_TRACES_SAMPLER", "xray"),
                ("OTEL_TRACES_SAMPLER_ARG", "2"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ],
        )
        .unwrap();
        assert_eq!((options.unwrap().sampler, warnings.len()), (Sampler::default(), 3));
    }

    #[test]
    fn a_server_is_called_what_its_owner_says() {
        let service = |variables: &[_]| {
            let variables = [&[BASE], variables].concat();
            let json = serde_json::to_value(options(None, &variables).resource).unwrap();
            let all = json.as_array().unwrap().clone();
            let named = all.into_iter().filter(|one| one["key"] == "service.name");
            let values = named.map(|one| one["value"]["stringValue"].as_str().unwrap().to_owned());
            values.collect::<Vec<_>>().join("|")
        };
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=two%21,where=board");
        assert_eq!(service(&[]), "smelt");
        assert_eq!(service(&[attributes]), "two!");
        assert_eq!(service(&[attributes, ("OTEL_SERVICE_NAME", "one")]), "one");
    }
}
