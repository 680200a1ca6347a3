//! Tenants, and what models cost.

use super::{
    DEFAULT_TENANT, Error, Grant, Keys, NewTenant, Price, Signed, State, TENANTS, Tenant, TenantChange, short,
};
use dunlin_node::clock;
use dunlin_protocol::{
    key::{self as wire, About},
    pattern::Pattern,
};
use std::sync::Arc;

impl Keys {
    /// A key may belong to the default tenant, which need not be made, or to one that was.
    pub(super) fn check_tenant(&self, name: &str) -> Result<(), Error> {
        match self.table().tenant(name) {
            Some(tenant) if tenant.removed.is_some() => Err(Error::Final(format!("tenant {name:?}"))),
            None if name != DEFAULT_TENANT => Err(Error::UnknownTenant(short(name))),
            _ => Ok(()),
        }
    }

    /// Whether a tenant of this name is there or was.
    ///
    /// # Errors
    /// There never was.
    pub(crate) fn was_tenant(&self, name: &str) -> Result<(), Error> {
        let known = name == DEFAULT_TENANT || self.table().tenant(name).is_some();
        if known { Ok(()) } else { Err(Error::UnknownTenant(short(name))) }
    }

    /// Tenants that were made and not removed, and the default one.
    #[must_use]
    pub fn tenants(&self) -> Vec<Tenant> {
        let table = self.table();
        let now = clock::unix_s();
        let grants = table.grants();
        let count = |name: &str| {
            grants.iter().filter(|grant| grant.key.tenant == name && grant.state(now) == State::Valid).count()
        };
        let mut all: Vec<Tenant> = table.tenants().map(|tenant| Tenant::of(tenant, count(&tenant.name))).collect();
        all.retain(|tenant| tenant.removed.is_none());
        if table.tenant(DEFAULT_TENANT).is_none() {
            let (name, note, keys) = (DEFAULT_TENANT.to_owned(), String::new(), count(DEFAULT_TENANT));
            all.insert(0, Tenant { name, note, models: None, created: 0, suspended: None, removed: None, keys });
        }
        all
    }

    fn tenant(&self, name: &str) -> Result<Tenant, Error> {
        self.tenants().into_iter().find(|tenant| tenant.name == name).ok_or_else(|| Error::UnknownTenant(short(name)))
    }

    /// Makes a tenant. Blocks on the disk.
    ///
    /// # Errors
    /// There is or was one of that name, as the default one always is, a name that may not be, this machine may not, or the database refuses.
    pub fn make_tenant(&self, asked: NewTenant) -> Result<(Tenant, Signed), Error> {
        let mut store = self.store();
        let author = self.author()?;
        let tenant = asked.wire(clock::unix_s())?;
        let name = tenant.name.clone();
        {
            let table = self.table();
            // The default one is there unmade.
            if name == DEFAULT_TENANT || table.tenant(&name).is_some() {
                return Err(Error::TenantExists(short(&name)));
            }
            if table.tenants().count() >= TENANTS {
                return Err(Error::TooManyTenants);
            }
        }
        let next = self.table().next(author.mesh(), About::Tenant(tenant));
        let signed = self.say(&mut store, vec![next], &[])?;
        Ok((self.tenant(&name)?, signed))
    }

    /// Changes a tenant. The default one is made by that. Blocks on the disk.
    ///
    /// # Errors
    /// No such tenant, removed already, this machine may not, or the database refuses.
    pub fn edit_tenant(&self, name: &str, change: TenantChange) -> Result<(Tenant, Signed), Error> {
        let mut store = self.store();
        let author = self.author()?;
        let now = clock::unix_s();
        let mut tenant = self.wire_tenant(name, now)?;
        change.apply(&mut tenant, now)?;
        let next = self.table().next(author.mesh(), About::Tenant(tenant));
        let signed = self.say(&mut store, vec![next], &[])?;
        Ok((self.tenant(name)?, signed))
    }

