//! Everything that decodes what a peer sent, or what a person wrote in a file: no bytes may panic, and what decodes must
//! encode to the same bytes. A test tries it with bytes that are nearly right, `fuzz/` with whatever libFuzzer finds.

use crate::{
    announcement::{self, Announcement, SignedAnnouncement},
    appointment::Appointment,
    certificate::Chain,
    codec, hello,
    hop::{Fault, Route},
    id::{MeshId, PeerId, ReplicaId, Role},
    invitation::Token,
    jobs::JobName,
    key::{KeyMessage, SignedKeyStatement},
    lease::{LeaseReply, LeaseReport},
    ledger::{UsageAnswer, UsageAsk},
    limits,
    load::LoadReport,
    pattern::{Models, Pattern},
    pod,
    record::{self, SignedRecord, TopicRecord},
    revocation::{RevocationList, SignedRevocation},
    runtime::{Catalogue, template::Template},
    topic::Topic,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt::Debug, sync::OnceLock};

/// Panics where something is wrong with what it made of the bytes.
pub type Parser = fn(&[u8]);

/// The parsers, by name. A new kind of message gets an entry here, and a seed in the test.
pub const PARSERS: &[(&str, Parser)] = &[
    ("record", record),
    ("announcement", announcement),
    ("load report", load_report),
    ("hop headers", headers),
    ("pattern", pattern),
    ("certificate", certificate),
    ("hello", hello),
    ("revocation", revocation),
    ("invitation", invitation),
    ("appointment", appointment),
    ("pod", pod),
    ("names", names),
    ("runtime", runtime),
    ("template", template),
    ("keys", keys),
    ("leases", leases),
    ("usage", usage),
    ("jobs", jobs),
];

const MESH: MeshId = MeshId([7; 32]);

/// Decodes, and checks that encoding gives the bytes back.
fn canonical<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8], limit: usize) -> Option<T> {
    let value: T = codec::decode(bytes, limit).ok()?;
    assert_eq!(codec::encode(&value, limit).ok().as_deref(), Some(bytes), "{value:?}");
    Some(value)
}

fn record(bytes: &[u8]) {
    canonical::<TopicRecord>(bytes, limits::TOPIC_RECORD_BYTES);
    if let Some(signed) = canonical::<SignedRecord>(bytes, limits::TOPIC_RECORD_BYTES) {
        let _ = record::verify(&signed);
    }
    for signed in record::decode_list(bytes).unwrap_or_default() {
        let _ = record::verify(&signed);
    }
}

fn announcement(bytes: &[u8]) {
    canonical::<Announcement>(bytes, limits::ANNOUNCEMENT_BYTES);
    if let Some(signed) = canonical::<SignedAnnouncement>(bytes, limits::ANNOUNCEMENT_BYTES) {
        let _ = announcement::verify(&signed);
    }
}

fn load_report(bytes: &[u8]) {
    if let Ok(report) = LoadReport::decode(bytes) {
        // An older version is written anew in the newest.
        let again = report.encode().map(|bytes| LoadReport::decode(&bytes));
        assert_eq!(again, Ok(Ok(report.clone())));
        let header = report.to_header().map(|text| LoadReport::from_header(&text));
        assert_eq!(header, Ok(Ok(report)));
    }
}

fn headers(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = LoadReport::from_header(text);
    let _ = Route::of(text);
    let _ = text.parse::<Fault>();
}

/// Two patterns and a model with a newline between them.
fn pattern(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.splitn(3, '\n');
    let (Some(wide), Some(narrow), Some(model)) = (lines.next(), lines.next(), lines.next()) else { return };
    let (Ok(wide), Ok(narrow)) = (Pattern::new(wide), Pattern::new(narrow)) else { return };
    if wide.covers(&narrow) && narrow.matches(model) && !model.contains('\0') {
        assert!(wide.matches(model), "{wide} covers {narrow} but not {model:?}");
    }
}

fn certificate(bytes: &[u8]) {
    if let Ok(chain) = Chain::decode(bytes) {
        let _ = chain.verify(0, &MESH);
        assert_eq!(chain.encode().ok().as_deref(), Some(bytes));
    }
}

fn hello(bytes: &[u8]) {
    canonical::<hello::Hello>(bytes, limits::HELLO_BYTES);
    canonical::<hello::Reply>(bytes, limits::HELLO_BYTES);
    canonical::<hello::Verdict>(bytes, limits::HELLO_BYTES);
    if let Some(header) = bytes.first_chunk() {
        let length = hello::body_length(header);
        assert!(length.is_err() || length.is_ok_and(|length| length <= limits::HELLO_BYTES));
    }
}

fn revocation(bytes: &[u8]) {
    if let Ok(revocation) = SignedRevocation::decode(bytes) {
        let _ = revocation.verify(&MESH);
    }
    if let Ok(entries) = RevocationList::decode(bytes) {
        RevocationList::default().merge(entries, &MESH);
    }
}

