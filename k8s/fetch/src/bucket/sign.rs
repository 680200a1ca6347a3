//! AWS Signature Version 4 for `GET` without a body, as S3 and what speaks like it want it. Pure.
//!
//! Source: "Signature Calculations for the Authorization Header" in the Amazon S3 API reference.

use crate::secrets::Keys;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};
use url::Url;

/// SHA-256 of nothing.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
/// What is not encoded.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Nor in a path.
const IN_PATH: &AsciiSet = &UNRESERVED.remove(b'/');

/// Where and when a signature counts.
#[derive(Debug)]
pub struct Place<'a> {
    /// The region.
    pub region: &'a str,
    /// Now: seconds since 1970.
    pub now_unix_s: u64,
}

/// A key as a path has it, encoded as signatures want it.
#[must_use]
pub fn encode_path(key: &str) -> String {
    utf8_percent_encode(key, IN_PATH).to_string()
}

/// The headers to be added to a `GET` of `url`, whose path was encoded by [`encode_path`].
#[must_use]
pub fn headers(url: &Url, keys: &Keys, place: &Place<'_>) -> Vec<(&'static str, String)> {
    let (day, time) = date(place.now_unix_s);
    let host = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or_default().to_owned(),
    };
    let mut signed = vec![("host", host), ("x-amz-content-sha256", EMPTY.to_owned()), ("x-amz-date", time.clone())];
    if let Some(session) = &keys.session {
        signed.push(("x-amz-security-token", session.clone()));
    }
    let names: Vec<_> = signed.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = signed.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let request = format!("GET\n{}\n{}\n{lines}\n{names}\n{EMPTY}", url.path(), query(url));
    let scope = format!("{day}/{}/s3/aws4_request", place.region);
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", HEXLOWER.encode(&Sha256::digest(request)));
    let key = [day.as_str(), place.region, "s3", "aws4_request"]
        .iter()
        .fold(format!("AWS4{}", keys.secret).into_bytes(), |key, part| hmac(&key, part));
    let signature = HEXLOWER.encode(&hmac(&key, &text));
    let credential = format!("{}/{scope}", keys.id);
    let authorization = format!("AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}");
    // The host is sent anyway.
    let mut headers: Vec<_> = signed.into_iter().skip(1).collect();
    headers.push(("authorization", authorization));
    headers
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    // A key of any length is taken.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// In order of their names, encoded the one way that counts.
fn query(url: &Url) -> String {
    let raw = url.query().unwrap_or_default();
    let decode = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let encode = |text: &str| percent_encoding::percent_encode(&decode(text), UNRESERVED).to_string();
    let mut pairs: Vec<(String, String)> = raw
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encode(name), encode(value)))
        .collect();
    pairs.sort();
    pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// `20130524` and `20130524T000000Z`. Days to dates: the civil calendar in eras of 400 years.
fn date(unix_s: u64) -> (String, String) {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Years that begin in March have their odd day at the end.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let date = format!("{year:04}{month:02}{day:02}");
    let time = format!("{date}T{:02}{:02}{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60);
    (date, time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example "GET Bucket (List Objects)" of the reference.
    #[test]
    fn the_example_of_the_reference() {
        let keys = Keys {
            id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session: None,
        };
        let url = "https://examplebucket.s3.amazonaws.com/?prefix=J&max-keys=2".parse().unwrap();
        let place = Place { region: "us-east-1", now_unix_s: 1_369_353_600 };
        let (_, authorization) = headers(&url, &keys, &place).pop().unwrap();
        let signature = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
        assert!(authorization.ends_with(signature), "{authorization}");
    }

    #[test]
    fn dates_of_all_kinds() {
        for (unix_s, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(date(unix_s).1, text);
        }
    }

    #[test]
    fn names_are_encoded_once() {
        let url: Url = "https://h/?prefix=a%20b/c&x&continuation-token=1%2B2%3D".parse().unwrap();
        assert_eq!(query(&url), "continuation-token=1%2B2%3D&prefix=a%20b%2Fc&x=");
        assert_eq!(encode_path("a b/ü+~"), "a%20b/%C3%BC%2B~");
    }
}
