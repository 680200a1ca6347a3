//! Who belongs to the mesh: `mesh`, `mesh key`, `invite`.

use super::{
    ListingArgs,
    values::{duration, multiaddr, namespace, role},
};
use crate::complete;
use clap::{Args as ClapArgs, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use dunlin_protocol::{
    id::{Name, Role},
    pattern::Pattern,
};
use libp2p::Multiaddr;
use std::{path::PathBuf, time::Duration};

#[derive(Subcommand)]
pub(crate) enum MeshCommand {
    /// Make the mesh key and this machine's certificate
    #[command(
        after_help = "Examples:\n  dunlin mesh create\n  dunlin mesh create --name desk --role agent,proxy,relay"
    )]
    Create {
        /// What other members see in `dunlin peers`
        #[arg(long, env = "DUNLIN_NAME")]
        name: Option<Name>,
        /// Role of this machine, repeatable [default: agent and proxy]
        #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_parser = role())]
        roles: Vec<Role>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Change what this machine may do, where the mesh key lies; used from its next start on
    #[command(after_help = "Example:\n  dunlin mesh roles agent,proxy,relay")]
    Roles {
        /// All roles that it is to have, e.g. agent,proxy,relay
        #[arg(value_name = "ROLE", value_delimiter = ',', required = true, value_parser = role())]
        roles: Vec<Role>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show the mesh id, this machine's certificate, and who may issue others
    #[command(after_help = "Examples:\n  dunlin mesh show\n  dunlin mesh show --output json")]
    Show(ListingArgs),
    /// Let another machine invite, renew and revoke, within bounds; where the mesh key lies, both nodes running
    #[command(after_help = "\
The memberships that it gives end when its right does: with `undelegate`, `revoke`, or at the end of --ttl.
A machine keeps what it once got: to give it less, run `dunlin mesh undelegate` first.
To go on inviting on this machine without the mesh key, name this machine itself, then: dunlin mesh key export --remove --file FILE.

Examples:
  dunlin mesh delegate 12D3KooW...
  dunlin mesh delegate 12D3KooW... --role agent --model 'Qwen/*' --life 7d --ttl 90d")]
    Delegate(DelegateArgs),
    /// Print a Kubernetes Secret that makes an orchestrator a member which admits pods; where the mesh key lies, node running
    #[command(after_help = "\
The Secret holds a new identity, its certificate and a delegation: whoever has it is that orchestrator, until `dunlin revoke`.

Example:
  dunlin mesh secret | kubectl -n dunlin-system apply -f -")]
    Secret(SecretArgs),
    /// Take that right back, and with it every membership that the machine gave; it stays a member itself
    #[command(after_help = "Example:\n  dunlin mesh undelegate 12D3KooW...")]
    Undelegate {
        /// Peer id or name, as `dunlin peers` shows them
        #[arg(add = ArgValueCandidates::new(complete::members))]
        peer: String,
    },
    /// Take the mesh key away from this machine, or bring it to one; no node running
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
}

#[derive(Subcommand)]
pub(crate) enum KeyCommand {
    /// Print the mesh key (the key alone, on standard output): whoever has it decides over the whole mesh
    #[command(after_help = "\
Examples:
  dunlin mesh key export --file /media/usb/mesh.key
  dunlin mesh key export --remove --file /media/usb/mesh.key   the file is the only copy then")]
    Export {
        /// Write it to a new file that only its owner may read, instead of printing it
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Remove it from this machine; needs --file or a terminal, and a machine that `mesh delegate` named for a day or more
        #[arg(long)]
        remove: bool,
    },
    /// Bring the mesh key to this machine, which issues from then on
    #[command(after_help = "\
Without FILE the key is read from standard input. On a machine of no mesh it makes a member of it.

Example:
  dunlin mesh key import /media/usb/mesh.key")]
    Import {
        /// What `export` wrote
        file: Option<PathBuf>,
        #[command(flatten)]
        listing: ListingArgs,
    },
}

#[derive(ClapArgs)]
pub(crate) struct DelegateArgs {
    /// Peer id or name, as `dunlin peers` shows them
    #[arg(add = ArgValueCandidates::new(complete::members))]
    pub(crate) peer: String,
    /// Role that it may give, repeatable [default: agent and proxy]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) roles: Vec<Role>,
    /// Models that those it admits may serve, repeatable; `*` matches anything [default: all]
    #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) models: Vec<Pattern>,
    /// Longest life of a certificate that it gives
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration)]
    pub(crate) life: Duration,
    /// How long it may issue
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = duration)]
    pub(crate) ttl: Duration,
}

#[derive(ClapArgs)]
pub(crate) struct SecretArgs {
    /// Name of the Secret, and of the orchestrator in `dunlin peers`
    #[arg(long, default_value = "dunlin-orchestrator")]
    pub(crate) name: Name,
    /// Role that it may give, repeatable [default: agent, proxy and relay]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) roles: Vec<Role>,
    /// Models that its replicas may serve, repeatable; `*` matches anything [default: all]
    #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) models: Vec<Pattern>,
    /// How long all of it is good for; make a new Secret before the end
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = duration)]
    pub(crate) ttl: Duration,
}

#[derive(Subcommand)]
pub(crate) enum InviteCommand {
    /// List the invitations that this machine made, never their tokens
    #[command(after_help = "Examples:\n  dunlin invite list\n  dunlin invite list --output json")]
    List(ListingArgs),
    /// Let nobody use an invitation any more; whoever has used it stays a member until `dunlin revoke`
    #[command(after_help = "Example:\n  dunlin invite withdraw ID")]
    Withdraw {
        /// The id that `dunlin invite list` shows
        id: String,
    },
}

#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct InviteArgs {
    #[command(subcommand)]
    pub(crate) command: Option<InviteCommand>,
    /// Role of the new member, repeatable [default: agent and proxy]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) roles: Vec<Role>,
    /// Models that the new member may serve, repeatable; `*` matches anything [default: all]
    #[arg(long = "model", value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) models: Vec<Pattern>,
    /// With --role operator: a namespace in which the new member may create jobs, repeatable [default: all]
    #[arg(long = "namespace", value_name = "NAMESPACE", value_delimiter = ',', value_parser = namespace, requires = "roles")]
    pub(crate) namespaces: Vec<String>,
    /// Let the new member make, change and revoke keys and tenants
    #[arg(long)]
    pub(crate) keys: bool,
    /// How long the token is good for: 30m, 24h, 7d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    pub(crate) ttl: Duration,
    /// How many machines may use it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) uses: u32,
    /// Make the token without a running node, for a node that will listen here, repeatable
    #[arg(long, value_name = "MULTIADDR", value_delimiter = ',', value_parser = multiaddr)]
    pub(crate) address: Vec<Multiaddr>,
}
