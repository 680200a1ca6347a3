//! An agent in a pod whose engine has a container of its own. The agent leaves this executable and a Unix socket in a
//! folder that both containers see; `dunlin engine` in the other one ([`crate::shim`]) runs the engine and obeys.

pub(crate) mod attend;
pub mod fetching;
pub mod frame;
pub(crate) mod install;
pub(crate) mod reception;

/// The socket's name in the shared folder.
pub const SOCKET: &str = "agent.sock";
/// The executable's name there.
pub const EXECUTABLE: &str = "dunlin";
