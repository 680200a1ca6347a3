//! Lines of the Prometheus text format, seen in place: nothing is copied, so that reading a page costs no memory.
//!
//! Written for this job because the published parsers build a tree of owned strings for each page. Only what the agent
//! needs is understood: names, labels, values. Comments, timestamps and exemplars are skipped, and a line that makes no
//! sense is skipped without spoiling the others.

/// One sample of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a [u8],
    labels: &'a [u8],
    /// What follows name and labels.
    rest: &'a [u8],
}

/// The samples of a page, in order.
pub fn samples(page: &[u8]) -> impl Iterator<Item = Sample<'_>> {
    page.split(|&byte| byte == b'\n').filter_map(sample)
}

fn sample(line: &[u8]) -> Option<Sample<'_>> {
    let line = line.trim_ascii_start();
    if line.first().is_none_or(|&byte| byte == b'#') {
        return None;
    }
    let end = line.iter().position(|&byte| byte == b'{' || byte == b' ' || byte == b'\t')?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() {
        return None;
    }
    if rest.first() != Some(&b'{') {
        return Some(Sample { name, labels: b"", rest });
    }
    // The closing brace is looked for when a line matters, by `Sample::split`; few do.
    Some(Sample { name, labels: rest, rest: b"" })
}

impl<'a> Sample<'a> {
    /// Labels and value, or nothing when the line breaks off or its value is no finite number.
    #[must_use]
    pub fn split(&self) -> Option<(Labels<'a>, f64)> {
        let (labels, rest) = match self.labels {
            b"" => (&b""[..], self.rest),
            braced => {
                let end = closing_brace(braced)?;
                (&braced[1..end], &braced[end + 1..])
            }
        };
        let text = std::str::from_utf8(rest).ok()?;
        let value: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some((Labels(labels), value))
    }
}

fn closing_brace(braced: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, &byte) in braced.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The labels of a sample: what stands between the braces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels<'a>(&'a [u8]);

impl<'a> Labels<'a> {
    /// The value of a label as it is written, escapes included.
    #[must_use]
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        self.iter().find_map(|(label, value)| (label == name.as_bytes()).then_some(value))
    }

    /// All of them as written, without the braces.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Pairs of name and value. Ends at the first that makes no sense.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let equals = rest.iter().position(|&byte| byte == b'=')?;
            let name = rest[..equals].trim_ascii();
            let quoted = rest[equals + 1..].trim_ascii_start().strip_prefix(b"\"")?;
            let end = closing_quote(quoted)?;
            let after = quoted[end + 1..].trim_ascii_start();
            rest = after.strip_prefix(b",").unwrap_or(after);
            Some((name, &quoted[..end]))
        })
    }
}

fn closing_quote(quoted: &[u8]) -> Option<usize> {
    let mut escaped = false;
    quoted.iter().position(|&byte| {
        if escaped {
            escaped = false;
            return false;
        }
        escaped = byte == b'\\';
        byte == b'"'
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Parsed = (String, Vec<(String, String)>, f64);

    fn one(line: &str) -> Option<Parsed> {
        let sample = samples(line.as_bytes()).next()?;
        let (labels, value) = sample.split()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((text(sample.name), labels.iter().map(|(name, value)| (text(name), text(value))).collect(), value))
    }

    #[test]
    fn lines() {
        let with = |labels: &[(&str, &str)]| labels.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect::<Vec<_>>();
        assert_eq!(one("a 1"), Some(("a".into(), vec![], 1.0)));
        assert_eq!(one("a:b{} 1.5e3 1395066363000"), Some(("a:b".into(), vec![], 1500.0)));
        assert_eq!(one(r#"a{x="1",y="b c"} 2"#), Some(("a".into(), with(&[("x", "1"), ("y", "b c")]), 2.0)));
        assert_eq!(one(r#"a{ x = "1" , y="2", } +3"#), Some(("a".into(), with(&[("x", "1"), ("y", "2")]), 3.0)));
        assert_eq!(one(r#"a{x="}\"\\",y="{"} 2 # {trace="1"} 0.5"#).unwrap().1, with(&[("x", r#"}\"\\"#), ("y", "{")]));
        assert_eq!(one("a 7\r\n").unwrap().2, 7.0);
    }

    #[test]
    fn lines_that_say_nothing() {
        for line in
            ["", "# HELP a b", "#", "a", "a NaN", "a +Inf", "a -Inf", "a x", r#"a{x="1 2"#, r#"a{x="1"}"#, " ", "{} 1"]
        {
            assert_eq!(one(line), None, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            for sample in samples(&bytes) {
                if let Some((labels, value)) = sample.split() {
                    labels.iter().for_each(drop);
                    prop_assert!(value.is_finite());
                }
            }
        }

        #[test]
        fn nearly_right_lines_do_not_panic(line in "[a:]{1,2}\\{?[a=\",\\\\}]{0,12}\\}? ?[0-9eNa.+-]{0,5}\n?") {
            for sample in samples(line.as_bytes()) {
                if let Some((labels, _)) = sample.split() {
                    labels.iter().for_each(drop);
                }
            }
        }
    }
}
