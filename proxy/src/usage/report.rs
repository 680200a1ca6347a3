//! Usage as it is shown: by key and model, in spans of time, as JSON, as CSV.

use super::{Error, Usage, calendar, store::Sum};
use crate::keys::{DEFAULT_TENANT, money};
use dunlin_node::clock;
use dunlin_protocol::ledger::Counts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Length of the spans by which usage is summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Span {
    /// An hour.
    Hour,
    /// A day, UTC.
    Day,
    /// A month, UTC.
    Month,
    /// The whole time that was asked for.
    #[default]
    Total,
}

/// What is asked for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Query {
    /// From when on, unix seconds; whole hours count. Absent: the beginning of this month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// Up to when, unix seconds; absent: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Summed by.
    pub by: Span,
    /// Of one key only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Of one tenant only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Of one model only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// One line: of one key and one model, in one span of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When the span began, unix seconds.
    pub from: u64,
    /// The key's id.
    pub key: String,
    /// The key's name, while it is known.
    pub name: String,
    /// Whose key it is.
    pub tenant: String,
    /// The model's name; empty for requests that named none that is served.
    pub model: String,
    /// Requests that were let in.
    pub requests: u64,
    /// Of these, those that got no answer, or an error of the engine.
    pub errors: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
    /// Of the tokens of prompts, those that a cache held.
    pub cached_tokens: u64,
    /// Requests whose tokens are an estimate.
    pub estimated_requests: u64,
    /// From heads to the ends of answers.
    pub seconds: f64,
    /// In the money of the prices that were in force then.
    pub cost: f64,
}

impl Usage {
    /// Sums over all proxies. Blocks on the disk.
    ///
    /// # Errors
    /// The database refuses.
    pub fn report(&self, query: &Query) -> Result<Vec<Line>, Error> {
        let now = clock::unix_s();
        let from = query.from.unwrap_or_else(|| calendar::month_start(now)) / 3600;
        let to = query.to.unwrap_or(now).saturating_add(3599) / 3600;
        // What was counted a moment ago is in it.
        self.flush()?;
        let sums = self.store().sums(from, to)?;
        let mut lines: BTreeMap<(u64, String, String), Counts> = BTreeMap::new();
        for Sum { key, model, hour, counts } in sums {
            let wanted = |filter: &Option<String>, value: &str| filter.as_ref().is_none_or(|wanted| wanted == value);
            if wanted(&query.key, &key) && wanted(&query.model, &model) {
                let line = lines.entry((start(hour * 3600, query.by, from * 3600), key, model)).or_default();
                *line = line.plus(counts);
            }
        }
        let of_key = |key: &str| match self.0.keys.key(key) {
            Ok(known) => (known.name, known.tenant),
            Err(_) => (String::new(), DEFAULT_TENANT.to_owned()),
        };
        let line = |((from, key, model), counts): ((u64, String, String), Counts)| {
            let (name, tenant) = of_key(&key);
            Line {
                from,
                key,
                name,
                tenant,
                model,
                requests: counts.requests,
                errors: counts.errors,
                prompt_tokens: counts.prompt,
                completion_tokens: counts.completion,
                cached_tokens: counts.cached,
                estimated_requests: counts.estimated,
                seconds: counts.millis as f64 / 1000.0,
                cost: money(counts.cost_micros),
            }
        };
        let all = lines.into_iter().map(line);
        Ok(all.filter(|line| query.tenant.as_ref().is_none_or(|wanted| *wanted == line.tenant)).collect())
    }
}

/// When the span of a time begins.
fn start(at: u64, by: Span, from: u64) -> u64 {
    match by {
        Span::Hour => at,
        Span::Day => at - at % (24 * 3600),
        Span::Month => calendar::month_start(at),
        Span::Total => from,
    }
}

/// Lines as CSV (RFC 4180), times as in ISO 8601.
#[must_use]
pub fn csv(lines: &[Line]) -> String {
    let mut text = "from,key,name,tenant,model,requests,errors,prompt_tokens,completion_tokens,cached_tokens,\
                    estimated_requests,seconds,cost\r\n"
        .to_owned();
    for line in lines {
        let words = [&line.key, &line.name, &line.tenant, &line.model].map(|word| cell(word));
        let counts = [
            line.requests,
            line.errors,
            line.prompt_tokens,
            line.completion_tokens,
            line.cached_tokens,
            line.estimated_requests,
        ];
        let counts = counts.map(|count| count.to_string());
        text += &format!(
            "{},{},{},{:.3},{:.6}\r\n",
            time(line.from),
            words.join(","),
            counts.join(","),
            line.seconds,
            line.cost
        );
    }
    text
}

/// `2026-11-30T14:00Z`.
#[must_use]
pub fn time(unix_s: u64) -> String {
    let (year, month, day) = calendar::date(unix_s);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}Z", unix_s / 3600 % 24, unix_s / 60 % 60)
}

/// A text in a cell. One that a spreadsheet would take for a formula is made plain text.
fn cell(text: &str) -> String {
    let text = if text.starts_with(['=', '+', '-', '@', '\t']) { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_survives_names_of_every_kind() {
        let line = Line {
            from: 1_796_047_200,
            key: "abc".into(),
            name: "a \"b\", c".into(),
            tenant: "=1+1".into(),
            model: "Qwen/x".into(),
            requests: 2,
            errors: 1,
            prompt_tokens: 3,
            completion_tokens: 4,
            cached_tokens: 0,
            estimated_requests: 1,
            seconds: 1.5,
            cost: 0.25,
        };
        let text = csv(&[line]);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[0].split(',').count(), 13);
        assert_eq!(lines[1], "2026-11-30T14:00Z,abc,\"a \"\"b\"\", c\",'=1+1,Qwen/x,2,1,3,4,0,1,1.500,0.250000");
    }

    #[test]
    fn spans_begin_where_they_should() {
        let at = 1_796_047_200 + 3600;
        assert_eq!(time(start(at, Span::Hour, 0)), "2026-11-30T15:00Z");
        assert_eq!(time(start(at, Span::Day, 0)), "2026-11-30T00:00Z");
        assert_eq!(time(start(at, Span::Month, 0)), "2026-11-01T00:00Z");
        assert_eq!(start(at, Span::Total, 7), 7);
    }
}
