//! What placement has to know of a replica: its flavors, with what each takes of a node.

use crate::{
    manifest::{self, Making},
    plan::{Amounts, FlavorNeed, Vocabulary, parse_quantity},
    resources::Flavor,
};

/// What the agent takes beside the engine, thousandths of cores and of bytes.
const AGENT: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "128Mi")];

/// What one replica takes, for each of the flavors that will do.
#[must_use]
pub fn flavors(making: Making<'_>, vocabulary: &mut Vocabulary) -> Vec<FlavorNeed> {
    let flavors = making.revision.snapshot.flavors().unwrap_or_default();
    flavors.into_iter().map(|flavor| need(making, flavor, vocabulary)).collect()
}

fn need(making: Making<'_>, flavor: &Flavor, vocabulary: &mut Vocabulary) -> FlavorNeed {
    let mut needs = Amounts::default();
    let mut add = |name: &str, amount: Option<i64>| {
        if let (Some(index), Some(amount)) = (vocabulary.index(name), amount) {
            needs.set(index, needs.get(index).saturating_add(amount));
        }
    };
    let resources = manifest::resources(making, flavor);
    for (name, quantity) in &resources.limits {
        if !resources.requests.contains_key(name) {
            add(name, parse_quantity(quantity));
        }
    }
    resources.requests.iter().for_each(|(name, quantity)| add(name, parse_quantity(quantity)));
    AGENT.iter().for_each(|(name, quantity)| add(name, parse_quantity(quantity)));
    add("pods", Some(1_000));
    for device in flavor.gpu.iter().chain(&flavor.rdma) {
        add(&device.resource, device.count.checked_mul(1_000));
    }
    let scarce = flavor.gpu.as_ref().map_or("cpu", |gpu| gpu.resource.as_str());
    let tolerations = flavor.tolerations.iter().chain(&making.settings.replica_defaults.tolerations).cloned();
    FlavorNeed {
        name: flavor.name.as_str().into(),
        selector: flavor.node_selector.clone(),
        tolerations: tolerations.chain(manifest::implied(flavor)).collect(),
        needs,
        scarce: vocabulary.index(scarce).unwrap_or(0),
        topology_key: flavor.topology_key.as_deref().map(Into::into),
    }
}
