//! What [`super::plan`] promises, for clusters at random, and by example.

use super::*;
use proptest::prelude::*;

const GPU: usize = 0;
const CPU: usize = 1;

fn vocabulary() -> Vocabulary {
    let mut vocabulary = Vocabulary::default();
    vocabulary.index("nvidia.com/gpu");
    vocabulary.index("cpu");
    vocabulary
}

fn amounts(gpus: i64, cpus: i64) -> Amounts {
    let mut amounts = Amounts::default();
    amounts.set(GPU, gpus * 1_000);
    amounts.set(CPU, cpus * 1_000);
    amounts
}

fn node(name: &str, kind: &str, zone: &str, free: (i64, i64)) -> NodeView {
    let labels = Labels::from([("gpu".to_owned(), kind.to_owned()), ("zone".to_owned(), zone.to_owned())]);
    NodeView {
        name: name.into(),
        labels: Arc::new(labels),
        taints: Arc::from([]),
        open: true,
        allocatable: Arc::new(amounts(8, 64)),
        free: amounts(free.0, free.1),
    }
}

fn flavor(kind: &str, gpus: i64, cpus: i64) -> FlavorNeed {
    FlavorNeed {
        name: kind.into(),
        selector: Labels::from([("gpu".to_owned(), kind.to_owned())]),
        tolerations: Vec::new(),
        needs: amounts(gpus, cpus),
        scarce: GPU,
        topology_key: None,
    }
}

fn demand(key: &str, flavors: &Arc<[FlavorNeed]>) -> Demand {
    Demand { key: key.into(), group: "g".into(), beside: Arc::from([]), flavors: flavors.clone(), wait_for: 0 }
}

fn previous(plan: &Plan) -> BTreeMap<ReplicaKey, Previous> {
    let on_node = |(key, place): (&ReplicaKey, &Place)| match place {
        Place::OnNode { flavor, node } => Some((key.clone(), Previous { flavor: flavor.clone(), node: node.clone() })),
        Place::Provision { .. } => None,
    };
    plan.places.iter().filter_map(on_node).collect()
}

/// What is free once the plan is carried out; fails if a node holds too much, or one that it may not.
fn left(plan: &Plan, demand: &[Demand], nodes: &[NodeView]) -> BTreeMap<Arc<str>, Amounts> {
    let mut free: BTreeMap<Arc<str>, Amounts> =
        nodes.iter().map(|node| (node.name.clone(), node.free.clone())).collect();
    for wanted in demand {
        let Place::OnNode { flavor, node } = &plan.places[&wanted.key] else { continue };
        let flavor = wanted.flavors.iter().find(|known| known.name == *flavor).unwrap();
        let view = nodes.iter().find(|known| known.name == *node).unwrap();
        assert_eq!(view.closed_to(flavor), None);
        assert!(free[node].hold(&flavor.needs), "{node} is full");
        free.get_mut(node).unwrap().subtract(&flavor.needs);
    }
    free
}

fn cluster() -> impl Strategy<Value = (Vec<NodeView>, Vec<Demand>)> {
    let kinds = prop::sample::select(vec!["h100", "a100", "l4"]);
    let nodes =
        prop::collection::vec((kinds.clone(), 0..3_usize, 0..=8_i64, 0..=64_i64, any::<bool>(), 0..4_u8), 0..12);
    let flavors = prop::collection::vec((kinds, 1..=4_i64, 0..=16_i64, any::<bool>()), 1..4);
    let groups = prop::collection::vec((flavors, 1..8_usize, 0..4_usize), 1..4);
    (nodes, groups).prop_map(|(nodes, groups)| {
        let nodes = nodes.into_iter().enumerate().map(|(index, (kind, zone, gpus, cpus, open, tainted))| {
            let mut view = node(&format!("n{index}"), kind, ["a", "b", "c"][zone], (gpus, cpus));
            view.open = open || index % 3 == 0;
            if tainted == 0 {
                view.taints = Arc::from([Taint { key: "t".into(), value: "v".into(), effect: "NoSchedule".into() }]);
            }
            view
        });
        let mut demand = Vec::new();
        for (group, (flavors, replicas, wait_for)) in groups.into_iter().enumerate() {
            let flavors: Vec<FlavorNeed> = flavors
                .into_iter()
                .enumerate()
                .map(|(index, (kind, gpus, cpus, spread))| {
                    let mut need = flavor(kind, gpus, cpus);
                    need.name = format!("{index}-{kind}").into();
                    need.topology_key = spread.then(|| "zone".into());
                    if index % 2 == 1 {
                        need.tolerations =
                            vec![Toleration { operator: Some("Exists".into()), ..Toleration::default() }];
                    }
                    need
                })
                .collect();
            let flavors: Arc<[FlavorNeed]> = flavors.into();
            for replica in 0..replicas {
                let key = format!("g{group}-{replica}").into();
                let (group, beside) = (format!("g{group}").into(), Arc::from(["n1".into()]));
                demand.push(Demand { key, group, beside, flavors: flavors.clone(), wait_for });
            }
        }
        (nodes.collect(), demand)
    })
}

