//! Kademlia: puts of others, answers to look-ups, and news of the routing table.

use crate::{directory, event_loop::EventLoop, record_store::Refusal};
use dunlin_protocol::{
    id::PeerId,
    limits,
    record::{RecordState, TopicRecord},
};
use libp2p::kad::{Event, GetRecordOk, InboundRequest, ProgressStep, PutRecordError, QueryId, QueryResult, Record};
use std::time::Instant;

impl EventLoop {
    pub(crate) fn on_kad(&mut self, event: Event) {
        match event {
            Event::InboundRequest { request: InboundRequest::PutRecord { source, record: Some(record), .. } } => {
                self.on_put(source, &record);
            }
            Event::OutboundQueryProgressed { id, result, step, .. } => self.on_progress(id, result, &step),
            Event::RoutingUpdated { peer, is_new_peer: true, .. } => {
                tracing::debug!(%peer, "new peer in the routing table");
                self.neighbourhood_changed();
            }
            _ => {}
        }
    }

    /// The sender took its put for done already: what is refused here is only not there when it is read.
    fn on_put(&mut self, source: PeerId, record: &Record) {
        let membership = self.members.check(&source, crate::clock::unix_s());
        let Ok(membership) = membership else {
            tracing::debug!(peer = %source, "put of a peer without rights refused");
            return;
        };
        let store = self.swarm.behaviour_mut().kad.store_mut();
        let allowed = |topic: &_| membership.may_register(topic);
        match store.put_from(source, &record.key, &record.value, allowed, Instant::now()) {
            Ok(()) => {}
            Err(Refusal::Full) => tracing::warn!(peer = %source, "record store is full"),
            Err(refusal) => tracing::info!(peer = %source, %refusal, "put refused"),
        }
    }

    fn on_progress(&mut self, query: QueryId, result: QueryResult, step: &ProgressStep) {
        if let QueryResult::GetRecord(Ok(GetRecordOk::FoundRecord(found))) = &result {
            let directory = self.shared.directory.clone();
            let records = self.look_ups.found(query, &found.record.value, &directory, Instant::now());
            // What this process serves it knows better than any storer.
            for record in records.into_iter().filter(|record| record.replica.peer != self.shared.peer_id) {
                let record = directory::Event::Record(self.with_useful_addresses(record));
                match found.peer {
                    Some(storer) => self.learn_from(storer, record),
                    None => self.learn(record),
                }
            }
        }
        if let QueryResult::PutRecord(Err(
            PutRecordError::QuorumFailed { success, .. } | PutRecordError::Timeout { success, .. },
        )) = &result
            && success.is_empty()
        {
            self.put_failed();
        }
        if !step.last {
            return;
        }
        self.put_ended(&query);
        if let Some((topic, live)) = self.look_ups.finished(query) {
            tracing::debug!(%topic, live, "looked up");
            self.connect_wanted();
        }
    }

    /// Keeps of a record's addresses those that mean something here.
    fn with_useful_addresses(&self, mut record: TopicRecord) -> TopicRecord {
        if let RecordState::Live { addresses, .. } = &mut record.state {
            let loopback = self.book.on_loopback();
            *addresses = crate::addresses::dialable(std::mem::take(addresses), loopback, limits::RECORD_ADDRESSES);
        }
        record
    }
}
