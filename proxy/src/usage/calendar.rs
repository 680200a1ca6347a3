//! Months and days of the calendar, UTC. Pure.

const DAY: u64 = 24 * 3600;

/// Year and month (1 to 12) and day (1 to 31) of a time in unix seconds: the algorithm `civil_from_days` of Howard
/// Hinnant's "chrono-Compatible Low-Level Date Algorithms".
pub(super) fn date(unix_s: u64) -> (u64, u64, u64) {
    let days = unix_s / DAY + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Months since 1970.
pub(super) fn month(unix_s: u64) -> u64 {
    let (year, month, _) = date(unix_s);
    (year - 1970) * 12 + month - 1
}

/// When the month of a time began, unix seconds.
pub(super) fn month_start(unix_s: u64) -> u64 {
    let (_, _, day) = date(unix_s);
    (unix_s / DAY - (day - 1)) * DAY
}

/// When the month after a time begins, unix seconds.
pub(super) fn next_month_start(unix_s: u64) -> u64 {
    // No month has more than 31 days, and none fewer than 28.
    month_start(
        month_start(unix_s) + 31 * DAY + if month(month_start(unix_s) + 31 * DAY) == month(unix_s) { DAY } else { 0 },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_where_the_calendar_says() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(1_709_208_000), (2024, 2, 29));
        assert_eq!(date(4_107_542_400), (2100, 3, 1), "no leap year");
        // 30 November 2026, 14:00.
        let now = 1_796_047_200;
        assert_eq!(date(now), (2026, 11, 30));
        assert_eq!(date(month_start(now)), (2026, 11, 1));
        assert_eq!(month_start(now) % 86_400, 0);
        assert_eq!(date(next_month_start(now)), (2026, 12, 1));
        for day in 0..40_000 {
            let (at, next) = (day * DAY + 5, next_month_start(day * DAY + 5));
            assert_eq!((month(next), date(next).2), (month(at) + 1, 1), "{day}");
            assert_eq!(month(next - 1), month(at));
        }
    }
}
