//! Reads what a registry asks of who asks it, and what a machine has to answer: no secret is in any text that is shown.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Who asks.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// His name.
    pub user: String,
    /// What only he knows.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials(of {})", self.user)
    }
}

impl Credentials {
    /// As a header of HTTP says it.
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }
}

/// The file in which docker and podman keep them.
#[derive(Deserialize)]
struct AuthFile {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
}

/// What such a file says of a repository of a registry: the longest entry of it that has a name and a password.  Programs
/// that keep secrets (`credHelpers`, `credsStore`) are not asked.
///
/// # Errors
/// What is wrong with the file, as the end of a sentence.
pub fn from_file(text: &str, host: &str, name: &str) -> Result<Option<Credentials>, String> {
    let file: AuthFile = serde_json::from_str(text).map_err(|error| {
        // The text around the error may be a secret.
        format!("it is no JSON of that form, at line {}", error.line())
    })?;
    let plain = |key: &str| {
        let key = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
        key.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2").to_owned()
    };
    let whole = format!("{host}/{name}");
    let is_of = |key: &str| {
        whole == *key || whole.strip_prefix(key).is_some_and(|rest| rest.starts_with('/'))
    };
    let entries = file.auths.iter().map(|(key, entry)| (plain(key), entry));
    let mut fit: Vec<_> = entries.filter(|(key, it)| is_of(key) && !it.auth.is_empty()).collect();
    fit.sort_by_key(|(key, _)| key.len());
    let Some((key, entry)) = fit.pop() else { return Ok(None) };
    let bad = || format!("its entry {key:?} is no name and password");
    let text = STANDARD.decode(&entry.auth).ok().and_then(|text| String::from_utf8(text).ok());
    let text = text.ok_or_else(bad)?;
    let (user, password) = text.split_once(':').ok_or_else(bad)?;
    Ok(Some(Credentials { user: user.to_owned(), password: password.to_owned() }))
}

/// What a registry wants to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A name and a password.
    Basic,
    /// A token that a server gives out.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    /// Of a header `WWW-Authenticate`; nothing of one that asks for something else.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut fields = fields(rest);
        let realm = fields.remove("realm")?;
        Some(Self::Bearer {
            realm,
            service: fields.remove("service"),
            scope: fields.remove("scope"),
        })
    }
}

/// `name="value",…`; a comma may be in a value.
fn fields(mut text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    while let Some((name, rest)) = text.split_once('=') {
        let name = name.trim_matches([',', ' ']).to_ascii_lowercase();
        let (value, rest) = match rest.strip_prefix('"') {
            Some(rest) => rest.split_once('"').unwrap_or((rest, "")),
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        all.insert(name, value.to_owned());
        text = rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        assert_eq!(Challenge::parse("Basic realm=\"a registry\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("basic"), Some(Challenge::Basic));
        let text = r#"Bearer realm="https://auth.lan/token",service="registry.lan",scope="repository:a/b:pull,push""#;
        let Some(Challenge::Bearer { realm, service, scope }) = Challenge::parse(text) else {
            panic!("{text}");
        };
        assert_eq!(realm, "https://auth.lan/token");
        assert_eq!(service.as_deref(), Some("registry.lan"));
        assert_eq!(scope.as_deref(), Some("repository:a/b:pull,push"));
        for other in ["", "Negotiate", "Bearer", "Bearer service=\"x\"", "Digest realm=\"x\""] {
            assert_eq!(Challenge::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_longest_entry_of_a_file_counts() {
        let encoded = |text: &str| STANDARD.encode(text);
        let text = format!(
            r#"{{"credsStore":"x","auths":{{"registry.lan":{{"auth":"{}"}},"registry.lan/fleet":{{"auth":"{}"}},
                "https://index.lan/v1/":{{"auth":"{}"}},"empty.lan":{{}},"odd.lan":{{"auth":"{}"}}}}}}"#,
            encoded("all:one"),
            encoded("fleet:two:three"),
            encoded("index:four"),
            encoded("nobody")
        );
        let of = |host: &str, name: &str| {
            from_file(&text, host, name).map(|found| found.map(|it| (it.user, it.password)))
        };
        let pair = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        assert_eq!(of("registry.lan", "demo"), pair("all", "one"));
        assert_eq!(of("registry.lan", "fleet/demo"), pair("fleet", "two:three"));
        assert_eq!(of("registry.lan", "fleets"), pair("all", "one"));
        assert_eq!(of("index.lan", "demo"), pair("index", "four"));
        assert_eq!(
            (of("registry.lan:5000", "demo"), of("empty.lan", "demo")),
            (Ok(None), Ok(None))
        );
        assert!(of("odd.lan", "demo").is_err());
        let secret = from_file(r#"{"auths":{"a":{"auth":secret}}}"#, "a", "b").unwrap_err();
        assert!(!secret.contains("secret"), "{secret}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let credentials = Credentials { user: "me".to_owned(), password: "secret".to_owned() };
        assert_eq!(format!("{credentials:?}"), "Credentials(of me)");
        assert_eq!(credentials.basic(), "Basic bWU6c2VjcmV0");
    }
}
