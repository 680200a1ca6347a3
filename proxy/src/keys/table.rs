//! All statements in memory: what checks read, and what two sides compare. Pure.

use super::store::LocalKey;
use dunlin_protocol::{
    id::{MeshId, ModelId},
    key::{About, BUCKETS, Key, KeyKind, KeyStatement, Limits, Price, Tenant, bucket},
    pattern::{Models, Pattern},
};
use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

/// The tenant of keys that name none.
pub(crate) const DEFAULT_TENANT: &str = "default";

/// What a key gives, with what its tenant allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) key: Key,
    pub(crate) tenant: Option<Tenant>,
    /// Whether only this proxy knows it.
    pub(crate) local: bool,
}

impl Grant {
    /// Whether `model`, as the client named it, may be asked for.
    pub(crate) fn allows(&self, model: &ModelId) -> bool {
        self.key.models.allows(model) && self.tenant.as_ref().is_none_or(|tenant| tenant.models.allows(model))
    }

    /// Whether it opens what it is for at `now`, unix seconds, and if not, why.
    pub(crate) fn state(&self, now: u64) -> State {
        let Self { key, tenant, .. } = self;
        if key.revoked.is_some() || tenant.as_ref().is_some_and(|tenant| tenant.removed.is_some()) {
            return State::Revoked;
        }
        if key.expires.is_some_and(|expires| now >= expires) {
            return State::Expired;
        }
        if tenant.as_ref().is_some_and(|tenant| tenant.suspended.is_some()) {
            return State::Suspended;
        }
        State::Valid
    }
}

/// How a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Valid,
    Revoked,
    Expired,
    Suspended,
}

/// One statement held, with its fingerprint.
#[derive(Debug, Clone)]
struct Held {
    statement: KeyStatement,
    fingerprint: u64,
}

/// Everything that was said.
#[derive(Debug)]
pub(super) struct Table {
    held: BTreeMap<String, Held>,
    grants: foldhash::HashMap<Box<str>, Arc<Grant>>,
    buckets: Box<[u64; BUCKETS]>,
    prices: Vec<(Pattern, Price)>,
}

impl Default for Table {
    fn default() -> Self {
        let grants = foldhash::HashMap::default();
        Self { held: BTreeMap::new(), grants, buckets: Box::new([0; BUCKETS]), prices: Vec::new() }
    }
}

impl Table {
    /// What there is in a file.
    pub(super) fn of(statements: Vec<KeyStatement>, locals: Vec<LocalKey>) -> Self {
        let mut table = Self::default();
        for local in locals {
            table.put_local(local);
        }
        for statement in statements {
            table.put(statement);
        }
        table
    }

    pub(super) fn grant(&self, id: &str) -> Option<&Arc<Grant>> {
        self.grants.get(id)
    }

    pub(super) fn keys(&self) -> usize {
        self.grants.len()
    }

    /// All keys, oldest first.
    pub(super) fn grants(&self) -> Vec<Arc<Grant>> {
        let mut all: Vec<_> = self.grants.values().cloned().collect();
        all.sort_by(|a, b| (a.key.created, &a.key.id).cmp(&(b.key.created, &b.key.id)));
        all
    }

    pub(super) fn any(&self, kind: KeyKind, now: u64) -> bool {
        self.grants.values().any(|grant| grant.key.kind == kind && grant.state(now) == State::Valid)
    }

    pub(super) fn get(&self, name: &str) -> Option<&KeyStatement> {
        self.held.get(name).map(|held| &held.statement)
    }

    /// Tenants in order of their names, removed ones included.
    pub(super) fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.held.values().filter_map(|held| match &held.statement.about {
            About::Tenant(tenant) => Some(tenant),
            _ => None,
        })
    }

    pub(super) fn tenant(&self, name: &str) -> Option<&Tenant> {
        match &self.get(&format!("t/{name}"))?.about {
            About::Tenant(tenant) => Some(tenant),
            _ => None,
        }
    }

    /// Prices in force, the longest pattern first.
    pub(super) fn prices(&self) -> &[(Pattern, Price)] {
        &self.prices
    }

    /// Whether a statement would replace what there is.
    pub(super) fn is_new(&self, statement: &KeyStatement) -> bool {
        let known = self.get(&statement.about.name());
        known.is_none_or(|known| statement.compare(known) == Ordering::Greater)
    }

    /// Takes a statement in, if it counts more than what was there. Returns whether it does.
    pub(super) fn put(&mut self, statement: KeyStatement) -> bool {
        if !self.is_new(&statement) {
            return false;
        }
        let name = statement.about.name();
        let fingerprint = statement.fingerprint();
        let sum = &mut self.buckets[usize::from(bucket(&name))];
        if let Some(before) = self.held.get(&name) {
            *sum = sum.wrapping_sub(before.fingerprint);
        }
        *sum = sum.wrapping_add(fingerprint);
        match &statement.about {
            About::Key(key) => self.set_grant(key.clone(), false),
            About::Tenant(_) | About::Price(_) => {}
        }
        let about = statement.about.clone();
        self.held.insert(name, Held { statement, fingerprint });
        match about {
            About::Tenant(tenant) => self.tenant_changed(&tenant),
            About::Price(_) => self.prices_changed(),
            About::Key(_) => {}
        }
        true
    }

    /// A key that only this file knows, unless all know it.
    pub(super) fn put_local(&mut self, local: LocalKey) {
        if self.grants.get(local.id.as_str()).is_none_or(|grant| grant.local) {
            self.set_grant(key_of(local), true);
        }
    }

    fn set_grant(&mut self, key: Key, local: bool) {
        let tenant = self.tenant(&key.tenant).cloned();
        self.grants.insert(key.id.clone().into(), Arc::new(Grant { key, tenant, local }));
    }

    fn tenant_changed(&mut self, tenant: &Tenant) {
        for grant in self.grants.values_mut().filter(|grant| grant.key.tenant == tenant.name) {
            *grant = Arc::new(Grant { tenant: Some(tenant.clone()), ..Grant::clone(grant) });
        }
    }

    fn prices_changed(&mut self) {
        let prices = self.held.values().filter_map(|held| match &held.statement.about {
            About::Price(price) if !price.removed => Some((Pattern::new(&price.models).ok()?, price.clone())),
            _ => None,
        });
        self.prices = prices.collect();
        self.prices.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.as_str().len()));
    }

    pub(super) fn buckets(&self) -> &[u64; BUCKETS] {
        &self.buckets
    }

    /// Names of all that was said.
    pub(super) fn names(&self) -> Vec<String> {
        self.held.keys().cloned().collect()
    }

    /// Names of all that was said in a bucket.
    pub(super) fn names_in(&self, wanted: u8) -> Vec<String> {
        self.held.keys().filter(|name| bucket(name) == wanted).cloned().collect()
    }

    /// The statement that changes what there is about `about`.
    pub(super) fn next(&self, mesh: MeshId, about: About) -> KeyStatement {
        let version = self.get(&about.name()).map_or(0, |known| known.version);
        KeyStatement { mesh, version: version.saturating_add(1), about }
    }
}

