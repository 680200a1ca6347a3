//! Dunlin proxy.
