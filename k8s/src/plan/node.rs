//! A node, as placement sees it.

use super::FlavorNeed;
use crate::resources::Toleration;
use std::{collections::BTreeMap, sync::Arc};

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// The names of resources, so that amounts are short lists of numbers.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    names: Vec<String>,
}

/// Names that a cluster may teach: more are ignored, which only a node with thousands of invented resources meets.
const NAMES: usize = 256;

impl Vocabulary {
    /// The index of a resource, which is learnt if it is new. `None` when there are too many.
    pub fn index(&mut self, name: &str) -> Option<usize> {
        if let Some(index) = self.names.iter().position(|known| known == name) {
            return Some(index);
        }
        (self.names.len() < NAMES).then(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    /// The name at an index.
    #[must_use]
    pub fn name(&self, index: usize) -> String {
        self.names.get(index).cloned().unwrap_or_default()
    }

    /// An amount for people.
    #[must_use]
    pub fn show(&self, index: usize, thousandths: i64) -> String {
        let name = self.names.get(index).map_or("", String::as_str);
        let whole = thousandths / 1_000;
        if (name == "memory" || name == "ephemeral-storage") && whole >= 1 << 20 {
            return format!("{}Mi", whole >> 20);
        }
        if thousandths % 1_000 == 0 { whole.to_string() } else { format!("{thousandths}m") }
    }
}

/// Amounts of resources, in thousandths, by index in the [`Vocabulary`]. What is missing is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Amounts(Vec<i64>);

impl Amounts {
    /// The amount of one resource.
    #[must_use]
    pub fn get(&self, index: usize) -> i64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// Sets the amount of one resource.
    pub fn set(&mut self, index: usize, amount: i64) {
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = amount;
    }

    /// Whether `needs` fits.
    #[must_use]
    pub fn hold(&self, needs: &Self) -> bool {
        needs.iter().all(|(index, wanted)| self.get(index) >= wanted)
    }

    /// Takes `needs` away.
    pub fn subtract(&mut self, needs: &Self) {
        for (index, amount) in needs.iter() {
            self.set(index, self.get(index).saturating_sub(amount));
        }
    }

    /// Adds `more`.
    pub fn add(&mut self, more: &Self) {
        for (index, amount) in more.iter() {
            self.set(index, self.get(index).saturating_add(amount));
        }
    }

    /// All that are not 0, by index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, i64)> {
        self.0.iter().copied().enumerate().filter(|(_, amount)| *amount != 0)
    }
}

/// A taint of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule`, `NoExecute`.
    pub effect: String,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// Its taints.
    pub taints: Arc<[Taint]>,
    /// Whether it is ready, and not cordoned.
    pub open: bool,
    /// What it has for pods in all.
    pub allocatable: Arc<Amounts>,
    /// What of that no pod takes.
    pub free: Amounts,
}

impl NodeView {
    /// Whether it has all these labels.
    #[must_use]
    pub fn has(&self, selector: &Labels) -> bool {
        selector.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }

    /// Why no replica of this flavor may go here, whatever is free; `None` when it may.
    #[must_use]
    pub fn closed_to(&self, flavor: &FlavorNeed) -> Option<String> {
        if !self.has(&flavor.selector) {
            return Some("lacks a label".to_owned());
        }
        if !self.open {
            return Some("is cordoned or not ready".to_owned());
        }
        let bars = |taint: &&Taint| {
            taint.effect != "PreferNoSchedule"
                && !flavor.tolerations.iter().any(|toleration| tolerates(toleration, taint))
        };
        let taint = self.taints.iter().find(bars)?;
        Some(format!("has the taint {}={}:{}", taint.key, taint.value, taint.effect))
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == taint.effect);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = match toleration.key.as_deref() {
        None | Some("") => exists,
        Some(key) => key == taint.key,
    };
    effect && key && (exists || toleration.value.as_deref().unwrap_or_default() == taint.value)
}
