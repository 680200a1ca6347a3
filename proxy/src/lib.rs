//! The front door: OpenAI-compatible HTTP in, a chosen replica out.
//!
//! A request, in the order in which the files should be read: `http` -> `auth` -> `request` (peek) -> `dispatch`, which
//! asks `pool` and so `balance` and `route` (pure) for a replica -> `dunlin_node`'s hop, and the bytes of the answer come straight back
//! through `http::answer`. Decisions (`balance`, `route`, `late`, `eject`, `budget`, `request`, `http::sse`) do no I/O and
//! take the time and chance as arguments; those about routing are public for `benches/routelab`, which simulates a mesh
//! around them.

mod admin;
pub mod audit;
mod auth;
pub mod balance;
mod budget;
mod config;
mod continuation;
pub mod control;
mod cost;
mod database;
mod dispatch;
mod eject;
mod errors;
mod fair;
mod fellows;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod http;
pub mod keys;
pub mod late;
mod limits;
mod meter;
mod metrics;
pub mod names;
mod pool;
pub mod prompt;
mod proxy;
mod request;
pub mod responses;
pub mod route;
mod tally;
mod upload;
pub mod usage;

pub use auth::forwarded::{Network, NotANetwork};
pub use config::Config;
pub use cost::Cost;
pub use fellows::Fellows;
pub use http::serve::tls::{self, Files as TlsFiles};
pub use keys::{Keeper, Keys};
pub use proxy::{Error, Proxy, rooms};
