//! Quantities as Kubernetes writes them.

/// A quantity in thousandths of its unit: `500m` is 500, `2` is 2,000, `1Ki` is 1,024,000. Fractions of a thousandth are
/// rounded up. `None` for what is none, and for more than fits.
#[must_use]
pub fn parse(text: &str) -> Option<i64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (numerator, denominator): (i128, i128) = match suffix {
        "n" => (1, 1_000_000),
        "u" => (1, 1_000),
        "m" => (1, 1),
        "" => (1_000, 1),
        "k" => (1_000_000, 1),
        "M" => (1_000_000_000, 1),
        "G" => (1_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1_000 << 10, 1),
        "Mi" => (1_000 << 20, 1),
        "Gi" => (1_000 << 30, 1),
        "Ti" => (1_000 << 40, 1),
        "Pi" => (1_000 << 50, 1),
        exponent => {
            let power: u32 = exponent.strip_prefix(['e', 'E'])?.parse().ok().filter(|power| *power <= 15)?;
            (1_000 * 10_i128.pow(power), 1)
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > 18 || fraction.len() > 9 {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let denominator = denominator * 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let amount = digits.checked_mul(numerator)?;
    i64::try_from((amount + denominator - 1) / denominator).ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn quantities_are_thousandths() {
        let same = [
            ("1", 1_000),
            ("500m", 500),
            ("0.5", 500),
            ("1Ki", 1_024_000),
            ("1.5Gi", 1_610_612_736_000),
            ("1k", 1_000_000),
        ];
        for (text, amount) in same.into_iter().chain([("1e3", 1_000_000), ("100n", 1), ("0", 0), ("2E2", 200_000)]) {
            assert_eq!(parse(text), Some(amount), "{text}");
        }
        for none in ["", "x", "1x", ".", "-1", "99999999999999999999", "9999Pi"] {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}
