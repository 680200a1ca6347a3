//! Dunlin node.
