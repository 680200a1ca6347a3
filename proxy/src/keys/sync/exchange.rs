//! The asking side: pushing, and comparing everything with one member.

use super::{
    ANSWER, BTreeMap, Error, Keeper, KeyMessage, PATH, PeerId, Signed, SignedKeyStatement, clock, hop, limits,
};
use dunlin_protocol::codec;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use std::time::Duration;

/// Buckets asked for at once.
const BUCKETS_AT_ONCE: usize = 64;

/// Why a member was not told, or not compared with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// Its process keeps no keys.
    #[error("keeps no keys")]
    NotAHolder,
    #[error("no answer in time")]
    Timeout,
    #[error(transparent)]
    Send(#[from] hop::SendError),
    #[error("answered {0}")]
    Status(StatusCode),
    #[error("the answer broke off or is too large: {0}")]
    Body(hop::BoxError),
    #[error(transparent)]
    Codec(#[from] codec::Error),
    #[error("answered with something else")]
    Unexpected,
    #[error("request: {0}")]
    Request(#[from] http::Error),
    #[error(transparent)]
    Keys(#[from] Error),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

impl Keeper {
    async fn ask(&self, peer: PeerId, message: &KeyMessage, longest: Duration) -> Result<KeyMessage, Failed> {
        let body = hop::Body::from(bytes::Bytes::from(message.encode()?));
        let request = http::Request::post(PATH).body(body)?;
        let exchange = async {
            let response = self.0.handle.hop().send(peer, request).await?;
            match response.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Err(Failed::NotAHolder),
                other => return Err(Failed::Status(other)),
            }
            let body = Limited::new(response.into_body(), limits::KEY_MESSAGE_BYTES).collect().await;
            Ok(KeyMessage::decode(&body.map_err(Failed::Body)?.to_bytes())?)
        };
        tokio::time::timeout(longest, exchange).await.map_err(|_| Failed::Timeout)?
    }

    /// Tells one member, and waits until it is on its disk.
    pub(super) async fn push(&self, peer: PeerId, said: Signed, longest: Duration) -> Result<(), Failed> {
        for part in said.chunks(limits::KEYS_PER_PUSH) {
            match self.ask(peer, &KeyMessage::Push(part.to_vec()), longest).await? {
                KeyMessage::Taken { refused: 0 } => {}
                KeyMessage::Taken { refused } => tracing::warn!(%peer, refused, "statements about keys were refused"),
                _ => return Err(Failed::Unexpected),
            }
        }
        Ok(())
    }

    /// Makes both sides know the same. Returns how much was new here.
    pub(super) async fn compare(&self, peer: PeerId) -> Result<usize, Failed> {
        let KeyMessage::Buckets(theirs) = self.ask(peer, &KeyMessage::Compare, ANSWER).await? else {
            return Err(Failed::Unexpected);
        };
        let ours = self.0.keys.buckets();
        if theirs.len() != ours.len() {
            return Err(Failed::Unexpected);
        }
        let differs = |bucket: &u8| theirs[usize::from(*bucket)] != ours[usize::from(*bucket)];
        let differing: Vec<u8> = (0..=u8::MAX).filter(differs).collect();
        let mut left = differing.as_slice();
        let mut new = 0;
        while !left.is_empty() {
            let asked = left[..left.len().min(BUCKETS_AT_ONCE)].to_vec();
            let KeyMessage::Statements { buckets, statements } =
                self.ask(peer, &KeyMessage::Fetch(asked), ANSWER).await?
            else {
                return Err(Failed::Unexpected);
            };
            let whole = usize::from(buckets).min(left.len());
            if whole == 0 {
                return Err(Failed::Unexpected);
            }
            let (these, rest) = left.split_at(whole);
            left = rest;
            let (taken, missing) = self.merge(statements, these.to_vec()).await?;
            new += taken;
            self.push(peer, missing, ANSWER).await?;
        }
        Ok(new)
    }

    /// Takes in what a member has in some buckets. Returns how much was new, and what it lacks.
    async fn merge(&self, theirs: Signed, buckets: Vec<u8>) -> Result<(usize, Signed), Failed> {
        let keeper = self.clone();
        let merging = tokio::task::spawn_blocking(move || {
            let contents: BTreeMap<String, u64> = theirs
                .iter()
                .filter_map(|signed| signed.statement.peek().ok())
                .map(|said| (said.about.name(), said.fingerprint()))
                .collect();
            let taken = keeper.verify_and_take(theirs)?.0;
            let (_, ours) = keeper.0.keys.in_buckets(&buckets, usize::MAX)?;
            let lacks = |signed: &SignedKeyStatement| {
                let said = signed.statement.peek().ok();
                said.is_some_and(|said| contents.get(&said.about.name()) != Some(&said.fingerprint()))
            };
            Ok::<_, Error>((taken, ours.into_iter().filter(lacks).collect()))
        });
        Ok(merging.await??)
    }

    /// How much was new, and how much was refused.
    pub(super) fn verify_and_take(&self, said: Signed) -> Result<(usize, u32), Error> {
        let (members, now) = (self.0.handle.members(), clock::unix_s());
        let mut verified = Vec::with_capacity(said.len());
        let mut refused = 0;
        for signed in said {
            match members.verify_key_statement(&signed, now) {
                Ok(statement) => verified.push((statement, signed)),
                Err(error) => {
                    refused += 1;
                    tracing::info!(%error, "statement about a key refused");
                }
            }
        }
        Ok((self.0.keys.take(verified)?, refused))
    }
}
