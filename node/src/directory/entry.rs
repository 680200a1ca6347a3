//! One replica: everything that its peer said of it, and the view that follows from that.
//!
//! The parts only ever grow by version, so that the view is a function of the set of statements, whatever their order.

use super::{EXPIRY, PeerEntry, RECORDS_PER_REPLICA, Reachability, Replica};
use dunlin_protocol::{
    announcement::{Announcement, ReplicaState, ServedModel},
    id::{ModelId, ReplicaId, RuntimeName, Version},
    load::LoadReport,
    record::{Continuation, RecordState},
};
use std::{collections::BTreeMap, time::Instant};

#[derive(Debug)]
pub(super) struct Entry {
    id: ReplicaId,
    announcement: Option<(Announcement, Instant)>,
    records: BTreeMap<ModelId, Record>,
    load: Option<(LoadReport, Instant)>,
    /// The connection was lost since the announcement: another process, with other weights, may be there by now.
    unconfirmed: bool,
    view: Option<Replica>,
}

#[derive(Debug)]
struct Record {
    version: Version,
    state: RecordState,
    expires: Instant,
}

impl Entry {
    pub(super) fn new(id: ReplicaId) -> Self {
        Self { id, announcement: None, records: BTreeMap::new(), load: None, unconfirmed: false, view: None }
    }

    pub(super) fn view(&self) -> Option<&Replica> {
        self.view.as_ref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.announcement.is_none() && self.records.is_empty() && self.load.is_none()
    }

    pub(super) fn record_version(&self, model: &ModelId) -> Option<Version> {
        self.records.get(model).map(|record| record.version)
    }

    pub(super) fn announced_version(&self) -> Option<Version> {
        self.announcement.as_ref().map(|(announcement, _)| announcement.version)
    }

    pub(super) fn announce(&mut self, announcement: Announcement, now: Instant) -> bool {
        if self.announcement.as_ref().is_some_and(|(known, _)| known.version >= announcement.version) {
            return false;
        }
        self.announcement = Some((announcement, now + EXPIRY));
        self.unconfirmed = false;
        true
    }

    pub(super) fn record(&mut self, model: ModelId, version: Version, state: RecordState, now: Instant) -> bool {
        match self.records.get(&model) {
            Some(known) if known.version >= version => return false,
            None if self.records.len() >= RECORDS_PER_REPLICA => return false,
            _ => {}
        }
        self.records.insert(model, Record { version, state, expires: now + EXPIRY });
        true
    }

    pub(super) fn report(&mut self, report: LoadReport, now: Instant) -> bool {
        if self.load.as_ref().is_some_and(|(known, _)| known.version >= report.version) {
            return false;
        }
        // Of the process that announced: it is still that one.
        if self.unconfirmed
            && self.announcement.as_ref().is_some_and(|(said, _)| said.version.epoch == report.version.epoch)
        {
            self.unconfirmed = false;
            let continuation = self.continuation();
            if let Some(view) = &mut self.view {
                (view.continuation, view.unconfirmed) = (continuation, false);
            }
        }
        self.load = Some((report, now));
        // Reports come ten times a second and may not cost what deriving all models anew costs.
        let slots = self.slots();
        if let Some(view) = &mut self.view {
            view.slots = slots;
            view.load.clone_from(&self.load);
        }
        true
    }

    /// Zero while nothing is known but records.
    fn slots(&self) -> u16 {
        let announced = self.announcement.as_ref().map(|(said, _)| said.slots);
        announced.or(self.load.as_ref().map(|(report, _)| report.slots)).unwrap_or(0)
    }

