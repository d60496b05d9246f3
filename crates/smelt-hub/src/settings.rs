//! Where the hub is, where its cache is and who we are: the variables that Python's
//! `huggingface_hub` reads, with the same meaning.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{HubError, fault};

/// The hub that is meant when `HF_ENDPOINT` names none.
const ENDPOINT: &str = "https://huggingface.co";
/// Tokens have some forty bytes.
const TOKEN_BYTES_MAX: u64 = 4096;
/// Doubles with every try that brought nothing.
const PAUSE: Duration = Duration::from_millis(500);
/// A connection that is silent for so long is given up and opened anew.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What a [`Hub`](super::Hub) needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Scheme, host and port, without a slash at the end.
    pub endpoint: String,
    /// Sent to the endpoint's host and to no other.
    pub token: Option<Token>,
    /// Holds `models--ORG--NAME`.
    pub cache: PathBuf,
    /// Ask nobody; use what is there.
    pub is_offline: bool,
    /// Certificates to trust instead of those of the public authorities, as PEM.
    pub authorities: Option<PathBuf>,
    /// The pause after the first try that brought nothing; it doubles.
    pub pause: Duration,
    /// How long a connection may be silent.
    pub silence_max: Duration,
}

/// A secret: it is never shown.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// `None` for an empty text, an error for one that no header can carry.
    pub fn parse(text: &str, name: &str) -> Result<Option<Self>, HubError> {
        let text = text.trim();
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            let why = "a token is one word of ASCII".to_owned();
            return Err(HubError::BadSetting { name: name.to_owned(), why });
        }
        Ok((!text.is_empty()).then(|| Self(text.to_owned())))
    }

    /// The value of the `Authorization` header.
    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// What a company's network wants to be told; `ureq` reads these itself.
const PROXIES: [&str; 8] = [
    "ALL_PROXY",
    "all_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
];

impl Settings {
    /// What the environment says.
    pub fn from_env() -> Result<Self, HubError> {
        Self::read(|name| std::env::var_os(name))
    }

