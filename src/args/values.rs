//! Values of flags that need a check or an example: what is wrong is answered with what would be right.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use dunlin_protocol::{
    certificate::EVERY_NAMESPACE,
    id::{self, ModelId, Role},
};
use libp2p::Multiaddr;
use std::{net::SocketAddr, time::Duration};

/// Threads of a process at most.
pub(crate) const WORKER_THREADS: usize = 256;

pub(super) fn worker_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=WORKER_THREADS) => Ok(threads),
        _ => Err(format!("a number from 1 to {WORKER_THREADS}")),
    }
}

/// `NAME=MODEL`.
pub(super) fn alias(text: &str) -> Result<(ModelId, ModelId), String> {
    let (name, model) = text.split_once('=').ok_or("write NAME=MODEL, as in gpt-4o=Qwen/Qwen3-8B")?;
    Ok((model_id(name)?, model_id(model)?))
}

/// `MODEL=OTHER,OTHER`.
pub(super) fn fallback(text: &str) -> Result<(ModelId, Vec<ModelId>), String> {
    let (model, others) = text.split_once('=').ok_or("write MODEL=OTHER or MODEL=OTHER,ANOTHER")?;
    Ok((model_id(model)?, others.split(',').map(model_id).collect::<Result<_, _>>()?))
}

/// `NAME=SOURCE`, of a LoRA adapter.
pub(super) fn adapter(text: &str) -> Result<(ModelId, String), String> {
    let (name, source) =
        text.split_once('=').ok_or("write NAME=SOURCE, as in sql=/adapters/sql or sql=org/sql-lora")?;
    adapter_source(source)?;
    Ok((model_id(name)?, source.to_owned()))
}

/// Where an adapter lies.
///
/// # Errors
/// It could lead elsewhere than it says.
pub(crate) fn adapter_source(source: &str) -> Result<(), String> {
    if source.is_empty() || source.len() > 1024 || source.contains(char::is_control) {
        return Err("an adapter's source is a folder or a hub's name, of 1 to 1024 characters".to_owned());
    }
    if source.split(['/', '\\']).any(|part| part == "..") {
        return Err(format!("{source:?} has `..` in it; name the folder itself"));
    }
    Ok(())
}

fn model_id(text: &str) -> Result<ModelId, String> {
    text.trim().parse().map_err(|error: id::Error| error.to_string())
}

/// A role, with the choices where it is none.
pub(super) fn role() -> impl TypedValueParser<Value = Role> {
    const BUILT: [Role; 5] = Role::ALL;
    PossibleValuesParser::new(BUILT.map(Role::as_str)).try_map(|text| text.parse::<Role>())
}

/// A namespace of Kubernetes: RFC 1123's label.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = !text.is_empty()
        && text.len() <= 63
        && text.chars().all(fine)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_label || text == EVERY_NAMESPACE {
        Ok(text.to_owned())
    } else {
        Err("a namespace: small letters, digits and -, 63 at most".to_owned())
    }
}

/// An address for other members.
///
/// # Errors
/// Says what is wrong with it, with an example of a right one.
pub(crate) fn multiaddr(text: &str) -> Result<Multiaddr, String> {
    const EXAMPLES: &str = "an address looks like /ip4/192.0.2.7/tcp/4480 or /ip4/192.0.2.7/udp/4480/quic-v1";
    match text.parse::<Multiaddr>() {
        Ok(address) if address.is_empty() => Err(format!("it is empty; {EXAMPLES}")),
        Ok(address) => Ok(address),
        Err(error) => Err(format!("{error}; {EXAMPLES}")),
    }
}

/// An address for HTTP clients.
///
/// # Errors
/// Says what is wrong with it, with an example of a right one.
pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|error| {
        format!("{error}; write an IP address and a port, such as 127.0.0.1:8480, 0.0.0.0:8480 or [::1]:8480")
    })
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 86_400.0 => Ok(Duration::from_secs_f64(value)),
        _ => Err("a number of seconds above 0, up to 86400".to_owned()),
    }
}

/// How often a screen looks.
pub(super) fn look_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.2..=60.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
        _ => Err("a number of seconds from 0.2 to 60".to_owned()),
    }
}

/// Zero stands for never.
pub(super) fn seconds_or_never(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=604_800.0).contains(&value) => Ok(Duration::from_secs_f64(value)),
        _ => Err("a number of seconds up to 604800, 0 for never".to_owned()),
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const HELP: &str = "a number and a unit: 90s, 30m, 24h, 7d";
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let number: u64 = number.parse().map_err(|_| HELP.to_owned())?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(HELP.to_owned()),
    };
    match number.checked_mul(unit) {
        Some(seconds) if (1..=366 * 86_400).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err("from 1s to 366d".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for bad in ["", "5", "h", "-1h", "1y", "0s", "99999999999999999999d", "18446744073709551615d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_wrong_address_is_answered_with_a_right_one() {
        for wrong in ["", "127.0.0.1:4480", "/ip4/1.2.3.4/tpc/1", "nonsense"] {
            let said = multiaddr(wrong).unwrap_err();
            assert!(said.contains("/ip4/192.0.2.7/tcp/4480"), "{said}");
        }
        for wrong in ["", "8480", "localhost:8480", "127.0.0.1"] {
            let said = socket_address(wrong).unwrap_err();
            assert!(said.contains("127.0.0.1:8480"), "{said}");
        }
        assert!(multiaddr("/ip4/192.0.2.7/udp/4480/quic-v1").is_ok() && socket_address("[::1]:8480").is_ok());
    }
}
