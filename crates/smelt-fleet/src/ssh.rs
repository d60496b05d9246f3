//! Says how a machine is reached that builds for this one alone: `ssh://[USER@]HOST[:PORT][/PROGRAM]`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What is started there where nobody names it: found as a login finds it.
const PROGRAM: &str = "smelt";
/// A word of these alone means itself to any shell, and no flag to ssh.
const PLAIN: &str = "-._~/+@";

/// A machine with an account there, and the smelt on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SshAddress {
    user: Option<String>,
    /// A name that ssh's own configuration knows, or an address.
    host: String,
    port: Option<u16>,
    /// Where smelt is there, from the root on.
    program: Option<String>,
}

/// A text that is no such address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no machine that is reached by ssh: {problem}; write ssh://HOST, ssh://USER@HOST:PORT or ssh://HOST/PATH/OF/smelt"
)]
pub struct NotAnSshAddress {
    text: String,
    problem: &'static str,
}

impl SshAddress {
    /// The arguments of ssh by which a machine's smelt does what these plain words say.  Nobody is asked for a password, and a
    /// machine that is gone is noticed within a minute.
    pub fn arguments(&self, words: &[&str]) -> Vec<String> {
        let options = [
            "BatchMode=yes",
            "ConnectTimeout=15",
            "ServerAliveInterval=15",
            "ServerAliveCountMax=3",
        ];
        let mut all: Vec<String> = vec!["-T".to_owned()];
        all.extend(options.iter().flat_map(|option| ["-o".to_owned(), (*option).to_owned()]));
        if let Some(port) = self.port {
            all.extend(["-p".to_owned(), port.to_string()]);
        }
        let user = self.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
        let program = self.program.as_deref().unwrap_or(PROGRAM);
        let command = [&[program], words].concat().join(" ");
        all.extend(["--".to_owned(), format!("{user}{}", self.host), command]);
        all
    }
}

impl FromStr for SshAddress {
    type Err = NotAnSshAddress;

    fn from_str(text: &str) -> Result<Self, NotAnSshAddress> {
        let not = |problem| NotAnSshAddress { text: text.to_owned(), problem };
        let rest = text.strip_prefix("ssh://").ok_or(not("it does not begin with ssh://"))?;
        let (place, program) = match rest.find('/') {
            Some(at) => (&rest[..at], Some(&rest[at..]).filter(|path| *path != "/")),
            None => (rest, None),
        };
        let (user, place) = match place.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place),
        };
        let (host, port) = split_port(place).ok_or(not("its port is none"))?;
        if !is_plain(host.replace(':', "").as_str()) || !user.is_none_or(is_plain) {
            return Err(not("its host or user is no name"));
        }
        if !program.is_none_or(is_plain) {
            return Err(not("the path has characters that a shell would read otherwise"));
        }
        let [user, program] = [user, program].map(|it| it.map(str::to_owned));
        Ok(Self { user, host: host.to_owned(), port, program })
    }
}

/// `HOST[:PORT]`, an address of IPv6 in brackets.
fn split_port(place: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match place.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => place.find(':').map_or((place, ""), |at| place.split_at(at)),
    };
    match rest.strip_prefix(':') {
        Some(port) => Some((host, Some(port.parse().ok().filter(|port| *port > 0)?))),
        None => rest.is_empty().then_some((host, None)),
    }
}

fn is_plain(word: &str) -> bool {
    let is_one = |one: char| one.is_ascii_alphanumeric() || PLAIN.contains(one);
    !word.is_empty() && !word.starts_with('-') && word.chars().all(is_one)
}

impl TryFrom<String> for SshAddress {
    type Error = NotAnSshAddress;

    fn try_from(text: String) -> Result<Self, NotAnSshAddress> {
        text.parse()
    }
}

impl From<SshAddress> for String {
    fn from(address: SshAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for SshAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ssh://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        let is_v6 = self.host.contains(':');
        if is_v6 {
            write!(f, "[{}]", self.host)?
        } else {
            f.write_str(&self.host)?
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(self.program.as_deref().unwrap_or(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_ssh_is_told() {
        let check = |text: &str, expect: &str| {
            let address: SshAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            let arguments = address.arguments(&["worker", "--session"]).join(" ");
            let (_, told) = arguments.split_once("ServerAliveCountMax=3 ").unwrap();
            assert_eq!(told, expect, "{text}");
        };
        check("ssh://orin", "-- orin smelt worker --session");
        check("ssh://me@10.0.0.7:2222", "-p 2222 -- me@10.0.0.7 smelt worker --session");
        check("ssh://a@b@orin/opt/smelt", "-- a@b@orin /opt/smelt worker --session");
        check("ssh://[fe80::1]:22", "-p 22 -- fe80::1 smelt worker --session");
    }

    #[test]
    fn what_a_shell_or_ssh_would_read_otherwise_is_refused() {
        for text in [
            "orin",
            "grpc://orin",
            "ssh://",
            "ssh://@orin",
            "ssh://-oProxyCommand=x",
            "ssh://a;b",
            "ssh://orin:0",
            "ssh://orin:99999",
            "ssh://orin:x",
            "ssh://[::1",
            "ssh://[::1]x",
            "ssh://orin/opt/my smelt",
            "ssh://orin/$(reboot)",
            "ssh://orin/a\nb",
        ] {
            let error = text.parse::<SshAddress>().unwrap_err().to_string();
            assert!(error.contains("ssh://HOST"), "{text}: {error}");
        }
    }
}
