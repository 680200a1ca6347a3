//! What the operator calls models: aliases, and which model answers when another can't. Pure.

use dunlin_protocol::id::ModelId;
use std::collections::BTreeMap;

/// Aliases and fallbacks; also the most fallbacks of one model.
const MOST: usize = 256;
const MOST_FALLBACKS: usize = 8;

/// Why names are refused. The messages are for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An alias of an alias, or of itself.
    #[error("the alias `{0}` stands for `{1}`, which is an alias itself; let it stand for a model")]
    Chain(ModelId, ModelId),
    /// A model that falls back on itself.
    #[error("`{0}` can't be its own fallback")]
    Itself(ModelId),
    /// A fallback list for an alias, or with one in it.
    #[error("`{0}` is an alias; name the model that it stands for in fallbacks")]
    AliasInFallbacks(ModelId),
    /// Too many.
    #[error("{0} has more than {1} entries")]
    TooMany(&'static str, usize),
}

/// The operator's names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    aliases: BTreeMap<ModelId, ModelId>,
    fallbacks: BTreeMap<ModelId, Vec<ModelId>>,
}

impl Names {
    /// `aliases`: name -> model. `fallbacks`: model -> those asked in its place, in this order, when it has no replica
    /// that answers.
    ///
    /// # Errors
    /// Names that lead nowhere.
    pub fn new(aliases: BTreeMap<ModelId, ModelId>, fallbacks: BTreeMap<ModelId, Vec<ModelId>>) -> Result<Self, Error> {
        if aliases.len() > MOST {
            return Err(Error::TooMany("aliases", MOST));
        }
        if fallbacks.len() > MOST {
            return Err(Error::TooMany("fallbacks", MOST));
        }
        if let Some((alias, model)) = aliases.iter().find(|(_, model)| aliases.contains_key(*model)) {
            return Err(Error::Chain(alias.clone(), model.clone()));
        }
        for (model, others) in &fallbacks {
            if others.len() > MOST_FALLBACKS {
                return Err(Error::TooMany("the list of fallbacks of one model", MOST_FALLBACKS));
            }
            if others.contains(model) {
                return Err(Error::Itself(model.clone()));
            }
            if let Some(alias) = others.iter().chain([model]).find(|name| aliases.contains_key(*name)) {
                return Err(Error::AliasInFallbacks(alias.clone()));
            }
        }
        Ok(Self { aliases, fallbacks })
    }

    /// The model that a name stands for: as a rule, itself.
    pub(crate) fn resolve<'a>(&'a self, asked: &'a ModelId) -> &'a ModelId {
        self.aliases.get(asked).unwrap_or(asked)
    }

    /// Whom to ask when `model` can't be.
    pub(crate) fn fallbacks(&self, model: &ModelId) -> &[ModelId] {
        self.fallbacks.get(model).map(Vec::as_slice).unwrap_or_default()
    }

    /// All aliases and what they stand for.
    pub(crate) fn aliases(&self) -> impl Iterator<Item = (&ModelId, &ModelId)> {
        self.aliases.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ModelId {
        ModelId::new(name).unwrap()
    }

    fn names(aliases: &[(&str, &str)], fallbacks: &[(&str, &[&str])]) -> Result<Names, Error> {
        let aliases = aliases.iter().map(|(alias, model)| (id(alias), id(model))).collect();
        let fallbacks = fallbacks.iter().map(|(model, others)| (id(model), others.iter().map(|o| id(o)).collect()));
        Names::new(aliases, fallbacks.collect())
    }

    #[test]
    fn aliases_stand_for_models_and_models_have_fallbacks() {
        let names = names(&[("gpt-4o", "big")], &[("big", &["small", "tiny"])]).unwrap();
        assert_eq!(names.resolve(&id("gpt-4o")), &id("big"));
        assert_eq!(names.resolve(&id("other")), &id("other"));
        assert_eq!(names.fallbacks(&id("big")), [id("small"), id("tiny")]);
        assert!(names.fallbacks(&id("small")).is_empty());
    }

    #[test]
    fn circles_are_refused_by_name() {
        assert_eq!(names(&[("a", "b"), ("b", "c")], &[]), Err(Error::Chain(id("a"), id("b"))));
        assert_eq!(names(&[("a", "a")], &[]), Err(Error::Chain(id("a"), id("a"))));
        assert_eq!(names(&[], &[("a", &["b", "a"])]), Err(Error::Itself(id("a"))));
        assert_eq!(names(&[("a", "m")], &[("b", &["a"])]), Err(Error::AliasInFallbacks(id("a"))));
        assert_eq!(names(&[("a", "m")], &[("a", &["b"])]), Err(Error::AliasInFallbacks(id("a"))));
        // Two models may stand in for each other: each is asked once.
        assert!(names(&[], &[("a", &["b"]), ("b", &["a"])]).is_ok());
    }
}