proptest! {
    #[test]
    fn nobody_gets_more_than_there_is_and_flavors_come_in_order((nodes, demand) in cluster()) {
        let plan = plan(&demand, &nodes, &BTreeMap::new(), &vocabulary());
        prop_assert_eq!(plan.places.len(), demand.len());
        let free = left(&plan, &demand, &nodes);
        let has_room = |need: &FlavorNeed| {
            nodes.iter().any(|node| node.closed_to(need).is_none() && free[&node.name].hold(&need.needs))
        };
        for wanted in &demand {
            match &plan.places[&wanted.key] {
                // Room only shrinks while a plan is made: what has room at the end had room before.
                Place::OnNode { flavor, .. } => {
                    let better = wanted.flavors.iter().take_while(|known| known.name != *flavor);
                    prop_assert!(better.into_iter().all(|need| !has_room(need)), "a better flavor had room");
                }
                Place::Provision { flavor, tried } => {
                    prop_assert!(!wanted.flavors.iter().any(has_room), "there was room");
                    prop_assert_eq!(tried.len(), wanted.flavors.len());
                    prop_assert_eq!(flavor, &wanted.flavors[wanted.wait_for % wanted.flavors.len()].name);
                }
            }
        }
    }

    #[test]
    fn a_plan_is_stable_and_a_newcomer_moves_nobody((nodes, demand) in cluster()) {
        let (first, rest) = demand.split_first().unwrap();
        let before = plan(rest, &nodes, &BTreeMap::new(), &vocabulary());
        let again = plan(rest, &nodes, &previous(&before), &vocabulary());
        prop_assert_eq!(previous(&again), previous(&before));
        let after = plan(&demand, &nodes, &previous(&before), &vocabulary());
        left(&after, &demand, &nodes);
        for wanted in rest {
            if matches!(before.places[&wanted.key], Place::OnNode { .. }) {
                prop_assert_eq!(&after.places[&wanted.key], &before.places[&wanted.key], "moved for {}", first.key);
            }
        }
    }

    #[test]
    fn the_order_of_nodes_and_demand_decides_nothing((nodes, demand) in cluster()) {
        let reversed: Vec<NodeView> = nodes.iter().rev().cloned().collect();
        let backwards: Vec<Demand> = demand.iter().rev().cloned().collect();
        let one = plan(&demand, &nodes, &BTreeMap::new(), &vocabulary());
        prop_assert_eq!(one, plan(&backwards, &reversed, &BTreeMap::new(), &vocabulary()));
    }
}

fn node_of<'p>(plan: &'p Plan, key: &str) -> &'p str {
    match &plan.places[key] {
        Place::OnNode { node, .. } => node,
        Place::Provision { .. } => "",
    }
}

#[test]
fn small_replicas_fill_the_fullest_node_so_that_large_ones_find_room() {
    let nodes = [node("n0", "h100", "a", (8, 64)), node("n1", "h100", "a", (3, 64)), node("n2", "h100", "a", (5, 64))];
    let flavors: Arc<[FlavorNeed]> = Arc::from([flavor("h100", 2, 1)]);
    let plan = plan(&[demand("a", &flavors), demand("b", &flavors)], &nodes, &BTreeMap::new(), &vocabulary());
    assert_eq!((node_of(&plan, "a"), node_of(&plan, "b")), ("n1", "n2"));
}

