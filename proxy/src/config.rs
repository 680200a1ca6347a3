//! What can be set about the proxy, with its defaults.

use crate::{TlsFiles, auth::forwarded::Network, budget, names::Names, responses::Responses};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Settings of one proxy. Every bound of the front door that an operator may want to move stands here.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen for clients; port 0 takes any free port.
    pub http: SocketAddr,
    /// Ask nobody for a key. Then only requests whose `Host` and `Origin` are this machine's are taken, since any web
    /// page could reach the endpoint otherwise (DNS rebinding).
    pub no_auth: bool,
    /// Who may say in `X-Forwarded-For` whose requests it passes on.
    pub trusted_proxies: Vec<Network>,
    /// Where the admin API listens. `None`: nowhere.
    pub admin: Option<SocketAddr>,
    /// Keys open nothing when they have not been compared with another proxy's for so long. `None`: for ever.
    pub keys_max_age: Option<Duration>,
    /// How long a replica may take to its first byte of a streamed answer to a short prompt, per try; five times that for
    /// answers that come in one piece. `None`: as long as its runtime says. Both are longer for long prompts
    /// ([`dunlin_protocol::runtime::Bounds`]).
    pub first_byte: Option<Duration>,
    /// How long a stream that has begun may say nothing, not even a comment, before its replica counts as lost. `None`: as
    /// long as its runtime says.
    pub inter_token: Option<Duration>,
    /// How long a request may wait for a slot, or for a replica that is starting.
    pub hold: Duration,
    /// Percent of the requests and streams that may be hedged, 100 at most: when a replica is late, another is asked as
    /// well, and the first to answer is heard. 0: none.
    pub hedged_percent: u8,
    /// How long a streaming client hears nothing before the proxy begins to send comments.
    pub silence: Duration,
    /// A load report older than this is not believed. Must exceed the agents' heartbeat of 1 s.
    pub fresh: Duration,
    /// Requests that may wait for one model.
    pub waiting_per_model: usize,
    /// Requests that may wait in all.
    pub waiting: usize,
    /// Of the requests that wait for one model, those that may while no replica of it is up and one starts. Fewer than
    /// may wait for a slot: how long a start takes is anybody's guess.
    pub starting_per_model: usize,
    /// The same for all models together.
    pub starting: usize,
    /// Largest request body, bytes.
    pub body: usize,
    /// Request bodies held in memory, all together, bytes. One key, or without keys one client address, gets at most three
    /// times what it leaves free.
    pub buffered: usize,
    /// Inference requests in flight at once, from their heads to the ends of their answers, those that wait among them.
    pub requests: usize,
    /// Largest form, bytes.
    pub form: u64,
    /// What all forms together may take of the disk, bytes; shared as [`Self::buffered`] is.
    pub upload_disk: u64,
    /// Where forms lie while they are answered, in files without a name.
    pub upload_folder: PathBuf,
    /// Serve HTTPS with these; `None`: HTTP.
    pub tls: Option<TlsFiles>,
    /// Clients connected at once. Fewer where the process may not open twice as many files.
    pub connections: usize,
    /// How long a client may take to send a request's head once that has begun.
    pub head: Duration,
    /// How long a connection may idle between requests. Longer than what balancers and clients keep idle connections for
    /// (nginx 60 s, Go 90 s, Google's load balancers 600 s), so that they close first: a request that is sent in the moment
    /// in which its connection is closed is lost.
    pub idle: Duration,
    /// How long a client that has just connected may take to its first request's head. Short, since whoever can connect
    /// could take all connections by saying nothing.
    pub first_head: Duration,
    /// How long a client may pause while it sends a body, and over which it must bring 4 KiB each second.
    pub body_pause: Duration,
    /// How long a client may take nothing of an answer that is there for it. Then its connection, or in HTTP/2 that
    /// answer, is ended, so that it doesn't keep the slot of a replica.
    pub stalled: Duration,
    /// What is known of stored responses; its routes are for the node that the proxy runs on.
    pub responses: Responses,
    /// Aliases and fallbacks.
    pub names: Names,
    /// On shutdown, how long requests in flight may go on.
    pub drain: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            http: SocketAddr::from(([127, 0, 0, 1], 8480)),
            no_auth: false,
            trusted_proxies: Vec::new(),
            admin: None,
            keys_max_age: None,
            first_byte: None,
            inter_token: None,
            hold: Duration::from_secs(30),
            hedged_percent: budget::HEDGED_PERCENT,
            silence: Duration::from_secs(15),
            fresh: Duration::from_millis(1500),
            waiting_per_model: 1024,
            waiting: 4096,
            starting_per_model: 256,
            starting: 1024,
            body: 64 << 20,
            buffered: 512 << 20,
            requests: 16_384,
            form: 512 << 20,
            upload_disk: 8 << 30,
            upload_folder: std::env::temp_dir(),
            tls: None,
            connections: 8192,
            head: Duration::from_secs(65),
            idle: Duration::from_secs(620),
            first_head: Duration::from_secs(10),
            body_pause: Duration::from_secs(20),
            stalled: Duration::from_secs(30),
            responses: Responses::default(),
            names: Names::default(),
            drain: Duration::from_secs(60),
        }
    }
}
