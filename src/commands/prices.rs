//! `dunlin prices`: what models cost.

use super::keys::{Place, ask, get, spread};
use crate::{
    args::{Output, PricesArgs, PricesCommand},
    output,
};
use anyhow::{Result, bail};
use dunlin_proxy::{
    control::End,
    keys::{Price, Spread},
};
use http::Method;
use std::path::Path;

pub(crate) async fn run(args: PricesArgs, home: &Path) -> Result<()> {
    let command = args.command.unwrap_or(PricesCommand::List(args.listing));
    let place = Place::open(home, matches!(command, PricesCommand::Set { .. })).await?;
    match (command, place) {
        (PricesCommand::List(listing), Place::Node(mut client)) => {
            show(listing.output, &get(&mut client, "/prices").await?)
        }
        (PricesCommand::List(listing), Place::File { keys, .. }) => show(listing.output, &keys.prices()),
        (PricesCommand::List(listing), Place::Nothing) => show(listing.output, &Vec::new()),
        (PricesCommand::Set { models, prompt, completion, cached }, place) => {
            let price = Price { models, prompt, completion, cached };
            let told = match place {
                Place::Node(mut client) => ask::<Price>(&mut client, Method::PUT, "/prices", &price).await?.spread,
                Place::File { keys, .. } => keys.set_price(&price).map(|_| Spread::default())?,
                Place::Nothing => bail!("no mesh was made in {} yet", home.display()),
            };
            spread(&told);
            Ok(output::line(&format!("set {}", price.models))?)
        }
        (PricesCommand::Remove { models }, place) => {
            let told = match place {
                Place::Node(mut client) => {
                    let path = format!("/prices?models={}", super::keys::path_segment(models.as_str()));
                    ask::<End>(&mut client, Method::DELETE, &path, &()).await?.spread
                }
                Place::File { keys, .. } => keys.remove_price(models.as_str()).map(|_| Spread::default())?,
                Place::Nothing => bail!("no price was set in {} yet", home.display()),
            };
            spread(&told);
            Ok(output::line(&format!("removed {models}"))?)
        }
    }
}

fn show(output: Output, prices: &Vec<Price>) -> Result<()> {
    output::show(output, prices, |prices| {
        let rows = prices.iter().map(|price| {
            let Price { models, prompt, completion, cached } = price;
            [models.to_string(), prompt.to_string(), completion.to_string(), cached.unwrap_or(*prompt).to_string()]
        });
        output::table(["MODELS", "PROMPT", "COMPLETION", "CACHED"], rows)
    })
}