    /// Removes a tenant for ever; `with_keys`: its keys in force are revoked with it. Blocks on the disk.
    ///
    /// # Errors
    /// No such tenant, it has keys, this machine may not, or the database refuses.
    pub fn remove_tenant(&self, name: &str, with_keys: bool) -> Result<(Tenant, Signed), Error> {
        let mut store = self.store();
        let author = self.author()?;
        let now = clock::unix_s();
        let mut tenant = self.wire_tenant(name, now)?;
        if name == DEFAULT_TENANT {
            return Err(Error::Invalid("the default tenant stays; suspend it, or revoke its keys".into()));
        }
        let grants = self.table().grants();
        let own = |grant: &&Arc<Grant>| grant.key.tenant == name && grant.key.revoked.is_none();
        let keys: Vec<_> = grants.iter().filter(own).map(|grant| grant.key.clone()).collect();
        if !keys.is_empty() && !with_keys {
            return Err(Error::TenantHasKeys { tenant: short(name), keys: keys.len() });
        }
        tenant.removed = Some(now);
        let shown = Tenant::of(&tenant, 0);
        let new = {
            let table = self.table();
            let ended = keys.into_iter().map(|key| About::Key(wire::Key { revoked: Some(now), ..key }));
            // The keys first: whoever gets a part of it refuses more rather than less.
            let all = ended.chain([About::Tenant(tenant)]);
            all.map(|about| table.next(author.mesh(), about)).collect()
        };
        Ok((shown, self.say(&mut store, new, &[])?))
    }

    fn wire_tenant(&self, name: &str, now: u64) -> Result<wire::Tenant, Error> {
        match self.table().tenant(name) {
            Some(tenant) if tenant.removed.is_some() => Err(Error::Final(format!("tenant {name:?}"))),
            Some(tenant) => Ok(tenant.clone()),
            None if name == DEFAULT_TENANT => NewTenant { name: name.to_owned(), ..NewTenant::default() }.wire(now),
            None => Err(Error::UnknownTenant(short(name))),
        }
    }

    /// Prices in force, the longest pattern first.
    #[must_use]
    pub fn prices(&self) -> Vec<Price> {
        self.table().prices().iter().filter_map(|(_, price)| Price::of(price)).collect()
    }

    /// Says what models cost from now on. Blocks on the disk.
    ///
    /// # Errors
    /// No amount, this machine may not, or the database refuses.
    pub fn set_price(&self, price: &Price) -> Result<Signed, Error> {
        self.say_price(price.wire(false)?)
    }

    /// Takes a price away. Blocks on the disk.
    ///
    /// # Errors
    /// No such price, this machine may not, or the database refuses.
    pub fn remove_price(&self, models: &str) -> Result<Signed, Error> {
        let known = self.table().prices().iter().find(|(pattern, _)| pattern.as_str() == models).cloned();
        let (_, price) = known.ok_or_else(|| Error::UnknownPrice(short(models)))?;
        self.say_price(wire::Price { removed: true, ..price })
    }

    fn say_price(&self, price: wire::Price) -> Result<Signed, Error> {
        let mut store = self.store();
        let author = self.author()?;
        if !price.removed && self.table().prices().len() >= TENANTS {
            return Err(Error::TooManyTenants);
        }
        let next = self.table().next(author.mesh(), About::Price(price));
        self.say(&mut store, vec![next], &[])
    }

    /// What so many tokens of `model` cost, millionths. 0 without a price.
    pub(crate) fn cost_micros(&self, model: &str, prompt: u64, completion: u64, cached: u64) -> u64 {
        let table = self.table();
        let of = |(pattern, _): &&(Pattern, wire::Price)| pattern.matches(model);
        let Some((_, price)) = table.prices().iter().find(of) else { return 0 };
        let cached = cached.min(prompt);
        let sum = u128::from(prompt - cached) * u128::from(price.prompt_micros)
            + u128::from(cached) * u128::from(price.cached_micros)
            + u128::from(completion) * u128::from(price.completion_micros);
        u64::try_from(sum / 1_000_000).unwrap_or(u64::MAX)
    }
}