fn invitation(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Token::parse(text);
    }
}

fn appointment(bytes: &[u8]) {
    if let Ok(appointment) = Appointment::decode(bytes) {
        let _ = appointment.verify(0, &MESH, &PeerId::random());
        assert_eq!(appointment.encode().ok().as_deref(), Some(bytes));
    }
}

/// What an agent and the shim around an engine in another container say to each other.
fn pod(bytes: &[u8]) {
    canonical::<pod::Opening>(bytes, limits::POD_FRAME_BYTES);
    canonical::<pod::FromShim>(bytes, limits::POD_FRAME_BYTES);
    canonical::<pod::ToShim>(bytes, limits::POD_FRAME_BYTES);
    if let Some(preamble) = bytes.first_chunk() {
        let _ = pod::agree(preamble);
    }
}

fn names(bytes: &[u8]) {
    canonical::<Topic>(bytes, limits::TOPIC_RECORD_BYTES);
    canonical::<ReplicaId>(bytes, limits::TOPIC_RECORD_BYTES);
    canonical::<Models>(bytes, limits::CERTIFICATE_BYTES);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<MeshId>();
        let _ = text.parse::<Role>();
    }
}

/// A file with a runtime, put over the built-in ones.
fn runtime(bytes: &[u8]) {
    static BUILT_IN: OnceLock<Catalogue> = OnceLock::new();
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut catalogue = BUILT_IN.get_or_init(|| Catalogue::built_in().unwrap_or_default()).clone();
    if let Ok(name) = catalogue.merge("runtime.toml", text) {
        assert!(catalogue.get(&name).is_ok(), "{name} was taken in and is not there");
    }
}

fn template(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Template::parse(text);
    }
}

/// What proxies say to each other about keys.
fn keys(bytes: &[u8]) {
    if let Ok(signed) = SignedKeyStatement::decode(bytes) {
        let _ = signed.verify(0, &MESH, |_| None);
        assert_eq!(signed.encode().ok().as_deref(), Some(bytes));
    }
    if let Ok(message) = KeyMessage::decode(bytes) {
        assert_eq!(message.encode().ok().as_deref(), Some(bytes));
    }
}

/// And about limits.
fn leases(bytes: &[u8]) {
    if let Ok(report) = LeaseReport::decode(bytes) {
        assert_eq!(report.encode().ok().as_deref(), Some(bytes));
    }
    if let Ok(reply) = LeaseReply::decode(bytes) {
        assert_eq!(reply.encode().ok().as_deref(), Some(bytes));
    }
}

/// And about what was used; and what agents tell of that in a header.
fn usage(bytes: &[u8]) {
    if let Ok(ask) = UsageAsk::decode(bytes) {
        assert_eq!(ask.encode().ok().as_deref(), Some(bytes));
    }
    if let Ok(answer) = UsageAnswer::decode(bytes) {
        assert_eq!(answer.encode().ok().as_deref(), Some(bytes));
    }
    if let Some(usage) = std::str::from_utf8(bytes).ok().and_then(crate::usage::Usage::from_header) {
        assert_eq!(crate::usage::Usage::from_header(&usage.to_header()), Some(usage));
    }
}

/// `CLUSTER/NAMESPACE/NAME`.
fn jobs(bytes: &[u8]) {
    if let Some(name) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<JobName>().ok()) {
        assert_eq!(name.to_string().as_bytes(), bytes);
    }
}

