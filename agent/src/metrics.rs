//! Reading an engine's load: Prometheus text, the series that matter in it, and when to read it again.

mod adapters;
pub mod fetch;
pub mod pace;
pub mod page;
pub(crate) mod poll;
pub mod text;

pub use page::Reader;
