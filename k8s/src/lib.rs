//! The orchestrator: turns "run this model, N replicas" into Kubernetes objects.
//!
//! Empty so far: the crate holds its place in the workspace so that the arrows between crates
//! (`protocol <- k8s`, never `k8s <-> proxy` or `k8s <-> agent`) are fixed from the start.