#[test]
fn a_topology_key_spreads_a_playground_over_its_domains() {
    let nodes = [node("n0", "h100", "a", (8, 64)), node("n1", "h100", "b", (4, 64)), node("n2", "h100", "b", (8, 64))];
    let mut need = flavor("h100", 2, 1);
    need.topology_key = Some("zone".into());
    let flavors: Arc<[FlavorNeed]> = Arc::from([need]);
    let wanted: Vec<Demand> = ["a", "b", "c", "d"].iter().map(|key| demand(key, &flavors)).collect();
    let plan = plan(&wanted, &nodes, &BTreeMap::new(), &vocabulary());
    let in_a = wanted.iter().filter(|wanted| node_of(&plan, &wanted.key) == "n0").count();
    assert_eq!(in_a, 2, "{plan:?}");
}

/// One after the other, as an update places them.
#[test]
fn who_comes_later_is_spread_beside_those_that_are_there() {
    let zones = ["a", "b", "c"].map(|zone| node(&format!("n-{zone}"), "h100", zone, (8, 64)));
    let mut need = flavor("h100", 1, 1);
    need.topology_key = Some("zone".into());
    let flavors: Arc<[FlavorNeed]> = Arc::from([need]);
    let mut there: Vec<Arc<str>> = Vec::new();
    for number in 0..6 {
        let key = format!("r{number}");
        let wanted = [Demand { beside: there.clone().into(), ..demand(&key, &flavors) }];
        let plan = plan(&wanted, &zones, &BTreeMap::new(), &vocabulary());
        there.push(node_of(&plan, &key).into());
    }
    for zone in &zones {
        assert_eq!(there.iter().filter(|node| **node == zone.name).count(), 2, "{there:?}");
    }
}

#[test]
fn who_finds_no_room_is_told_flavor_by_flavor() {
    let mut cordoned = node("n1", "a100", "a", (8, 64));
    cordoned.open = false;
    let nodes = [node("n0", "h100", "a", (3, 64)), cordoned, node("n2", "l4", "a", (8, 64))];
    let flavors: Arc<[FlavorNeed]> = Arc::from([
        flavor("h100", 8, 1),
        flavor("a100", 1, 1),
        flavor("b200", 1, 1),
        flavor("l4", 16, 1),
        flavor("l4", 1, 65),
    ]);
    let plan = plan(&[demand("a", &flavors)], &nodes, &BTreeMap::new(), &vocabulary());
    let Place::Provision { tried, .. } = &plan.places["a"] else { panic!("placed") };
    let told: Vec<String> = tried.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "h100: needs 8 nvidia.com/gpu, and 1 nodes have at most 3 free",
            "a100: none of 1 nodes with its labels is open (n1 is cordoned or not ready)",
            "b200: no node has the labels gpu=b200",
            "l4: needs 16 nvidia.com/gpu, and the largest of 1 nodes has 8 in all",
            "l4: needs 65 cpu, and the largest of 1 nodes has 64 in all",
        ]
    );
}

#[test]
fn a_place_is_left_only_when_it_no_longer_fits() {
    let flavors: Arc<[FlavorNeed]> = Arc::from([flavor("h100", 4, 1), flavor("a100", 4, 1)]);
    let before = BTreeMap::from([(ReplicaKey::from("a"), Previous { flavor: "a100".into(), node: "n1".into() })]);
    let nodes = [node("n0", "h100", "a", (8, 64)), node("n1", "a100", "a", (4, 64))];
    let kept = plan(&[demand("a", &flavors)], &nodes, &before, &vocabulary());
    assert_eq!(node_of(&kept, "a"), "n1", "a better flavor is no reason to move");
    let nodes = [node("n0", "h100", "a", (8, 64)), node("n1", "a100", "a", (3, 64))];
    let moved = plan(&[demand("a", &flavors)], &nodes, &before, &vocabulary());
    assert_eq!(node_of(&moved, "a"), "n0");
}
