//! Topic keys: every version of Dunlin must compute the same ones.

use crate::generate;
use dunlin_protocol::{
    id::{MeshId, ModelId, Role},
    topic::Topic,
};
use proptest::prelude::*;

fn hex(bytes: [u8; 32]) -> String {
    MeshId(bytes).to_string()
}

proptest! {
    #[test]
    fn different_topics_and_meshes_have_different_keys(
        a in generate::topic(), b in generate::topic(), mesh in generate::mesh(), other in generate::mesh(),
    ) {
        prop_assert_eq!(a == b, a.key(&mesh) == b.key(&mesh));
        prop_assert_eq!(mesh == other, a.key(&mesh) == a.key(&other));
    }
}

/// Fixed vectors, computed apart from this code:
/// `(printf '/dunlin/topic/1\0'; head -c 32 /dev/zero | tr '\0' '\7'; printf 'model/Qwen/Qwen3-8B') | sha256sum`
#[test]
fn keys_are_stable() {
    let mesh = MeshId([7; 32]);
    let model = Topic::Model(ModelId::new("Qwen/Qwen3-8B").unwrap());
    assert_eq!(hex(model.key(&mesh).0), "dfa12666872e178cd7834c25d320430f15cb70ebe46ae1e93f4182ead475c1f6");
    assert_eq!(
        hex(Topic::Role(Role::Proxy).key(&mesh).0),
        "8882e720e864a4244090d11e89e78c28dd94d7362ec1407715ace6ffc5ad0e0f"
    );
}
