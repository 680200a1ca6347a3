//! Requests about one stored response, and those that build on one: they go to the replica that holds it.

use super::{
    Door, Story,
    answer::Body,
    endpoint::{self, Dialect, Stored},
    engine_error,
    infer::Incoming,
    step_of,
};
use crate::{
    balance::Want,
    dispatch::Ask,
    errors::{Error, engine::Said},
    late::Priority,
    meter::Meter,
    prompt::{self, Prompt},
    request::payload::Payload,
    responses::{self, Place},
};
use bytes::Bytes;
use http::{Method, Response};
use std::sync::Arc;

impl Door {
    /// Where the client's response `id` is.
    ///
    /// # Errors
    /// Nobody knows of it, or it is another's: the two look the same.
    pub(super) async fn place(&self, id: &str, tenant: u64) -> Result<Place, Error> {
        let found = self.dispatcher.responses.find(id, tenant, &self.dispatcher.handle).await;
        found.ok_or_else(|| Error::NoResponse(id.chars().take(80).collect()))
    }

    /// Asks the replica that holds it.
    pub(super) async fn stored(
        self: &Arc<Self>,
        stored: Stored,
        request: Incoming,
        story: &mut Story,
    ) -> Result<Response<Body>, Error> {
        let Incoming { parts, address, grant, id, since } = request;
        let tenant = self.auth.tenant(&parts.headers, address);
        let place = self.place(&stored.id, responses::tag(&tenant)).await?;
        story.model = Some(place.model.clone());
        let meter = self.metered(grant.as_ref(), &place.model, || 0, since).await?;
        let forgets = parts.method == Method::DELETE;
        let path = endpoint::target(&parts.uri);
        let said = path.path().to_owned();
        let model = place.model.clone();
        let mut ask = Ask {
            method: parts.method,
            path,
            headers: parts.headers,
            body: Payload::Whole(Bytes::new()),
            memory: None,
            want: Want {
                model: model.clone(),
                tenant: prompt::hash(&tenant),
                priority: grant.map_or_else(Priority::default, |grant| Priority(grant.key.priority)),
                prompt: Arc::new(Prompt::default()),
                stream: false,
            },
            asked: model.clone(),
            model_at: None,
            fallbacks: Vec::new(),
            pinned: Some(place.replica()),
            owner: responses::tag(&tenant),
            ask_usage: None,
            account: meter.as_ref().map(Meter::account),
            dialect: Dialect::Responses,
            id,
            since,
        };
        let answered = self.dispatcher.dispatch(&mut ask).await;
        let response = self.settled(answered, meter.as_ref())?.map(|relay| Body::Relay(Box::new(relay)));
        story.step = step_of(&response);
        if forgets && response.status().is_success() {
            self.dispatcher.responses.forget(&stored.id);
        }
        let status = response.status();
        let said = Said { status, body: &[], dialect: Dialect::Responses, path: &said, model: model.as_str() };
        Ok(engine_error::shaped(response, said).await)
    }
}
