//! The balancers that are compared, each started as its own documentation says, and told the engines' slots where it can
//! be told.

use crate::{
    child::{Child, free_address},
    folder::Folder,
    mesh::{self, Engine, Mesh},
};
use anyhow::Result;
use std::{
    env,
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

/// Model that all engines serve.
pub const MODEL: &str = "bench";

/// Ports tried for one balancer.
const START_TRIES: u32 = 3;

/// An engine and what a balancer may be told of it.
pub struct Backend {
    pub engine: Engine,
    pub slots: u32,
}

/// One way to balance.
pub struct Kind {
    pub name: String,
    how: How,
    program: PathBuf,
}

#[derive(Clone, Copy)]
enum How {
    Dunlin,
    Haproxy,
    Nginx,
    SglangRouter(&'static str),
    VllmRouter(&'static str),
}

/// A running balancer.
pub struct Balancer {
    pub name: String,
    pub at: SocketAddr,
    pub key: Option<String>,
    /// The processes between client and engine.
    processes: Vec<Child>,
    mesh: Option<Mesh>,
    _files: Folder,
}

/// Those of all that are installed here; Dunlin last.
pub fn installed() -> Vec<Kind> {
    let all = [
        ("nginx least_conn", "nginx", How::Nginx),
        ("haproxy leastconn", "haproxy", How::Haproxy),
        ("sglang-router cache_aware", "sglang-router", How::SglangRouter("cache_aware")),
        ("sglang-router power_of_two", "sglang-router", How::SglangRouter("power_of_two")),
        ("vllm-router cache_aware", "vllm-router", How::VllmRouter("cache_aware")),
        ("vllm-router power_of_two", "vllm-router", How::VllmRouter("power_of_two")),
    ];
    let mut kinds = Vec::new();
    for (name, program, how) in all {
        match find(program) {
            Some(program) => kinds.push(Kind { name: name.into(), how, program }),
            None => eprintln!("{program} is not installed here: left out"),
        }
    }
    for other in env::var_os("DUNLIN_PEERS_OTHER").iter().flat_map(env::split_paths) {
        let name = other.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        kinds.push(Kind { name: format!("dunlin, {name}"), how: How::Dunlin, program: other });
    }
    kinds.push(Kind { name: "dunlin".into(), how: How::Dunlin, program: mesh::DUNLIN.into() });
    kinds
}

fn find(program: &str) -> Option<PathBuf> {
    let folders = [env::var_os("DUNLIN_PEERS_PATH"), env::var_os("PATH"), Some("/usr/sbin".into())];
    let folders: Vec<PathBuf> = folders.iter().flatten().flat_map(env::split_paths).collect();
    folders.into_iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

impl Kind {
    /// Whether it starts before a single engine. Which of them a policy would choose makes no difference there, and
    /// sglang-router refuses to start with this one.
    pub fn takes_one_engine(&self) -> bool {
        !matches!(self.how, How::SglangRouter("power_of_two") | How::VllmRouter("power_of_two"))
    }

    /// Starts it before `backends`.
    pub fn start(&self, backends: &[Backend]) -> Result<Balancer> {
        let files = Folder::new()?;
        if let How::Dunlin = self.how {
            return self.dunlin(backends, files);
        }
        // Somebody else may take a port between its being found free and its being listened on.
        let mut tries = 0;
        let (at, process) = loop {
            let at = free_address()?;
            let mut process = Child::start(&self.name, &mut self.command(at, backends, &files.0)?)?;
            tries += 1;
            match process.listens(at) {
                Ok(()) => break (at, process),
                Err(error) if tries == START_TRIES => return Err(error),
                Err(_) => {}
            }
        };
        Ok(Balancer { name: self.name.clone(), at, key: None, processes: vec![process], mesh: None, _files: files })
    }

    fn dunlin(&self, backends: &[Backend], files: Folder) -> Result<Balancer> {
        let mut mesh = Mesh::start_with(self.program.clone())?;
        let processes = backends.iter().map(|backend| mesh.agent(&[&backend.engine])).collect::<Result<Vec<_>>>()?;
        mesh.serves(MODEL)?;
        mesh.ready_replicas(backends.len())?;
        let (at, key) = (mesh.at, Some(mesh.key.clone()));
        Ok(Balancer { name: self.name.clone(), at, key, processes, mesh: Some(mesh), _files: files })
    }

    fn command(&self, at: SocketAddr, backends: &[Backend], folder: &Path) -> Result<Command> {
        let mut command = Command::new(&self.program);
        let urls = backends.iter().map(|backend| format!("http://{}", backend.engine.at));
        let port = at.port().to_string();
        match self.how {
            How::Haproxy => {
                let file = folder.join("haproxy.cfg");
                std::fs::write(&file, haproxy(at, backends)?)?;
                command.args(["-db", "-f"]).arg(file);
            }
            How::Nginx => {
                let file = folder.join("nginx.conf");
                std::fs::write(&file, nginx(at, backends, folder)?)?;
                command.arg("-p").arg(folder).arg("-c").arg(file);
            }
            How::SglangRouter(policy) => {
                command.args(["launch", "--host", "127.0.0.1", "--port", &port, "--policy", policy, "--worker-urls"]);
                command.args(urls).args(["--prometheus-port", &free_address()?.port().to_string()]);
            }
            How::VllmRouter(policy) => {
                command.args(["--host", "127.0.0.1", "--port", &port, "--policy", policy, "--worker-urls"]);
                command.args(urls).args(["--prometheus-port", &free_address()?.port().to_string()]);
            }
            How::Dunlin => {}
        }
        Ok(command)
    }
}

impl Balancer {
    /// Processor seconds used so far.
    pub fn cpu_s(&self) -> Result<f64> {
        let proxy = self.mesh.as_ref().map(|mesh| &mesh.proxy);
        self.processes.iter().chain(proxy).map(Child::cpu_s).sum()
    }
}

/// It queues by itself beyond the slots, and passes pieces on at once.
fn haproxy(at: SocketAddr, backends: &[Backend]) -> Result<String> {
    let mut config = format!(
        "global\n  maxconn 8192\ndefaults\n  mode http\n  option http-no-delay\n  option redispatch\n  retries 2\n  \
         http-reuse always\n  timeout connect 5s\n  timeout client 300s\n  timeout server 300s\n  timeout queue 300s\n\
         frontend in\n  bind {at}\n  default_backend engines\nbackend engines\n  balance leastconn\n"
    );
    for (index, backend) in backends.iter().enumerate() {
        writeln!(config, "  server e{index} {} maxconn {}", backend.engine.at, backend.slots)?;
    }
    Ok(config)
}

/// Slots as weights: `max_conns` would refuse with 502 what finds all taken.
fn nginx(at: SocketAddr, backends: &[Backend], folder: &Path) -> Result<String> {
    let mut servers = String::new();
    for backend in backends {
        writeln!(servers, "    server {} weight={};", backend.engine.at, backend.slots)?;
    }
    let folder = folder.display();
    Ok(format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n\
         events {{ worker_connections 8192; }}\nhttp {{\n  access_log off;\n  client_body_temp_path {folder}/body;\n  \
         proxy_temp_path {folder}/proxy;\n  fastcgi_temp_path {folder}/f;\n  uwsgi_temp_path {folder}/u;\n  \
         scgi_temp_path {folder}/s;\n  keepalive_requests 1000000;\n  upstream engines {{\n    least_conn;\n{servers}    \
         keepalive 512;\n    keepalive_requests 1000000;\n  }}\n  server {{\n    listen {at};\n    location / {{\n      \
         proxy_pass http://engines;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      \
         proxy_buffering off;\n      proxy_read_timeout 300s;\n    }}\n  }}\n}}\n"
    ))
}
