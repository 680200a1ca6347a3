//! Dunlin agent.

pub mod demo;
