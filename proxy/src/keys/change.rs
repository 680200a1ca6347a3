//! What may be asked of keys, tenants and prices, and how they are shown: the JSON of the command line and the admin API.

use super::{Error, table::DEFAULT_TENANT, table::Grant, token::Token};
use dunlin_protocol::{
    key::{self as wire, KeyKind},
    limits,
    pattern::{Models, Pattern},
};
use serde::{Deserialize, Deserializer, Serialize};

/// Longest name of a key, characters.
pub const NAME_CHARS: usize = 128;

/// How much a key may use over all proxies; what is absent has no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Requests in any 60 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Tokens of prompts and answers in any 60 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
    /// Requests at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_requests: Option<u32>,
    /// Tokens in a calendar month, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monthly_tokens: Option<u64>,
    /// Cost in a calendar month, UTC, in the money of the prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monthly_cost: Option<f64>,
}

/// Last second of the year 9999.
const LATEST: u64 = 253_402_300_799;

/// Money to millionths; what is no amount becomes an error.
pub(super) fn micros(amount: f64, what: &'static str) -> Result<u64, Error> {
    if !(0.0..=1e12).contains(&amount) {
        return Err(Error::Invalid(format!("{what} is {amount}; give an amount from 0 to a million million")));
    }
    let micros = (amount * 1e6).round() as u64;
    if micros == 0 && amount > 0.0 {
        return Err(Error::Invalid(format!("{what} is {amount}; the least that is counted is 0.000001")));
    }
    Ok(micros)
}

/// Millionths to money.
pub(crate) fn money(micros: u64) -> f64 {
    micros as f64 / 1e6
}

impl Limits {
    fn wire(&self) -> Result<wire::Limits, Error> {
        Ok(wire::Limits {
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            concurrent_requests: self.concurrent_requests,
            monthly_tokens: self.monthly_tokens,
            monthly_cost_micros: self.monthly_cost.map(|cost| micros(cost, "the monthly cost")).transpose()?,
        })
    }

    fn of(wire: &wire::Limits) -> Self {
        Self {
            requests_per_minute: wire.requests_per_minute,
            tokens_per_minute: wire.tokens_per_minute,
            concurrent_requests: wire.concurrent_requests,
            monthly_tokens: wire.monthly_tokens,
            monthly_cost: wire.monthly_cost_micros.map(money),
        }
    }
}

/// What may be shown of a key. The secret is not among it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// Names the key in lists and to `revoke`.
    pub id: String,
    /// Whatever its owner called it; may be empty.
    pub name: String,
    /// What it opens.
    #[serde(default)]
    pub kind: KeyKind,
    /// Whose it is.
    #[serde(default)]
    pub tenant: String,
    /// Patterns of the models that may be asked for; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<Pattern>>,
    /// How much.
    #[serde(default)]
    pub limits: Limits,
    /// Who waits behind whom: higher goes first.
    #[serde(default)]
    pub priority: i8,
    /// Words for people and programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// When it was made, unix seconds.
    pub created: u64,
    /// From when on it opens nothing, unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// When it was revoked, unix seconds.
    pub revoked: Option<u64>,
    /// Whether its tenant is suspended or removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Whether only the proxy that is asked knows it: made by an older version there, and not told to the others yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
}

impl Key {
    pub(super) fn of(grant: &Grant) -> Self {
        let Grant { key, tenant, local } = grant;
        Self {
            id: key.id.clone(),
            name: key.name.clone(),
            kind: key.kind,
            tenant: key.tenant.clone(),
            models: patterns(&key.models),
            limits: Limits::of(&key.limits),
            priority: key.priority,
            tags: key.tags.clone(),
            created: key.created,
            expires: key.expires,
            revoked: key.revoked,
            suspended: tenant.as_ref().is_some_and(|of| of.suspended.is_some() || of.removed.is_some()),
            local: *local,
        }
    }

    /// Whether it opens what it is for at `now`, unix seconds.
    #[must_use]
    pub fn counts(&self, now: u64) -> bool {
        self.revoked.is_none() && !self.suspended && self.expires.is_none_or(|expires| now < expires)
    }
}

