//! Label and field selectors.

use crate::reply::Refusal;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    Is(String, Vec<String>),
    IsNot(String, Vec<String>),
    Has(String),
    HasNot(String),
}

/// Which objects are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    labels: Vec<Term>,
    fields: Vec<Term>,
}

impl Selection {
    pub(crate) fn parse(labels: &str, fields: &str) -> Result<Self, Refusal> {
        let labels = split(labels).into_iter().map(term).collect::<Result<_, _>>()?;
        let fields = split(fields).into_iter().map(term).collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn takes(&self, object: &Value) -> bool {
        let label = |key: &str| object.pointer("/metadata/labels").and_then(|labels| labels.get(key)).cloned();
        let field = |key: &str| object.pointer(&format!("/{}", key.replace('.', "/"))).cloned();
        self.labels.iter().all(|term| holds(term, label)) && self.fields.iter().all(|term| holds(term, field))
    }
}

fn holds(term: &Term, value: impl Fn(&str) -> Option<Value>) -> bool {
    let text = |key: &str| value(key).and_then(|value| value.as_str().map(str::to_owned));
    match term {
        Term::Is(key, values) => text(key).map_or(values.iter().any(String::is_empty), |found| values.contains(&found)),
        Term::IsNot(key, values) => text(key).is_none_or(|found| !values.contains(&found)),
        Term::Has(key) => text(key).is_some(),
        Term::HasNot(key) => text(key).is_none(),
    }
}

/// At commas outside of parentheses.
fn split(selector: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in selector.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(selector[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(selector[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn term(text: &str) -> Result<Term, Refusal> {
    let values = |list: &str| {
        let list = list.trim().trim_start_matches('(').trim_end_matches(')');
        list.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let key = |key: &str| key.trim().to_owned();
    if let Some((name, value)) = text.split_once("!=") {
        return Ok(Term::IsNot(key(name), vec![key(value)]));
    }
    if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Term::Is(key(name), vec![key(value)]));
    }
    if let Some((name, list)) = text.split_once(" notin ") {
        return Ok(Term::IsNot(key(name), values(list)));
    }
    if let Some((name, list)) = text.split_once(" in ") {
        return Ok(Term::Is(key(name), values(list)));
    }
    if text.contains(' ') {
        return Err(Refusal::bad(format!("unable to parse requirement: {text}")));
    }
    Ok(text.strip_prefix('!').map_or_else(|| Term::Has(text.to_owned()), |name| Term::HasNot(name.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_say_what_kubectl_users_expect() {
        let object = json!({"metadata": {"name": "x", "labels": {"a": "1", "b": "2"}}, "spec": {"nodeName": "n"}});
        let takes = |labels: &str, fields: &str| Selection::parse(labels, fields).unwrap().takes(&object);
        assert!(takes("a=1,b!=1", "") && takes("a in (0, 1),c notin (1)", "") && takes("a,!c", ""));
        assert!(!takes("a=2", "") && !takes("a notin (1)", "") && !takes("c", "") && !takes("!a", ""));
        assert!(takes("", "metadata.name=x,spec.nodeName!=m") && !takes("", "spec.nodeName="));
        assert!(Selection::parse("a b c", "").is_err());
    }
}
