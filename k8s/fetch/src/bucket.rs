//! Buckets: S3 and what speaks like it.

pub mod sign;

use crate::{
    Error,
    client::{Ask, Client, Credentials},
    fetch::Order,
    hub::endpoint,
    listing::{Check, FILES, FileSpec, Origin},
    source::{Store, bare},
};
use quick_xml::{Reader, events::Event};
use url::Url;

const REGION: &str = "us-east-1";
const OSS_REGION: &str = "oss-cn-hangzhou";
/// Names in one page of a listing.
const PAGE: usize = 1000;

/// Everything below `prefix`, or the one object of that name.
pub(crate) async fn list(
    client: &Client,
    order: &Order,
    store: Store,
    bucket: &str,
    prefix: &str,
) -> Result<Vec<FileSpec>, Error> {
    let place = Place::of(order, store, bucket)?;
    let below = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    let mut objects = place.objects(client, &below).await?;
    if objects.is_empty() {
        objects = place.objects(client, prefix).await?.into_iter().filter(|object| object.key == prefix).collect();
    }
    // Names that end so are folders of consoles.
    let files = objects.into_iter().filter(|object| !object.key.ends_with('/'));
    files.map(|object| place.file(object, &below)).collect()
}

/// One bucket, as it is reached.
struct Place {
    /// With a slash at its end.
    base: Url,
    credentials: Credentials,
}

struct Object {
    key: String,
    size: u64,
    tag: Option<String>,
}

impl Place {
    fn of(order: &Order, store: Store, bucket: &str) -> Result<Self, Error> {
        let asked = order.endpoints.region.as_deref();
        let (region, usual) = match store {
            Store::S3 => {
                let region = asked.unwrap_or(REGION);
                (region, format!("https://s3.{region}.amazonaws.com"))
            }
            Store::Gcs => ("auto", "https://storage.googleapis.com".to_owned()),
            Store::Oss => {
                let region = asked.unwrap_or(OSS_REGION);
                (region, format!("https://{region}.aliyuncs.com"))
            }
        };
        let mut base = endpoint(order.endpoints.bucket.as_deref(), &usual)?;
        // OSS knows buckets by host only. A bucket with dots has no certificate as a host, and others may have no host.
        let by_host =
            store == Store::Oss || (order.endpoints.bucket.is_none() && store == Store::S3 && !bucket.contains('.'));
        let host =
            base.host_str().filter(|_| base.domain().is_some() && by_host).map(|host| format!("{bucket}.{host}"));
        let wrong = |problem: &str| Error::Endpoint { given: bare(&base), problem: problem.to_owned() };
        match host {
            Some(host) => {
                let mut with_host = base.clone();
                with_host.set_host(Some(&host)).map_err(|_| wrong("the bucket can't stand in front of it"))?;
                base = with_host;
            }
            None => base = base.join(&format!("{bucket}/")).map_err(|_| wrong("the bucket can't follow it"))?,
        }
        let region = region.trim_start_matches("oss-").to_owned();
        let credentials = match &order.secrets.bucket {
            Some(keys) => Credentials::Signed { keys: keys.clone(), region },
            None => Credentials::None,
        };
        Ok(Self { base, credentials })
    }

    async fn objects(&self, client: &Client, prefix: &str) -> Result<Vec<Object>, Error> {
        let mut objects = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut url = self.base.clone();
            let mut pairs = vec![("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix)];
            let page = PAGE.to_string();
            pairs.push(("max-keys", &page));
            if let Some(token) = &next {
                pairs.push(("continuation-token", token));
            }
            let query: Vec<String> = pairs
                .iter()
                .map(|(name, value)| format!("{name}={}", sign::encode_path(value).replace('/', "%2F")))
                .collect();
            url.set_query(Some(&query.join("&")));
            let text = client.text(&Ask::new(url.clone(), self.credentials.clone())).await?;
            let page = parse(&text).map_err(|problem| Error::Refused { url: bare(&url), problem, status: None })?;
            objects.extend(page.objects);
            if objects.len() > FILES {
                return Err(Error::TooMany { source_name: bare(&url), limit: FILES });
            }
            match page.next {
                Some(token) if next.as_ref() != Some(&token) => next = Some(token),
                _ => return Ok(objects),
            }
        }
    }

    fn file(&self, object: Object, below: &str) -> Result<FileSpec, Error> {
        let wrong =
            |problem: url::ParseError| Error::Endpoint { given: bare(&self.base), problem: problem.to_string() };
        // In front stands what keeps a key with a colon from being a URL of its own.
        let url = self.base.join(&format!("./{}", sign::encode_path(&object.key))).map_err(wrong)?;
        let name = match object.key.strip_prefix(below) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => object.key.rsplit('/').next().unwrap_or_default().to_owned(),
        };
        let from = Origin::Web { url, credentials: self.credentials.clone() };
        Ok(FileSpec { name, from, size: Some(object.size), check: Check::None, tag: object.tag })
    }
}

