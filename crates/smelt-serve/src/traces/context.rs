//! Reads and writes where a request stands among others, as W3C's Trace Context says.
//!
//! What is not written exactly so is as if it were not there.

use axum::http::{HeaderMap, HeaderName};

use super::drawn;
use super::sampler::Sampler;

/// Says under which name a request was traced, to whoever sent it.
pub(crate) const TRACE_RESPONSE: HeaderName = HeaderName::from_static("traceresponse");

const TRACE_PARENT: &str = "traceparent";
const TRACE_STATE: &str = "tracestate";

/// The length of `traceparent` in version 00.
const PARENT_BYTES: usize = 55;

/// Most bytes of `tracestate` that are passed on: as many as the standard asks for at least.
const STATE_BYTES_MAX: usize = 512;

/// Most members of `tracestate`, by the standard.
const STATE_MEMBERS_MAX: usize = 32;

/// The flag that somebody wants to know of this trace.
const SAMPLED: u8 = 1;

/// The span that asked for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) trace: u128,
    pub(super) span: u64,
    pub(super) is_sampled: bool,
    /// What tracing systems say to themselves; may be empty.
    pub(super) state: String,
}

impl Parent {
    /// The span that `headers` name, if they do.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACE_PARENT).iter();
        let (Some(one), None) = (all.next(), all.next()) else { return None };
        let (trace, span, flags) = parse(one.to_str().ok()?)?;
        let state = state(headers).unwrap_or_default();
        Some(Self { trace, span, is_sampled: flags & SAMPLED != 0, state })
    }
}

/// Trace, span and flags of a `traceparent`.
fn parse(text: &str) -> Option<(u128, u64, u8)> {
    let (known, rest) = text.split_at_checked(PARENT_BYTES)?;
    let parts: Vec<&str> = known.split('-').collect();
    let [version, trace, span, flags] = parts[..] else { return None };
    let lengths = [version, trace, span, flags].map(str::len);
    let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if lengths != [2, 32, 16, 2] || ![version, trace, span, flags].into_iter().all(is_hex) {
        return None;
    }
    // Newer versions may say more behind another dash; ff is none.
    let is_known = match version {
        "00" => rest.is_empty(),
        "ff" => false,
        _ => rest.is_empty() || rest.starts_with('-'),
    };
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
    is_known.then_some((trace, span, u8::from_str_radix(flags, 16).ok()?))
}

/// All `tracestate` that `headers` have, as one; nothing if a member is none, or there is too much.
fn state(headers: &HeaderMap) -> Option<String> {
    let all: Vec<&str> = headers
        .get_all(TRACE_STATE)
        .iter()
        .map(|value| value.to_str().ok())
        .collect::<Option<_>>()?;
    let members: Vec<&str> = all
        .iter()
        .flat_map(|value| value.split(','))
        .map(|member| member.trim_matches([' ', '\t']))
        .filter(|member| !member.is_empty())
        .collect();
    let keys: Vec<&str> = members.iter().map(|member| member_key(member)).collect::<Option<_>>()?;
    let is_twice = |at: usize| keys[..at].contains(&keys[at]);
    let joined = members.join(",");
    let fits = members.len() <= STATE_MEMBERS_MAX && joined.len() <= STATE_BYTES_MAX;
    (fits && !(0..keys.len()).any(is_twice)).then_some(joined)
}

/// The key of a member of `tracestate`, if it is one.
fn member_key(member: &str) -> Option<&str> {
    let (key, value) = member.split_once('=')?;
    let is_start = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_rest = |b: u8| is_start(b) || b"_-*/@".contains(&b);
    let is_key = key.len() <= 256
        && key.bytes().next().is_some_and(is_start)
        && key.bytes().all(is_rest)
        && key.matches('@').count() <= 1;
    let is_char = |b: u8| (0x20..=0x7e).contains(&b) && b != b',' && b != b'=';
    let is_value = (1..=256).contains(&value.len()) && value.bytes().all(is_char);
    (is_key && is_value).then_some(key)
}

/// A request's own place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) trace: u128,
    pub(super) span: u64,
    pub(super) parent: Option<u64>,
    pub(super) state: String,
    /// Whether anybody wants to know.
    pub(super) is_sampled: bool,
}