/// A key of a file without statements.
pub(super) fn key_of(local: LocalKey) -> Key {
    Key {
        id: local.id,
        kind: KeyKind::Client,
        digest: local.digest,
        name: local.name,
        tenant: DEFAULT_TENANT.to_owned(),
        models: Models::Any,
        limits: Limits::default(),
        priority: 0,
        tags: Vec::new(),
        created: local.created,
        expires: None,
        revoked: local.revoked,
        ends_streams: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn statement(id: u8, version: u64, revoked: bool) -> KeyStatement {
        let local =
            LocalKey { id: format!("id{id}"), digest: [id; 32], name: String::new(), created: 1, revoked: None };
        let mut key = key_of(local);
        key.revoked = revoked.then_some(version);
        KeyStatement { mesh: MeshId([1; 32]), version, about: About::Key(key) }
    }

    fn tenant(suspended: Option<u64>, removed: Option<u64>, version: u64) -> KeyStatement {
        let models = Models::Only(vec![Pattern::new("Qwen/*").unwrap()]);
        let (name, note) = (DEFAULT_TENANT.to_owned(), String::new());
        let about = About::Tenant(Tenant { name, note, models, created: 1, suspended, removed });
        KeyStatement { mesh: MeshId([1; 32]), version, about }
    }

    proptest! {
        /// The order in which statements come, and how often, makes no difference.
        #[test]
        fn any_order_gives_the_same_table(
            said in proptest::collection::vec((0u8..4, 0u64..4, any::<bool>()), 0..24),
            seed in any::<u64>(),
        ) {
            let said: Vec<_> = said.into_iter().map(|(id, version, revoked)| statement(id, version, revoked)).collect();
            let mut shuffled = [said.clone(), said.clone()].concat();
            use rand::{SeedableRng, seq::SliceRandom};
            shuffled.shuffle(&mut rand::rngs::StdRng::seed_from_u64(seed));
            let (one, other) = (Table::of(said.clone(), vec![]), Table::of(shuffled, vec![]));
            prop_assert_eq!(one.buckets(), other.buckets());
            prop_assert_eq!(one.grants(), other.grants());
            for each in &said {
                let About::Key(key) = &each.about else { unreachable!() };
                let now = one.grant(&key.id).unwrap();
                prop_assert!(key.revoked.is_none() || now.key.revoked.is_some(), "revoked is final");
            }
        }
    }

    #[test]
    fn a_tenant_decides_for_its_keys_whichever_comes_first() {
        let model = ModelId::new("Qwen/x").unwrap();
        let other = ModelId::new("x").unwrap();
        let all = [statement(1, 1, false), tenant(Some(5), None, 1)];
        for order in [[0, 1], [1, 0]] {
            let mut table = Table::of(order.map(|n| all[n].clone()).to_vec(), vec![]);
            let state = |table: &Table| table.grant("id1").unwrap().state(10);
            assert_eq!(state(&table), State::Suspended);
            assert!(table.put(tenant(None, None, 2)));
            assert_eq!(state(&table), State::Valid);
            let grant = table.grant("id1").unwrap();
            assert!(grant.allows(&model) && !grant.allows(&other));
            assert!(table.put(tenant(None, Some(3), 1)), "removed is final");
            assert_eq!(state(&table), State::Revoked);
            assert!(!table.put(tenant(None, None, 9)));
        }
    }

    #[test]
    fn what_all_know_goes_before_what_this_file_knows() {
        let local = LocalKey { id: "id1".into(), digest: [9; 32], name: "old".into(), created: 1, revoked: None };
        let mut table = Table::of(vec![statement(1, 1, true)], vec![local.clone()]);
        table.put_local(local);
        assert_eq!(table.grant("id1").unwrap().state(10), State::Revoked);
    }
}
