//! The hop's table of rights.

use crate::generate;
use dunlin_protocol::{
    hop::{Fault, Route},
    id::{Role, Roles},
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_member_without_the_role_proxy_sends_no_inference(path in "/engine/[ -~]{0,40}", roles in generate::roles()) {
        let route = Route::of(&path);
        prop_assert_eq!(route, Some(Route::Inference));
        prop_assert_eq!(route.unwrap().allows(roles), roles.contains(Role::Proxy));
    }

    #[test]
    fn any_path_has_a_route_or_none(path in any::<String>()) {
        let known = path.starts_with("/engine/") || path.starts_with("/mesh/");
        prop_assert!(known || Route::of(&path).is_none());
    }

    /// More roles never mean fewer rights.
    #[test]
    fn rights_grow_with_roles(roles in generate::roles(), role in generate::role()) {
        for route in [
            Route::Inference,
            Route::Logs,
            Route::Renew,
            Route::Delegation,
            Route::Revocations,
            Route::Info,
            Route::Agents,
            Route::Adapters,
            Route::Responses,
            Route::Keys,
            Route::Limits,
        ] {
            prop_assert!(!route.allows(roles) || route.allows(roles.with(role)));
        }
    }
}

#[test]
fn logs_are_for_those_who_operate() {
    assert_eq!(Route::of("/mesh/logs/0"), Some(Route::Logs));
    assert_eq!(Route::of("/mesh/logsomething"), None);
    assert!(!Route::Logs.allows(Roles::NONE.with(Role::Agent)));
    assert!(Route::Logs.allows(Roles::NONE.with(Role::Orchestrator)));
}

/// Whose response it is, proxies tell nobody but each other.
#[test]
fn stored_responses_are_a_matter_of_proxies() {
    assert_eq!(Route::of("/mesh/responses/resp_1"), Some(Route::Responses));
    assert!(Route::Responses.allows(Roles::NONE.with(Role::Proxy)));
    assert!(!Route::Responses.allows(Roles::from_iter([Role::Agent, Role::Orchestrator, Role::Relay])));
    assert!(!Route::of("/mesh/adapters").unwrap().allows(Roles::NONE.with(Role::Agent)));
}

#[test]
fn faults_are_their_words() {
    for fault in Fault::ALL {
        assert_eq!(fault.to_string().parse::<Fault>().unwrap(), fault);
    }
    assert!("quantum".parse::<Fault>().is_err());
}
