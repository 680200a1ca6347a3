//! The engine's HTTP side: where it is, how it is called, what it says of itself, and which kind it is.

pub mod client;
pub(crate) mod continuation;
pub mod discover;
pub mod explain;
pub mod identify;
pub mod models;
pub mod probe;
pub mod url;

pub use client::Client;
pub use url::EngineUrl;
