//! A table that follows a watch: what a fresh list does not name any more goes when the list is whole.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// The table.
pub struct Cache<K, V> {
    entries: HashMap<K, (u32, V)>,
    /// Counts lists.
    list: u32,
    whole: bool,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), list: 0, whole: false }
    }
}

impl<K: Hash + Eq + Clone, V> Cache<K, V> {
    /// A list begins.
    pub fn begin(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// An entry, new or changed. Returns what was there.
    pub fn put(&mut self, key: K, value: V) -> Option<V> {
        self.entries.insert(key, (self.list, value)).map(|(_, before)| before)
    }

    /// An entry went.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key).map(|(_, value)| value)
    }

    /// The list is whole: what it did not name goes.
    pub fn finish(&mut self) -> Vec<(K, V)> {
        self.whole = true;
        let list = self.list;
        let gone: Vec<K> =
            self.entries.iter().filter(|(_, (seen, _))| *seen != list).map(|(key, _)| key.clone()).collect();
        gone.into_iter().filter_map(|key| self.entries.remove(&key).map(|(_, value)| (key, value))).collect()
    }

    /// Whether a list has been whole once.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// An entry.
    #[must_use]
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// An entry with its key.
    #[must_use]
    pub fn entry<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.entries.get_key_value(key).map(|(key, (_, value))| (key, value))
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fresh_list_lacks_goes_when_it_is_whole() {
        let mut cache = Cache::default();
        cache.begin();
        cache.put("a", 1);
        assert!(!cache.is_whole());
        assert!(cache.finish().is_empty() && cache.is_whole());
        cache.put("b", 2);
        cache.begin();
        cache.put("b", 3);
        assert_eq!(cache.get("a"), Some(&1), "nothing goes while the list is on its way");
        assert_eq!(cache.finish(), [("a", 1)]);
        assert_eq!(cache.remove("b"), Some(3));
    }
}
