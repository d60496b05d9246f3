//! Knows for whom a request is: its key's name, what it may use, and who may know of it.
//!
//! Nothing that was read for one key is of use to another, so neither counts nor times tell a key what others ask.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use smelt_runtime::identity::{Identity, Naming};
use smelt_runtime::service;

use crate::error::ApiError;
use crate::meter::Bucket;

/// The longest salt: a name, no text.
const SALT_BYTES_MAX: usize = 1024;

/// What one key may use; nothing is without bound but what is not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Requests a minute.
    pub(crate) requests: Option<u64>,
    /// Tokens a minute, of prompts and answers.
    pub(crate) tokens: Option<u64>,
    /// Answers at once.
    pub(crate) slots: Option<usize>,
    /// Bytes of keys and values that are kept when answers have ended.
    pub(crate) kept_bytes: Option<u64>,
    /// Whether it is told what each of the other keys uses.
    pub(crate) sees_all: bool,
}

/// Who asks.  Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The name of the key; none where nobody needs one.
    name: Option<String>,
    /// What tells the key from others, also after a restart; none where nobody needs one.
    identity: Option<String>,
    limits: Limits,
    used: Mutex<Used>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    requests: Bucket,
    tokens: Bucket,
}

impl Client {
    /// Anybody, where nobody needs a key.
    pub(crate) fn anybody() -> Self {
        let (name, identity) = (None, None);
        Self(Arc::new(Inner { name, identity, limits: Limits::default(), used: Mutex::default() }))
    }

    /// Who has the key of this name.
    pub(crate) fn named(name: String, limits: Limits) -> Self {
        Self::numbered(name.clone(), name, limits)
    }

    /// Who has the key that is only called so by its place: `identity` tells it from others, and is no key's name.
    pub(crate) fn numbered(name: String, identity: String, limits: Limits) -> Self {
        let (name, identity) = (Some(name), Some(identity));
        Self(Arc::new(Inner { name, identity, limits, used: Mutex::default() }))
    }

    /// The name of the key.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// The name of the key whose use alone it is told; none who is told of all, or needs no key.
    pub(crate) fn sees_only(&self) -> Option<&str> {
        self.name().filter(|_| !self.0.limits.sees_all)
    }

    /// What tells the key from others: what is kept for it belongs to this, not to what it is called.
    pub(crate) fn identity(&self) -> Option<&str> {
        self.0.identity.as_deref()
    }

    /// What was used so far counts for the one who has taken the place of `before`.
    pub(crate) fn goes_on(&self, before: &Self) {
        *self.used() = *before.used();
    }

    fn used(&self) -> std::sync::MutexGuard<'_, Used> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request.
    ///
    /// # Errors
    /// 429 with the time to wait, if there were too many in the last minute, or too many tokens.
    pub(crate) fn ask(&self, now: Instant) -> Result<(), ApiError> {
        let (limits, mut used) = (self.0.limits, self.used());
        let limited = |most: u64, what: &str, wait: Duration| {
            let why = format!("this key may use {most} {what} a minute");
            let wait = wait.max(Duration::from_secs(1));
            ApiError::busy(why, wait).code("rate_limit_exceeded")
        };
        if let Some(most) = limits.tokens {
            let free = used.tokens.check(1, most, now);
            free.map_err(|wait| limited(most, "tokens", wait))?;
        }
        if let Some(most) = limits.requests {
            let free = used.requests.check(1, most, now);
            free.map_err(|wait| limited(most, "requests", wait))?;
            used.requests.spend(1, most, now);
        }
        Ok(())
    }

    /// Takes note of tokens that were read and said.
    pub(crate) fn spend(&self, tokens: u64, now: Instant) {
        if let Some(most) = self.0.limits.tokens {
            self.used().tokens.spend(tokens, most, now);
        }
    }

    /// As services know it.
    pub(crate) fn of_service(&self, reuse: Option<Identity>) -> service::Client {
        let of_key = |identity: &str| Naming::of("client").bytes(identity.as_bytes()).end()[0];
        service::Client {
            id: self.identity().map_or(0, of_key),
            reuse,
            slots_max: self.0.limits.slots,
            kept_bytes_max: self.0.limits.kept_bytes,
            slot: 0,
        }
    }

    /// Who may reuse what is read for a request: whoever has the same key and says the same `salt`; with
    /// `is_shared` whoever says the same salt.
    ///
    /// # Errors
    /// 400, if it is no salt.
    pub(crate) fn reuse(
        &self,
        salt: Option<&str>,
        is_shared: bool,
    ) -> Result<Option<Identity>, ApiError> {
        if salt.is_some_and(|salt| salt.is_empty() || salt.len() > SALT_BYTES_MAX) {
            let why = format!("must have 1 to {SALT_BYTES_MAX} bytes");
            return Err(ApiError::field("cache_salt", why));
        }
        let key = self.identity().filter(|_| !is_shared);
        let parts = [key, salt].map(|part| part.map(str::as_bytes));
        let add = |naming: Naming, part: Option<&[u8]>| match part {
            Some(part) => naming.number(1).bytes(part),
            None => naming.number(0),
        };
        let is_parted = parts.iter().any(Option::is_some);
        Ok(is_parted.then(|| parts.into_iter().fold(Naming::of("reuse"), add).end()))
    }
}

/// Turns away who has no key.
pub(crate) fn unknown() -> ApiError {
    let why = "this server wants a key: send Authorization: Bearer KEY";
    ApiError::new(StatusCode::UNAUTHORIZED, why).code("invalid_api_key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reused_is_parted_by_keys_and_salts() {
        let [a, b] = ["a", "b"].map(|name| Client::named(name.to_owned(), Limits::default()));
        let of = |client: &Client, salt| client.reuse(salt, false).unwrap();
        assert_eq!(of(&a, None), of(&a, None));
        let all = [
            of(&Client::anybody(), None),
            of(&Client::anybody(), Some("a")),
            of(&a, None),
            of(&b, None),
            of(&a, Some("x")),
            of(&b, Some("x")),
            of(&a, Some("y")),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        assert_eq!(all[0], None);
        let shared = |client: &Client, salt| client.reuse(salt, true).unwrap();
        assert_eq!(shared(&a, None), None);
        assert_eq!(shared(&a, Some("x")), shared(&b, Some("x")));
        assert_ne!(shared(&a, Some("x")), shared(&b, Some("y")));
        let refused = a.reuse(Some(""), false).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("cache_salt"));
    }

    #[test]
    fn a_key_may_use_so_much_a_minute() {
        let now = Instant::now();
        let limits = Limits { requests: Some(2), tokens: Some(100), ..Limits::default() };
        let client = Client::named("a".to_owned(), limits);
        assert!(client.ask(now).is_ok() && client.ask(now).is_ok());
        let refused = client.ask(now).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (429, Some("rate_limit_exceeded")));
        let later = now + Duration::from_secs(60);
        client.spend(200, later);
        assert!(client.ask(later).unwrap_err().message.contains("100 tokens a minute"));
        let again = Client::named("a".to_owned(), limits);
        assert!(again.ask(later).is_ok());
        again.goes_on(&client);
        assert!(again.ask(later).is_err());
    }

    #[test]
    fn services_tell_keys_apart() {
        let [a, b] = ["a", "b"].map(|name| Client::named(name.to_owned(), Limits::default()));
        assert_ne!(a.of_service(None).id, b.of_service(None).id);
        assert_eq!(Client::anybody().of_service(None), service::Client::default());
    }
}
