//! Logs: for a person on a terminal, JSON lines otherwise. `DUNLIN_LOG` filters (`info`, `dunlin_node=debug,info`),
//! `DUNLIN_LOG_FORMAT` chooses between the two (`human`, `json`).

use crate::exit::Failure;
use std::io::IsTerminal;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// A short command speaks only when something is wrong.
const COMMAND: &str = "error";
/// A service says in its log what it does.
const SERVICE: &str = "info,libp2p=error,multistream_select=warn,quinn=warn";
/// On a terminal it has printed its addresses already: what a person wants to see there is how the engines fare, who joins,
/// and what goes wrong.
const SERVICE_ON_TERMINAL: &str =
    "warn,dunlin=info,dunlin_agent=info,dunlin_node=warn,dunlin_node::admission=info,dunlin_proxy=warn,libp2p=error";

/// Lines that wait to be written while whoever reads them is slow. More are lost: a node must not stand still for its log.
const WAITING_LINES: usize = 4096;

/// The crates of this program, which log under their names.
const OWN: [&str; 5] = ["dunlin", "dunlin_agent", "dunlin_node", "dunlin_protocol", "dunlin_proxy"];
/// How the names of others begin that log, or may.
const OTHERS: [&str; 16] = [
    "axum",
    "h2",
    "hickory",
    "hyper",
    "if_watch",
    "igd",
    "libp2p",
    "mio",
    "multistream_select",
    "netlink",
    "quinn",
    "rustls",
    "tokio",
    "tower",
    "tracing",
    "yamux",
];

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Human,
    Json,
}

/// Starts logging to standard error, from a thread of its own. What was said is written once the guard is dropped.
///
/// # Errors
/// `DUNLIN_LOG` is no filter, or names what never logs; `DUNLIN_LOG_FORMAT` is none of its choices.
pub(crate) fn start(service: bool) -> Result<WorkerGuard, Failure> {
    let terminal = std::io::stderr().is_terminal();
    let usual = match (service, terminal) {
        (false, _) => COMMAND,
        (true, false) => SERVICE,
        (true, true) => SERVICE_ON_TERMINAL,
    };
    let asked = std::env::var_os("DUNLIN_LOG").map(|text| text.to_string_lossy().into_owned());
    let filter = filter(asked.as_deref(), usual)?;
    let (writer, guard) = NonBlockingBuilder::default().buffered_lines_limit(WAITING_LINES).finish(std::io::stderr());
    // A line that could not be written would be reported on standard error, by a macro that panics when that fails.
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).log_internal_errors(false);
    match format(std::env::var("DUNLIN_LOG_FORMAT").ok().as_deref(), terminal)? {
        Format::Human => subscriber.with_target(false).with_ansi(terminal).compact().init(),
        Format::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(guard)
}

/// What is asked for, else the `usual`. A filter that lets nothing through by mistake is noticed when a log is missing that
/// can't be had any more, so that it is refused: a word alone would be taken for a target, and everything else turned off.
fn filter(asked: Option<&str>, usual: &str) -> Result<EnvFilter, Failure> {
    let Some(asked) = asked.filter(|text| !text.trim().is_empty()) else { return Ok(EnvFilter::new(usual)) };
    let refused = |what: String| {
        Failure::Usage(format!(
            "DUNLIN_LOG is {asked:?}: {what}; write off, error, warn, info, debug or trace, alone or for a part of the \
             program, as in warn,dunlin_node=debug ({})",
            OWN.join(", ")
        ))
    };
    let filter = EnvFilter::try_new(asked).map_err(|error| refused(error.to_string()))?;
    for directive in asked.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let is_word = directive.parse::<LevelFilter>().is_err() && !directive.contains(['=', '[', ']', '{', '}', '"']);
        let name = directive.split([':', '=', '[']).next().unwrap_or_default();
        let is_known = OWN.contains(&name) || OTHERS.iter().any(|other| name.starts_with(other));
        // What has a level may be for a crate that isn't listed here, but none of our own is missing.
        if (is_word || name.starts_with("dunlin")) && !is_known {
            return Err(refused(format!("{name:?} is neither a level nor a part that logs")));
        }
    }
    Ok(filter)
}

fn format(asked: Option<&str>, terminal: bool) -> Result<Format, Failure> {
    match asked {
        None | Some("" | "auto") if terminal => Ok(Format::Human),
        None | Some("" | "auto" | "json") => Ok(Format::Json),
        Some("human") => Ok(Format::Human),
        Some(other) => Err(Failure::Usage(format!("DUNLIN_LOG_FORMAT is {other:?}; it may be auto, human or json"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);
    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn shown(filter: &str) -> Vec<String> {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(move || writer.clone())
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "dunlin::signals", "ending");
            tracing::info!(target: "dunlin_agent::replica::report", "engine ready");
            tracing::info!(target: "dunlin_node::admission", "joined");
            tracing::info!(target: "dunlin_node::events::connection", "listening");
            tracing::info!(target: "dunlin_proxy::proxy", "endpoint open");
            tracing::warn!(target: "dunlin_node::events::connection", "clock");
            tracing::warn!(target: "libp2p_swarm", "inner matters");
        });
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn a_terminal_shows_what_a_person_cares_about() {
        assert_eq!(shown(SERVICE_ON_TERMINAL), ["ending", "engine ready", "joined", "clock"]);
        assert_eq!(shown(SERVICE).len(), 6);
        assert_eq!(shown(COMMAND).len(), 0);
    }

    #[test]
    fn a_filter_with_a_typing_error_is_refused() {
        for good in
            ["info", "WARN", "warn,dunlin_node=debug", "dunlin_proxy", "libp2p_swarm::x=trace,info", "off", "sled=warn"]
        {
            assert!(filter(Some(good), SERVICE).is_ok(), "{good}");
        }
        for wrong in ["inof", "warn,dunlin_node=debgu", "dunlin_nod=debug", "warn,dunlin-node=info", "dunlin_nodes"] {
            let said = filter(Some(wrong), SERVICE).unwrap_err().to_string();
            assert!(said.contains(wrong) && said.contains("warn,dunlin_node=debug"), "{said}");
        }
        for none in [None, Some("")] {
            assert_eq!(filter(none, SERVICE).unwrap().to_string(), EnvFilter::new(SERVICE).to_string());
        }
    }

    #[test]
    fn the_format_follows_the_terminal_unless_it_is_named() {
        for (asked, terminal, wanted) in [
            (None, true, Format::Human),
            (None, false, Format::Json),
            (Some("auto"), false, Format::Json),
            (Some("human"), false, Format::Human),
            (Some("json"), true, Format::Json),
        ] {
            assert_eq!(format(asked, terminal).unwrap(), wanted, "{asked:?}");
        }
        assert!(format(Some("xml"), true).unwrap_err().to_string().contains("human or json"));
    }
}