fn patterns(models: &Models) -> Option<Vec<Pattern>> {
    match models {
        Models::Any => None,
        Models::Only(patterns) => Some(patterns.clone()),
    }
}

fn models(patterns: Option<Vec<Pattern>>) -> Result<Models, Error> {
    match patterns {
        None => Ok(Models::Any),
        Some(patterns) if patterns.len() > limits::CERTIFICATE_PATTERNS => {
            let most = limits::CERTIFICATE_PATTERNS;
            Err(Error::Invalid(format!("{} model patterns; at most {most} are allowed", patterns.len())))
        }
        Some(patterns) => Ok(Models::Only(patterns)),
    }
}

/// A key to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewKey {
    /// What it is to be called in lists.
    pub name: String,
    /// What it is to open.
    pub kind: KeyKind,
    /// Whose it is to be.
    pub tenant: Option<String>,
    /// Patterns of the models that may be asked for; absent: all.
    pub models: Option<Vec<Pattern>>,
    /// How much.
    pub limits: Limits,
    /// Who waits behind whom: higher goes first, 0 is usual.
    pub priority: i8,
    /// Words for people and programs.
    pub tags: Vec<String>,
    /// From when on it is to open nothing, unix seconds.
    pub expires: Option<u64>,
}

impl NewKey {
    pub(super) fn wire(self, token: &Token, now: u64) -> Result<wire::Key, Error> {
        check_name(&self.name)?;
        check_expiry(self.expires, now)?;
        Ok(wire::Key {
            id: token.id.clone(),
            kind: self.kind,
            digest: token.digest(),
            name: self.name,
            tenant: self.tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
            models: models(self.models)?,
            limits: self.limits.wire()?,
            priority: self.priority,
            tags: self.tags,
            created: now,
            expires: self.expires,
            revoked: None,
            ends_streams: false,
        })
    }

    /// Whether it is more than a name.
    pub(super) fn is_plain(&self) -> bool {
        let Self { name: _, kind, tenant, models, limits, priority, tags, expires } = self;
        *kind == KeyKind::Client
            && tenant.as_ref().is_none_or(|tenant| tenant == DEFAULT_TENANT)
            && models.is_none()
            && *limits == Limits::default()
            && *priority == 0
            && tags.is_empty()
            && expires.is_none()
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.chars().count() > NAME_CHARS { Err(Error::Name) } else { Ok(()) }
}

fn check_expiry(expires: Option<u64>, now: u64) -> Result<(), Error> {
    match expires {
        Some(at) if at <= now => Err(Error::Invalid(format!("the expiry {at} (unix seconds) has passed already"))),
        // Milliseconds, as a rule: a key that is meant to end soon would be good for fifty thousand years.
        Some(at) if at > LATEST => Err(Error::Invalid(format!(
            "the expiry {at} is after the year 9999; give unix seconds, not milliseconds, or none for a key that stays"
        ))),
        _ => Ok(()),
    }
}

/// A field that is told: `null` takes the value away, a field that is absent leaves it.
fn told<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// What is to change of a key. Absent fields stay; `null` takes a limit, the expiry or the model patterns away.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyChange {
    /// Another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Other models.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub models: Option<Option<Vec<Pattern>>>,
    /// Another limit.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<Option<u32>>,
    /// Another limit.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<Option<u32>>,
    /// Another limit.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub concurrent_requests: Option<Option<u32>>,
    /// Another budget.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub monthly_tokens: Option<Option<u64>>,
    /// Another budget.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub monthly_cost: Option<Option<f64>>,
    /// Another priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i8>,
    /// Other tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Another end.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub expires: Option<Option<u64>>,
}

