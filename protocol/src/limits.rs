//! Every bound on what a peer may say, by name. Sizes are bytes, counts are items.

use std::time::Duration;

/// Longest that a proxy waits for the first byte of an answer: a day, the most that its user may set, and five times
/// that for an answer in one piece. An agent waits longer: it is the proxy that knows what its user wants.
pub const FIRST_BYTE: Duration = Duration::from_secs(5 * 86_400);
/// Longest model id. The longest ids on public hubs are below 140 bytes; Kubernetes label values end at 63.
pub const MODEL_ID_BYTES: usize = 256;
/// Longest display name of a peer.
pub const NAME_BYTES: usize = 64;
/// Longest job id (`cluster/namespace/name`).
pub const JOB_ID_BYTES: usize = 256;
/// Longest runtime name.
pub const RUNTIME_NAME_BYTES: usize = 32;
/// A signed topic record. Small, so that a storer can afford hundreds under one key.
pub const TOPIC_RECORD_BYTES: usize = 512;
/// Addresses in one topic record.
pub const RECORD_ADDRESSES: usize = 4;
/// Live records and tombstones that a storer keeps under one key.
pub const RECORDS_PER_TOPIC: usize = 400;
/// Of these, about replicas of one peer: as many as one put may carry.
pub const RECORDS_PER_TOPIC_AND_PEER: usize = 64;
/// The encoded list of all records under one key, as one DHT value. Bounds a Kademlia packet together with
/// [`KAD_PACKET_BYTES`].
pub const TOPIC_RECORD_LIST_BYTES: usize = RECORDS_PER_TOPIC * (TOPIC_RECORD_BYTES + 8);
/// Largest Kademlia packet.
pub const KAD_PACKET_BYTES: usize = 256 * 1024;
/// A load report as gossiped.
pub const LOAD_REPORT_BYTES: usize = 1024;
/// An announcement as gossiped: room for an engine that lists some hundreds of models.
pub const ANNOUNCEMENT_BYTES: usize = 64 * 1024;
/// Models that one replica may announce.
pub const MODELS_PER_REPLICA: usize = 512;
/// Model patterns in one certificate.
pub const CERTIFICATE_PATTERNS: usize = 64;
/// Longest model pattern.
pub const PATTERN_BYTES: usize = 256;
/// One signed certificate.
pub const CERTIFICATE_BYTES: usize = 8 * 1024;
/// One admission message (certificate chain, or a request to join).
pub const HELLO_BYTES: usize = 32 * 1024;
/// Capabilities, and tenants, in one certificate.
pub const CERTIFICATE_WORDS: usize = 16;
/// Longest capability or tenant.
pub const WORD_BYTES: usize = 64;
/// One signed delegation.
pub const DELEGATION_BYTES: usize = 2 * 1024;
/// Revocations by the mesh key in a list. One takes about 190 bytes.
pub const REVOCATIONS: usize = 4 * 1024;
/// Revocations by delegated issuers in a list. Each carries its delegation.
pub const DELEGATED_REVOCATIONS: usize = 256;
/// A revocation with the delegation of its signer, as gossiped.
pub const REVOCATION_BYTES: usize = DELEGATION_BYTES + 256;
/// A whole revocation list.
pub const REVOCATION_LIST_BYTES: usize = REVOCATIONS * 256 + DELEGATED_REVOCATIONS * REVOCATION_BYTES;
/// An invitation token in its printed form.
pub const TOKEN_CHARS: usize = 4096;
/// Addresses of the issuer in an invitation.
pub const INVITATION_ADDRESSES: usize = 8;
/// A frame on the socket between the containers of one pod.
pub const POD_FRAME_BYTES: usize = 64 * 1024;
/// Lines of output in one such frame.
pub const POD_LINES: usize = 1024;
/// Longest line of output there; longer ones are cut into several.
pub const POD_LINE_BYTES: usize = 8 * 1024;
/// Longest text for people there.
pub const POD_TEXT_BYTES: usize = 1024;
/// A ServiceAccount token with which a pod joins. Real ones have about 1,200 bytes.
pub const POD_TOKEN_BYTES: usize = 16 * 1024;
/// One statement about a key, a tenant or a price: room for the most patterns that one may have.
pub const KEY_STATEMENT_BYTES: usize = CERTIFICATE_PATTERNS * (PATTERN_BYTES + 8) + 4 * 1024;
/// The same with its signature and its signer's certificate, as gossiped.
pub const SIGNED_KEY_BYTES: usize = KEY_STATEMENT_BYTES + HELLO_BYTES / 2;
/// A message about statements on the hop.
pub const KEY_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Statements in one push.
pub const KEYS_PER_PUSH: usize = 64;
/// Longest id of a key.
pub const KEY_ID_BYTES: usize = 32;
/// Longest name of a key, and longest note of a tenant: 128 characters of any script.
pub const KEY_NAME_BYTES: usize = 512;
/// Tags of a key, each as long as a word.
pub const KEY_TAGS: usize = 16;
/// Keys in one message about limits.
pub const LEASES: usize = 4096;
/// A message about limits: an id of a key, and three numbers for each of three limits.
pub const LEASE_BYTES: usize = LEASES * (KEY_ID_BYTES + 8 + 72) + 64;
/// Rows of usage in one answer.
pub const USAGE_ROWS: usize = 2048;
/// Processes of proxies whose usage is kept.
pub const USAGE_COUNTERS: usize = 8192;
/// A message about usage: rows with the longest names, or all processes that are known of.
pub const USAGE_BYTES: usize = USAGE_ROWS * (MODEL_ID_BYTES + KEY_ID_BYTES + 192) + 64;
/// A request of an operator to an orchestrator.
pub const JOB_BYTES: usize = 256 * 1024;
