//! What one proxy has as a copy of what all have.

use super::{Error, KEYS, Keys, Signed, store::Store};
use dunlin_protocol::key::{BUCKETS, KeyStatement, SignedKeyStatement};

/// Note of a file that has what the others have.
const SYNCED: &str = "synced";

/// Notes that what is in the file is not a part of something that was never fetched.
pub(super) fn mark(store: &mut Store) -> Result<(), Error> {
    if store.note(SYNCED)?.is_none() {
        store.set_note(SYNCED, "1")?;
    }
    Ok(())
}

impl Keys {
    /// Takes in what others said, verified already. Returns how much of it is new here; on disk when this returns.
    ///
    /// # Errors
    /// The database refuses.
    pub(crate) fn take(&self, said: Vec<(KeyStatement, SignedKeyStatement)>) -> Result<usize, Error> {
        let mut store = self.store();
        let mut new: Vec<(KeyStatement, SignedKeyStatement)> = Vec::new();
        {
            let table = self.table();
            let mut room = KEYS.saturating_sub(table.keys());
            for (statement, signed) in said {
                let name = statement.about.name();
                let is_known = table.get(&name).is_some();
                // A signer that was taken over must not fill the memory of every proxy.
                if !table.is_new(&statement) || (!is_known && room == 0) {
                    continue;
                }
                room -= usize::from(!is_known);
                // Of two about the same thing the last one that counts more stays, as in the table.
                if let Some(before) = new.iter_mut().find(|(before, _)| before.about.name() == name) {
                    if statement.compare(&before.0).is_gt() {
                        *before = (statement, signed);
                    }
                } else {
                    new.push((statement, signed));
                }
            }
        }
        let count = new.len();
        if count > 0 {
            let (statements, signed): (Vec<_>, Vec<_>) = new.into_iter().unzip();
            self.put(&mut store, statements.into_iter().zip(signed.iter()), &[])?;
        }
        Ok(count)
    }

    /// A fingerprint of each part of what is known.
    pub(crate) fn buckets(&self) -> [u64; BUCKETS] {
        *self.table().buckets()
    }

    /// All statements in some buckets, in order, and how many buckets those complete are, with at most about `bytes`.
    ///
    /// # Errors
    /// The database refuses.
    pub(crate) fn in_buckets(&self, wanted: &[u8], bytes: usize) -> Result<(usize, Signed), Error> {
        let (mut whole, mut left, mut all) = (0, bytes, Vec::new());
        for bucket in wanted {
            let names = self.table().names_in(*bucket);
            let mut of_bucket = Vec::new();
            let mut store = self.store();
            for name in names {
                of_bucket.extend(store.signed(&name)?);
            }
            drop(store);
            let size: usize = of_bucket.iter().map(|one| one.encode().map_or(0, |bytes| bytes.len())).sum();
            if size > left && whole > 0 {
                break;
            }
            left = left.saturating_sub(size);
            whole += 1;
            all.append(&mut of_bucket);
        }
        Ok((whole, all))
    }

    /// Statements whose signer's certificate, as it came with them, ends before `before` (unix seconds) or was revoked, so
    /// that who comes later could not verify them: made anew in this machine's name. At most `most` at once.
    ///
    /// # Errors
    /// This machine may not, or the database refuses.
    pub(crate) fn sign_again(&self, most: usize, needs: impl Fn(&SignedKeyStatement) -> bool) -> Result<Signed, Error> {
        let author = self.author()?;
        if !author.keeps_keys() {
            return Ok(Vec::new());
        }
        let names: Vec<String> = self.table().names();
        let mut due = Vec::new();
        for name in names {
            let signed = self.store().signed(&name)?;
            if signed.is_some_and(|signed| needs(&signed)) {
                let table = self.table();
                due.extend(table.get(&name).map(|known| table.next(author.mesh(), known.about.clone())));
            }
            if due.len() >= most {
                break;
            }
        }
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let mut store = self.store();
        self.say(&mut store, due, &[])
    }

    /// Whether this file ever had what the others have, or anything of its own.
    ///
    /// # Errors
    /// The database refuses.
    pub(crate) fn was_synced(&self) -> Result<bool, Error> {
        let mut store = self.store();
        // Keys of an older version were all that its proxy had.
        Ok(store.note(SYNCED)?.is_some() || !store.locals()?.is_empty())
    }

    pub(crate) fn set_synced(&self) -> Result<(), Error> {
        mark(&mut self.store())
    }

    /// Something else that is to be there after a restart.
    pub(crate) fn note(&self, name: &str) -> Result<Option<String>, Error> {
        self.store().note(name)
    }

    pub(crate) fn set_note(&self, name: &str, value: &str) -> Result<(), Error> {
        self.store().set_note(name, value)
    }
}