    /// Where what is fetched is kept.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The variables, of those that `variable` knows, from which another process reads these
    /// settings again, in whatever directory it runs.
    pub fn variables(
        &self,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, OsString)> {
        let own = [
            ("HF_ENDPOINT", Some(self.endpoint.clone().into())),
            ("HF_HUB_CACHE", Some(self.cache.clone().into())),
            ("HF_HUB_OFFLINE", self.is_offline.then(|| "1".into())),
            ("HF_TOKEN", self.token.as_ref().map(|token| token.0.clone().into())),
            ("SSL_CERT_FILE", self.authorities.clone().map(Into::into)),
        ];
        let proxies = PROXIES.into_iter().map(|name| (name, variable(name)));
        own.into_iter().chain(proxies).filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Reads the variables through `variable`: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`,
    /// `HF_HUB_OFFLINE`, `HF_TOKEN`, `HF_TOKEN_PATH`, and `SSL_CERT_FILE` for a company's proxy.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| given(name).map(|value| value.to_string_lossy().into_owned());
        let user = given("HOME").map(PathBuf::from);
        let path = |name: &str| given(name).map(|value| expand(Path::new(&value), user.as_deref()));
        let home = path("HF_HOME")
            .or_else(|| Some(path("XDG_CACHE_HOME")?.join("huggingface")))
            .or_else(|| Some(user.as_ref()?.join(".cache/huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(home.as_ref()?.join("hub")));
        let cache = cache.ok_or_else(|| HubError::BadSetting {
            name: "HF_HOME".to_owned(),
            why: "neither it nor HOME is set, so there is no place for downloads".to_owned(),
        })?;
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
        let token = match text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => Token::parse(&token, "HF_TOKEN")?,
            None => token_file.map_or(Ok(None), |file| token_of(&file))?,
        };
        let is_offline = text("HF_HUB_OFFLINE").or_else(|| text("TRANSFORMERS_OFFLINE"));
        Ok(Self {
            endpoint: endpoint(text("HF_ENDPOINT"))?,
            token,
            cache,
            is_offline: is_offline.is_some_and(|value| is_true(&value)),
            authorities: path("SSL_CERT_FILE"),
            pause: PAUSE,
            silence_max: SILENCE_MAX,
        })
    }
}

fn endpoint(given: Option<String>) -> Result<String, HubError> {
    let endpoint = given.unwrap_or_else(|| ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/');
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    let is_good = |host: &str| {
        !host.is_empty()
            && host.bytes().all(|b| b.is_ascii_graphic())
            && !host.contains(['@', '?', '#'])
    };
    if !host.is_some_and(is_good) {
        return Err(HubError::BadSetting {
            name: "HF_ENDPOINT".to_owned(),
            why: format!("\"{endpoint}\" is no URL such as {ENDPOINT}"),
        });
    }
    Ok(endpoint.to_owned())
}

fn token_of(path: &Path) -> Result<Option<Token>, HubError> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fault("read the token", path)(error)),
    };
    let mut text = String::new();
    let read = file.take(TOKEN_BYTES_MAX).read_to_string(&mut text);
    read.map_err(fault("read the token", path))?;
    Token::parse(&text, &path.display().to_string())
}

/// The words that mean yes to `huggingface_hub`.
fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
}

fn expand(path: &Path, user: Option<&Path>) -> PathBuf {
    let path = match (path.strip_prefix("~"), user) {
        (Ok(rest), Some(user)) => user.join(rest),
        _ => path.to_owned(),
    };
    // Processes of ours read the same settings in other directories.
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::read(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn places() {
        let check = |variables: &[(&str, &str)], cache: &str| {
            assert_eq!(read(variables).unwrap().cache, Path::new(cache));
        };
        check(&[("HOME", "/u")], "/u/.cache/huggingface/hub");
        check(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub");
        check(&[("HOME", "/u"), ("HF_HOME", "~/h")], "/u/h/hub");
        check(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")], "/c");
        assert!(read(&[]).unwrap_err().to_string().starts_with("HF_HOME"));
    }

    #[test]
    fn words() {
        let home = ("HF_HOME", "/nowhere");
        assert!(read(&[home, ("HF_HUB_OFFLINE", "yes")]).unwrap().is_offline);
        assert!(!read(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap().is_offline);
        assert_eq!(read(&[home, ("HF_ENDPOINT", "http://h:1/")]).unwrap().endpoint, "http://h:1");
        assert_eq!(read(&[home]).unwrap().endpoint, ENDPOINT);
        for bad in ["h", "ftp://h", "https://", "https://u@h", "http://a b"] {
            assert!(read(&[home, ("HF_ENDPOINT", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn another_process_reads_the_same() {
        let given = [
            ("HF_HOME", "relative"),
            ("HF_ENDPOINT", "http://h:1/"),
            ("HF_TOKEN", "hf_env"),
            ("HF_HUB_OFFLINE", "yes"),
            ("SSL_CERT_FILE", "certificates.pem"),
            ("HTTPS_PROXY", "http://p:2"),
            ("SECRET", "x"),
        ];
        let find = |name: &str| {
            let found = given.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        for settings in [read(&given).unwrap(), read(&[("HOME", "/nowhere")]).unwrap()] {
            let passed = settings.variables(find);
            let lookup = |name: &str| Some(passed.iter().find(|(key, _)| *key == name)?.1.clone());
            let again = Settings::read(lookup).unwrap();
            let token = |settings: &Settings| settings.token.as_ref().map(Token::header);
            assert_eq!(token(&again), token(&settings));
            assert_eq!(format!("{again:?}"), format!("{settings:?}"));
            assert!(settings.cache.is_absolute() && lookup("SECRET").is_none());
            assert_eq!(lookup("HTTPS_PROXY"), Some("http://p:2".into()));
        }
    }

    #[test]
    fn tokens() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let header = |variables: &[(&str, &str)]| read(variables).unwrap().token.unwrap().header();
        assert_eq!(header(&[("HF_HOME", home)]), "Bearer hf_file");
        assert_eq!(header(&[("HF_HOME", home), ("HF_TOKEN", " hf_env ")]), "Bearer hf_env");
        assert!(read(&[("HF_HOME", "/nowhere")]).unwrap().token.is_none());
        assert!(read(&[("HF_HOME", home), ("HF_TOKEN", "a\nb")]).is_err());
        let shown = format!("{:?}", read(&[("HF_HOME", home)]).unwrap());
        assert!(!shown.contains("hf_file"), "{shown}");
    }
}
