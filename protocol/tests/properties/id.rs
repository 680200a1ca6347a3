//! Identifiers: what is accepted, and that text and value are the same thing.

use crate::generate;
use dunlin_protocol::{
    id::{Error, JobId, MeshId, ModelId, Name, Role, Roles, RuntimeName, Version},
    limits,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn accepted_texts_are_kept_as_they_are(text in any::<String>()) {
        if let Ok(id) = ModelId::new(&text) {
            prop_assert_eq!(id.as_str(), &text);
            prop_assert_eq!(id.to_string().parse::<ModelId>().unwrap(), id);
            prop_assert!(!text.is_empty() && text.len() <= limits::MODEL_ID_BYTES && !text.contains(char::is_control));
        }
        if let Ok(id) = JobId::new(&text) {
            prop_assert_eq!(id.to_string(), text.clone());
            prop_assert!(!text.contains(char::is_whitespace));
        }
        if let Ok(name) = Name::new(&text) {
            prop_assert!(name.as_str().len() <= limits::NAME_BYTES);
        }
        if let Ok(runtime) = RuntimeName::new(&text) {
            prop_assert!(runtime.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
        }
    }

    #[test]
    fn mesh_ids_print_and_parse(mesh in generate::mesh(), noise in "[0-9a-zA-Z]{0,70}") {
        prop_assert_eq!(mesh.to_string().parse::<MeshId>().unwrap(), mesh);
        prop_assert_eq!(mesh.to_string().to_uppercase().parse::<MeshId>().unwrap(), mesh);
        if noise.len() != 64 {
            prop_assert_eq!(noise.parse::<MeshId>(), Err(Error::MeshId));
        }
    }

    #[test]
    fn role_sets_are_sets(a in generate::roles(), b in generate::roles(), role in generate::role()) {
        prop_assert!(a.with(role).contains(role));
        prop_assert!(a.with(role).includes(a));
        prop_assert_eq!(a.intersects(b), a.intersection(b) != Roles::NONE);
        prop_assert!(a.includes(a.intersection(b)) && b.includes(a.intersection(b)));
        prop_assert_eq!(a.includes(b), b.iter().all(|role| a.contains(role)));
        prop_assert_eq!(a.iter().collect::<Roles>(), a);
        prop_assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
    }

    #[test]
    fn a_new_start_outranks_every_message_before_it(older in generate::version(), seq in any::<u64>()) {
        prop_assume!(older.epoch < u64::MAX);
        let newer = Version { epoch: older.epoch + 1, seq };
        prop_assert!(newer > older);
    }
}

#[test]
fn errors_name_the_rule() {
    assert_eq!(ModelId::new("").unwrap_err().to_string(), "model id is empty");
    assert_eq!(Name::new(&"x".repeat(65)).unwrap_err().to_string(), "name has 65 bytes; at most 64 are allowed");
    assert_eq!(RuntimeName::new("vLLM").unwrap_err(), Error::Character { what: "runtime name", found: 'L' });
    let unknown = "boss".parse::<Role>().unwrap_err().to_string();
    assert!(unknown.contains("boss") && unknown.contains("agent, proxy, orchestrator, relay"), "{unknown}");
}