    pub(super) fn expired(&self, now: Instant) -> bool {
        self.announcement.as_ref().is_some_and(|(_, expires)| *expires <= now)
            || self.records.values().any(|record| record.expires <= now)
            || self.load.as_ref().is_some_and(|(_, received)| *received + EXPIRY <= now)
    }

    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.announcement.take_if(|(_, expires)| *expires <= now);
        self.load.take_if(|(_, received)| *received + EXPIRY <= now);
        self.records.retain(|_, record| record.expires > now);
        true
    }

    /// Forgets what was said by processes before `epoch`. Returns whether there was anything.
    pub(super) fn forget_before(&mut self, epoch: u64) -> bool {
        let records = self.records.len();
        self.records.retain(|_, record| record.version.epoch >= epoch);
        let announced = self.announcement.take_if(|(said, _)| said.version.epoch < epoch).is_some();
        let reported = self.load.take_if(|(report, _)| report.version.epoch < epoch).is_some();
        announced || reported || self.records.len() != records
    }

    pub(super) fn set_reachability(&mut self, reachability: Reachability) {
        self.unconfirmed |= reachability == Reachability::Disconnected;
        let continuation = self.continuation();
        if let Some(view) = &mut self.view {
            view.reachability = reachability;
            (view.continuation, view.unconfirmed) = (continuation, self.unconfirmed);
        }
    }

    /// Derives the view. Returns whether it differs from the last one.
    pub(super) fn derive(&mut self, peer: &PeerEntry) -> bool {
        let view = self.build(peer);
        let changed = view != self.view;
        self.view = view;
        changed
    }

    fn build(&self, peer: &PeerEntry) -> Option<Replica> {
        let announced = self.announcement.as_ref().map(|(announcement, _)| announcement);
        let models = self.models(peer);
        let state = self.state()?;
        if models.is_empty() && announced.is_none() {
            return None;
        }
        let newest = self.newest_live();
        let (runtime, _) = self.engine()?;
        let version = announced.map(|said| said.version).max(newest.map(|(version, _)| version)).unwrap_or_default();
        Some(Replica {
            id: self.id,
            state,
            runtime: runtime.cloned(),
            continuation: self.continuation(),
            unconfirmed: self.unconfirmed,
            slots: self.slots(),
            models,
            version,
            addresses: peer.addresses().to_vec(),
            reachability: peer.reachability,
            load: self.load.clone(),
        })
    }

    /// What the newest statement says of the engine.
    fn engine(&self) -> Option<(Option<&RuntimeName>, Continuation)> {
        let announced = self.announcement.as_ref().map(|(said, _)| said);
        match (announced, self.newest_live()) {
            (Some(said), Some((version, RecordState::Live { runtime, continuation, .. })))
                if version > said.version =>
            {
                Some((runtime.as_ref(), *continuation))
            }
            (Some(said), _) => Some((Some(&said.runtime), said.continuation)),
            (None, Some((_, RecordState::Live { runtime, continuation, .. }))) => {
                Some((runtime.as_ref(), *continuation))
            }
            (None, _) => None,
        }
    }

    fn continuation(&self) -> Continuation {
        let said = self.engine().map_or(Continuation::None, |(_, continuation)| continuation);
        if self.unconfirmed { Continuation::None } else { said }
    }

    /// `None` when the replica has left.
    fn state(&self) -> Option<ReplicaState> {
        let live_after = |version: Version| {
            self.newest_live().is_some_and(|(live, _)| live > version).then_some(ReplicaState::Ready)
        };
        match &self.announcement {
            None => self.newest_live().map(|_| ReplicaState::Ready),
            Some((said, _)) if said.state == ReplicaState::Ready => Some(ReplicaState::Ready),
            // A live record is put only while the replica is ready, so a later one says more than the announcement.
            Some((said, _)) => live_after(said.version).or(Some(said.state)),
        }
        .filter(|state| *state != ReplicaState::Gone)
    }

    fn newest_live(&self) -> Option<(Version, &RecordState)> {
        let live = self.records.values().filter(|record| matches!(record.state, RecordState::Live { .. }));
        live.max_by_key(|record| record.version).map(|record| (record.version, &record.state))
    }

    /// Models of the announcement, corrected by records that are later than it, within the peer's rights.
    fn models(&self, peer: &PeerEntry) -> Vec<ServedModel> {
        let mut models: BTreeMap<ModelId, ServedModel> = BTreeMap::new();
        let mut since = None;
        if let Some((said, _)) = &self.announcement {
            since = Some(said.version);
            if said.state != ReplicaState::Gone {
                models.extend(said.models.iter().map(|model| (model.id.clone(), model.clone())));
            }
        }
        for (id, record) in &self.records {
            if since.is_some_and(|version| record.version <= version) {
                continue;
            }
            match record.state {
                RecordState::Withdrawn => {
                    models.remove(id);
                }
                RecordState::Live { .. } => {
                    models.entry(id.clone()).or_insert_with(|| ServedModel {
                        id: id.clone(),
                        parent: None,
                        context: None,
                        root: None,
                    });
                }
            }
        }
        models.into_values().filter(|model| peer.may_serve(&model.id)).collect()
    }
}
