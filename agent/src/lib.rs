//! Dunlin agent.
