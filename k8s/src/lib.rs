//! The orchestrator: turns "run this model, N replicas" into Kubernetes objects.
//!
//! - [`resources`]: the custom resources that people write.
//! - [`plan`]: which replica goes where. Pure.
//! - [`decide`]: what is to be done for one Playground. Pure.
//! - [`manifest`]: the objects that are made, with [`engine`] for what their engines run. Pure.
//! - [`revision`]: what replicas are made from, and going back. Pure.
//! - [`world`]: what is known of nodes and pods, cut down.
//! - [`controller`]: watches in, calls out, under a lease.
//! - [`rollout`]: updates, as people steer them.
//! - [`mesh`]: what the mesh says of a replica; [`member`] is the orchestrator in it.
//! - [`pods`]: who is let into the mesh, by the [`roster`].
//! - [`jobs`]: what operators ask for over the mesh.

pub mod controller;
pub mod decide;
pub mod engine;
pub mod jobs;
pub mod manifest;
pub mod member;
pub mod mesh;
pub mod names;
pub mod needs;
pub mod plan;
pub mod pods;
pub mod resources;
pub mod revision;
pub mod rollout;
pub mod roster;
pub mod settings;
pub mod world;

/// A client of the cluster. It speaks TLS with the cryptography of everything else here; with several in one executable
/// rustls takes none by itself.
///
/// # Errors
/// The configuration names files or certificates that can't be used.
pub fn connect(cluster: kube::Config) -> Result<kube::Client, kube::Error> {
    // Somebody has chosen already: that will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    kube::Client::try_from(cluster)
}