impl KeyChange {
    pub(super) fn apply(self, key: &mut wire::Key, now: u64) -> Result<(), Error> {
        fn set<T>(field: &mut T, change: Option<T>) {
            if let Some(value) = change {
                *field = value;
            }
        }
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        check_expiry(self.expires.flatten(), now)?;
        set(&mut key.name, self.name);
        set(&mut key.models, self.models.map(models).transpose()?);
        set(&mut key.limits.requests_per_minute, self.requests_per_minute);
        set(&mut key.limits.tokens_per_minute, self.tokens_per_minute);
        set(&mut key.limits.concurrent_requests, self.concurrent_requests);
        set(&mut key.limits.monthly_tokens, self.monthly_tokens);
        if let Some(cost) = self.monthly_cost {
            key.limits.monthly_cost_micros = cost.map(|cost| micros(cost, "the monthly cost")).transpose()?;
        }
        set(&mut key.priority, self.priority);
        set(&mut key.tags, self.tags);
        set(&mut key.expires, self.expires);
        Ok(())
    }
}

/// A tenant, shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Names it.
    pub name: String,
    /// Whatever was noted.
    pub note: String,
    /// Patterns of the models that its keys may ask for at most; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<Pattern>>,
    /// When it was made, unix seconds.
    pub created: u64,
    /// Since when its keys open nothing, unix seconds.
    pub suspended: Option<u64>,
    /// When it was removed, unix seconds.
    pub removed: Option<u64>,
    /// Its keys in force.
    pub keys: usize,
}

impl Tenant {
    pub(super) fn of(tenant: &wire::Tenant, keys: usize) -> Self {
        Self {
            name: tenant.name.clone(),
            note: tenant.note.clone(),
            models: patterns(&tenant.models),
            created: tenant.created,
            suspended: tenant.suspended,
            removed: tenant.removed,
            keys,
        }
    }
}

/// A tenant to be made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// Letters, digits and `-_.`.
    pub name: String,
    /// For people.
    #[serde(default)]
    pub note: String,
    /// Patterns of the models that its keys may ask for at most; absent: all.
    #[serde(default)]
    pub models: Option<Vec<Pattern>>,
}

impl NewTenant {
    pub(super) fn wire(self, now: u64) -> Result<wire::Tenant, Error> {
        let models = models(self.models)?;
        Ok(wire::Tenant { name: self.name, note: self.note, models, created: now, suspended: None, removed: None })
    }
}

/// What is to change of a tenant. Absent fields stay; `null` takes the model patterns away.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantChange {
    /// Another note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Other models.
    #[serde(deserialize_with = "told", skip_serializing_if = "Option::is_none")]
    pub models: Option<Option<Vec<Pattern>>>,
    /// Whether its keys open nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
}

impl TenantChange {
    pub(super) fn apply(self, tenant: &mut wire::Tenant, now: u64) -> Result<(), Error> {
        if let Some(note) = self.note {
            tenant.note = note;
        }
        if let Some(patterns) = self.models {
            tenant.models = models(patterns)?;
        }
        match self.suspended {
            Some(true) => _ = tenant.suspended.get_or_insert(now),
            Some(false) => tenant.suspended = None,
            None => {}
        }
        Ok(())
    }
}

/// What the models that match a pattern cost, for a million tokens, in whatever money.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// A pattern over model names; of several that match, the longest counts.
    pub models: Pattern,
    /// Of prompts.
    #[serde(default)]
    pub prompt: f64,
    /// Of answers.
    #[serde(default)]
    pub completion: f64,
    /// Of the part of prompts that came from a cache; absent: as prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<f64>,
}

impl Price {
    pub(super) fn of(price: &wire::Price) -> Option<Self> {
        Some(Self {
            models: Pattern::new(&price.models).ok()?,
            prompt: money(price.prompt_micros),
            completion: money(price.completion_micros),
            cached: Some(money(price.cached_micros)),
        })
    }

    pub(super) fn wire(&self, removed: bool) -> Result<wire::Price, Error> {
        Ok(wire::Price {
            models: self.models.to_string(),
            prompt_micros: micros(self.prompt, "the price of prompts")?,
            completion_micros: micros(self.completion, "the price of answers")?,
            cached_micros: micros(self.cached.unwrap_or(self.prompt), "the price of cached prompts")?,
            removed,
        })
    }
}