#[cfg(test)]
#[path = "../../fuzz/nearly.rs"]
mod nearly;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        announcement::ReplicaState,
        certificate::tests::{certificate, delegation, key, mesh},
        id::{ModelId, RuntimeName, Version},
        invitation::tests::token,
        lease::{Granted, Held, KeyGranted, KeyHeld},
        ledger::{Counter, Counts, UsageRow},
        record::{Continuation, RecordState},
        revocation::{ListVersion, Revocation, Target},
        signed::Signed,
    };

    fn bytes(value: &impl Serialize) -> Vec<u8> {
        codec::encode(value, 1 << 20).unwrap()
    }

    fn seeds(name: &str) -> Vec<Vec<u8>> {
        let replica = ReplicaId { peer: key(3).public().to_peer_id(), index: 1 };
        let version = Version { epoch: 9, seq: 2 };
        let demo = RuntimeName::new("demo").unwrap();
        let chain = Chain::by_mesh_key(&certificate(1, 1, 3), &key(1)).unwrap();
        let text = |text: &str| text.as_bytes().to_vec();
        match name {
            "record" => {
                let addresses = vec!["/ip4/192.0.2.7/tcp/4480".parse().unwrap()];
                let state = RecordState::Live { addresses, runtime: Some(demo), continuation: Continuation::Exact };
                let topic = Topic::Model(ModelId::new("a/b").unwrap());
                let record = TopicRecord { topic, replica, version, state };
                let signed = SignedRecord::sign(&record, &key(3)).unwrap();
                vec![bytes(&record), bytes(&signed), record::encode_list([&signed, &signed].into_iter()).unwrap()]
            }
            "announcement" => {
                let said = Announcement {
                    replica,
                    version,
                    state: ReplicaState::Ready,
                    runtime: demo,
                    continuation: Continuation::None,
                    slots: 4,
                    models: Vec::new(),
                };
                vec![bytes(&said), bytes(&SignedAnnouncement::sign(&said, &key(3)).unwrap())]
            }
            "load report" => [[0; 4], [1, 0, 0, 0], [2, 0, 0, 0]]
                .map(|version| [&version[..], &bytes(&replica), &[1; 80]].concat())
                .into(),
            "hop headers" => vec![text("/engine/v1/chat/completions?x=1"), text("engine"), text("AAECAwQFBgcICQ")],
            "pattern" => vec![text("a/*\na/b*\na/bc"), text("*\n**\n")],
            "certificate" => {
                let branch = Signed::sign(&delegation(), &key(1)).unwrap();
                let under = Chain::by_delegate(&certificate(1, 2, 3), branch, &key(2));
                [Some(chain), under.ok()].into_iter().flatten().map(|chain| chain.encode().unwrap()).collect()
            }
            "hello" => {
                let papers = hello::Papers { chain: chain.clone(), revocations: ListVersion(7) };
                let hello = hello::Hello::Member(papers.clone());
                vec![
                    hello::encode(&hello).unwrap(),
                    bytes(&hello),
                    bytes(&hello::Reply::Member(papers)),
                    bytes(&hello::Reply::Joined(chain)),
                    bytes(&hello::Verdict::Admitted),
                ]
            }
            "revocation" => {
                let target = Target::Member(key(3).public().to_peer_id());
                let revocation = Revocation { mesh: mesh(1), target, before: 1 };
                let signed = SignedRevocation::by_mesh_key(&revocation, &key(1)).unwrap();
                let mut list = RevocationList::default();
                list.insert(signed.clone(), &mesh(1)).unwrap();
                vec![bytes(&signed), list.encode().unwrap()]
            }
            "invitation" => vec![text(&token().to_text().unwrap())],
            "names" => vec![
                bytes(&Topic::Model(ModelId::new("a/b").unwrap())),
                bytes(&replica),
                bytes(&Models::Only(vec![Pattern::new("a/*").unwrap()])),
                text(&mesh(1).to_string()),
                text("agent"),
            ],
            "runtime" => vec![
                text(include_str!("../runtimes/demo.toml")),
                text(include_str!("../runtimes/vllm.toml")),
                text("name = \"mine\"\n[launch]\ncommand = \"x\"\nargs = [\"{args}\"]\n"),
            ],
            "template" => vec![text("{host}:{port}"), text("a{{b}}{served_name}")],
            "keys" => {
                let signed = crate::key::tests::signed(crate::certificate::KEYS);
                let messages = [
                    KeyMessage::Push(vec![signed.clone()]),
                    KeyMessage::Buckets(vec![1, u64::MAX]),
                    KeyMessage::Fetch(vec![0, 63]),
                    KeyMessage::Taken { refused: 1 },
                ];
                let messages = messages.iter().map(|message| message.encode().unwrap());
                std::iter::once(signed.encode().unwrap()).chain(messages).collect()
            }
            "leases" => {
                let held = Held { held: 60, want: -1, demand: i64::MAX };
                let keys = vec![KeyHeld { key: "k".into(), of: [held; 3] }];
                let report = LeaseReport { view: 1, epoch: 2, seq: 3, whole: true, keys };
                let granted = Granted { granted: 1, target: 0, left: i64::MIN };
                let reply = LeaseReply { agrees: true, keys: vec![KeyGranted { key: "k".into(), of: [granted; 3] }] };
                vec![report.encode().unwrap(), reply.encode().unwrap()]
            }
            "usage" => {
                let by = Counter { origin: key(3).public().to_peer_id(), epoch: 1 };
                let (key, model) = ("k".to_owned(), "m".to_owned());
                let row = UsageRow { by, key, model, hour: 1, rev: 2, counts: Counts::default() };
                vec![
                    UsageAsk { seen: vec![(by, 7)] }.encode().unwrap(),
                    UsageAnswer { rows: vec![row] }.encode().unwrap(),
                    text(&crate::usage::Usage::default().to_header()),
                ]
            }
            "jobs" => vec![text("eu-1/team-a/qwen3")],
            // Of the rest there is nothing to begin with.
            _ => vec![vec![0; 64]],
        }
    }

    #[test]
    fn bytes_that_are_nearly_right_break_nothing() {
        for (name, parser) in PARSERS {
            nearly::try_with(name, &seeds(name), parser);
        }
    }
}