#[derive(Default)]
struct Page {
    objects: Vec<Object>,
    next: Option<String>,
}

/// Reads a `ListBucketResult`.
fn parse(text: &[u8]) -> Result<Page, String> {
    let not = |error: &dyn std::fmt::Display| format!("its listing can't be read: {error}");
    let mut reader = Reader::from_reader(text);
    let (mut page, mut path, mut value) = (Page::default(), Vec::<String>::new(), String::new());
    let (mut key, mut size, mut tag) = (None, None, None);
    let mut is_listing = false;
    loop {
        match reader.read_event().map_err(|error| not(&error))? {
            Event::Start(start) => {
                path.push(start.local_name().as_ref().to_owned());
                is_listing |= path.len() == 1 && path[0] == "ListBucketResult";
                value.clear();
                if path.len() > DEPTH {
                    return Err(not(&"it is too deep"));
                }
            }
            Event::Text(text) => value.push_str(&text),
            Event::GeneralRef(name) => value.push_str(entity(&name).ok_or_else(|| not(&"an unknown entity"))?),
            Event::End(_) => {
                let names: Vec<&str> = path.iter().map(String::as_str).collect();
                match names[..] {
                    [_, "Contents", "Key"] => key = Some(decoded(&value)),
                    [_, "Contents", "Size"] => size = value.trim().parse().ok(),
                    [_, "Contents", "ETag"] => tag = Some(value.trim().to_owned()),
                    [_, "NextContinuationToken"] => page.next = Some(value.trim().to_owned()),
                    [_, "Contents"] => {
                        let (Some(key), Some(size)) = (key.take(), size.take()) else {
                            return Err(not(&"an object without size"));
                        };
                        let tag = tag.take().filter(|tag| tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2);
                        page.objects.push(Object { key, size, tag });
                    }
                    _ => {}
                }
                path.pop();
                value.clear();
            }
            Event::Eof if is_listing && path.is_empty() => return Ok(page),
            Event::Eof => return Err(not(&"it is no listing of a bucket")),
            _ => {}
        }
    }
}

/// Elements in one another.
const DEPTH: usize = 8;

fn entity(name: &str) -> Option<&'static str> {
    Some(match name {
        "quot" | "#34" | "#x22" => "\"",
        "amp" | "#38" | "#x26" => "&",
        "lt" | "#60" => "<",
        "gt" | "#62" => ">",
        "apos" | "#39" => "'",
        "#13" | "#xD" | "#xd" => "\r",
        "#10" | "#xA" | "#xa" => "\n",
        _ => return None,
    })
}

/// Keys come as forms encode them.
fn decoded(key: &str) -> String {
    let spaces = key.trim().replace('+', " ");
    percent_encoding::percent_decode_str(&spaces).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>p/</Prefix>
<IsTruncated>true</IsTruncated><NextContinuationToken>1ueGcx/+Q==</NextContinuationToken>
<Contents><Key>p/a+b%2Bc.bin</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;abc-2&quot;</ETag><Size>5</Size>
<Owner><ID>x</ID></Owner></Contents>
<Contents><Key>p/w</Key><ETag>W/"weak"</ETag><Size>0</Size></Contents></ListBucketResult>"#;

    #[test]
    fn a_listing_is_read() {
        let page = parse(LISTING.as_bytes()).unwrap();
        let seen: Vec<_> = page.objects.iter().map(|o| (o.key.as_str(), o.size, o.tag.as_deref())).collect();
        assert_eq!(seen, [("p/a b+c.bin", 5, Some("\"abc-2\"")), ("p/w", 0, None)]);
        assert_eq!(page.next.as_deref(), Some("1ueGcx/+Q=="));
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        for text in
            ["", "<html></html>", "<ListBucketResult>", "<ListBucketResult><Contents></Contents></ListBucketResult>"]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        let deep = "<ListBucketResult>".to_owned() + &"<a>".repeat(100);
        assert!(parse(deep.as_bytes()).is_err());
    }
}