impl Context {
    /// Beneath `parent`, or the first of a trace.
    pub(super) fn begin(parent: Option<Parent>, sampler: &Sampler) -> Self {
        let trace = parent.as_ref().map_or_else(new_trace, |parent| parent.trace);
        let is_sampled = sampler.wants(trace, parent.as_ref().map(|parent| parent.is_sampled));
        let (parent, state) = parent.map(|parent| (parent.span, parent.state)).unzip();
        Self { trace, span: new_span(), parent, state: state.unwrap_or_default(), is_sampled }
    }

    /// What `traceresponse` says of it.
    pub(crate) fn response(&self) -> String {
        let flags = u8::from(self.is_sampled) * SAMPLED;
        format!("00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

fn new_trace() -> u128 {
    u128::from(new_span()) << 64 | u128::from(drawn())
}

/// A span's name, which is never 0.
pub(super) fn new_span() -> u64 {
    drawn().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(parents: &[&str], states: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, values) in [(TRACE_PARENT, parents), (TRACE_STATE, states)] {
            for value in values {
                headers.append(name, value.parse().unwrap());
            }
        }
        headers
    }

    fn parent(value: &str) -> Option<Parent> {
        Parent::of(&headers(&[value], &[]))
    }

    #[test]
    fn a_parent_is_read_as_the_standard_says() {
        let read = parent(GOOD).unwrap();
        assert_eq!(read.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((read.span, read.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        let flags = |flags: &str| parent(&GOOD.replace("-01", flags)).map(|read| read.is_sampled);
        assert_eq!(
            [flags("-00"), flags("-02"), flags("-ff")],
            [Some(false), Some(false), Some(true)]
        );
        let newer = GOOD.replacen("00", "cc", 1);
        assert!(parent(&newer).is_some() && parent(&format!("{newer}-what-is-new")).is_some());
    }

    #[test]
    fn what_is_no_parent_is_passed_by() {
        let bad = [
            String::new(),
            "00".to_owned(),
            GOOD.to_uppercase(),
            GOOD.replacen("00", "ff", 1),
            format!("{GOOD}-"),
            format!("{GOOD}0"),
            GOOD.replacen("00", "cc", 1) + "0",
            GOOD[..54].to_owned(),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace("4bf9", "4bg9"),
            GOOD.replace("4bf9", "+bf9"),
            GOOD.replace("4736-", "47-36"),
            GOOD.replace('-', "_"),
        ];
        for value in bad {
            assert_eq!(parent(&value), None, "{value}");
        }
        assert_eq!(Parent::of(&headers(&[GOOD, GOOD], &[])), None, "two parents");
        assert_eq!(Parent::of(&headers(&[], &["a=1"])), None);
    }

    #[test]
    fn the_state_is_passed_on_where_it_is_one() {
        let state = |values: &[&str]| Parent::of(&headers(&[GOOD], values)).unwrap().state;
        assert_eq!(
            state(&["rojo=00f067aa0ba902b7, congo=t61rcWkgMzE,", "t@v=a b"]),
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE,t@v=a b"
        );
        for value in ["A=1", "a", "=1", "a=", "a=1=2", "a=1,a=2", "a@b@c=1", "a=\t"] {
            assert_eq!(state(&[value]), "", "{value}");
        }
        let members =
            |count: usize| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
        assert_eq!(state(&[&members(32)]), members(32));
        assert_eq!(state(&[&members(33)]), "");
        assert_eq!(state(&[&format!("a={},b={}", "x".repeat(256), "y".repeat(256))]), "");
    }

    #[test]
    fn a_request_stands_beneath_its_parent_or_begins_a_trace() {
        let above = parent(GOOD).unwrap();
        let below = Context::begin(Some(above.clone()), &Sampler::default());
        assert_eq!((below.trace, below.parent), (above.trace, Some(above.span)));
        assert!(below.span != above.span && below.is_sampled);
        let shown = Parent::of(&headers(&[&below.response()], &[])).unwrap();
        assert_eq!((shown.trace, shown.span, shown.is_sampled), (below.trace, below.span, true));
        let [one, two] = [(); 2].map(|()| Context::begin(None, &Sampler::default()));
        assert!(one.parent.is_none() && one.trace != two.trace && one.span != two.span);
        let unwanted = Context::begin(parent(&GOOD.replace("-01", "-00")), &Sampler::default());
        assert!(!unwanted.is_sampled && unwanted.response().ends_with("-00"));
    }
}
