//! How long placement takes: many replicas at once on an empty cluster, and one more on a full one. What is promised, and what
//! was measured, stands in `docs/kubernetes.md`.
//!
//! `cargo bench -p dunlin-k8s --bench placement`
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use dunlin_k8s::plan::{Amounts, Demand, FlavorNeed, Labels, NodeView, Place, Previous, ReplicaKey, Vocabulary, plan};
use std::{collections::BTreeMap, hint::black_box, sync::Arc};

const NODES: usize = 1_000;
const REPLICAS: usize = 1_000;
/// Different Playgrounds, each with flavors of its own.
const GROUPS: usize = 100;
const KINDS: [&str; 8] = ["b200", "h200", "h100", "a100", "l40s", "l4", "a10", "t4"];

fn amounts(gpus: i64, cpus: i64) -> Amounts {
    let mut amounts = Amounts::default();
    amounts.set(0, gpus * 1_000);
    amounts.set(1, cpus * 1_000);
    amounts
}

fn nodes() -> Vec<NodeView> {
    let node = |number: usize| {
        let kind = KINDS[number % KINDS.len()];
        let labels = [("gpu", kind), ("zone", ["a", "b", "c"][number % 3]), ("kubernetes.io/os", "linux")];
        NodeView {
            name: format!("node-{number}").into(),
            labels: Arc::new(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            taints: Arc::from([]),
            open: true,
            allocatable: Arc::new(amounts(8, 96)),
            free: amounts(8, 96),
        }
    };
    (0..NODES).map(node).collect()
}

fn flavors(group: usize) -> Arc<[FlavorNeed]> {
    let flavor = |(rank, kind): (usize, &&str)| FlavorNeed {
        name: (*kind).into(),
        selector: Labels::from([("gpu".to_owned(), (*kind).to_owned())]),
        tolerations: Vec::new(),
        needs: amounts(1 + (group % 4) as i64, 4 + rank as i64),
        scarce: 0,
        topology_key: group.is_multiple_of(2).then(|| "zone".into()),
    };
    KINDS.iter().cycle().skip(group % 8).take(8).enumerate().map(flavor).collect()
}

fn demand(replicas: usize) -> Vec<Demand> {
    let groups: Vec<Arc<[FlavorNeed]>> = (0..GROUPS).map(flavors).collect();
    let one = |number: usize| Demand {
        key: format!("ns/p{}-{}", number % GROUPS, number / GROUPS).into(),
        group: format!("ns/p{}", number % GROUPS).into(),
        beside: Arc::from([]),
        flavors: groups[number % GROUPS].clone(),
        wait_for: 0,
    };
    (0..replicas).map(one).collect()
}

fn placement(criterion: &mut Criterion) {
    let (nodes, vocabulary) = (nodes(), Vocabulary::default());
    let (all, none) = (demand(REPLICAS), BTreeMap::new());
    let one = &all[..1];
    let placed = plan(&all, &nodes, &none, &vocabulary);
    let on_node = |(key, place): (&ReplicaKey, &Place)| match place {
        Place::OnNode { flavor, node } => Some((key.clone(), Previous { flavor: flavor.clone(), node: node.clone() })),
        Place::Provision { .. } => None,
    };
    let before: BTreeMap<ReplicaKey, Previous> = placed.places.iter().filter_map(on_node).collect();
    assert_eq!(before.len(), REPLICAS, "there is room for all");
    let full: Vec<NodeView> = nodes.iter().map(|node| NodeView { free: amounts(0, 0), ..node.clone() }).collect();

    let mut group = criterion.benchmark_group("placement");
    let mut bench = |name: &str, demand: &[Demand], nodes: &[NodeView], previous: &BTreeMap<ReplicaKey, Previous>| {
        group.bench_function(name, |bencher| bencher.iter(|| plan(black_box(demand), nodes, previous, &vocabulary)));
    };
    bench("1,000 replicas on 1,000 nodes", &all, &nodes, &none);
    bench("1 replica on 1,000 nodes", one, &nodes, &none);
    bench("1,000 replicas that have their places", &all, &nodes, &before);
    bench("1 replica where there is no room", one, &full, &none);
    group.finish();
}

criterion_group!(benches, placement);
criterion_main!(benches);
