//! Errors of the store's client, with possible secrets left out.

use hybrid_pages_tiers::{PriorityMutex, lock};
use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fmt::{self, Display, Formatter};
use std::io;

/// An error of the store's client, in words for an operator.
///
/// The client's own error is not kept as the source, since URLs and servers' answers in it may have credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    kind: StoreErrorKind,
    what: String,
}

/// Kinds of errors of the store's client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// There is no such object.
    NotFound,
    /// The store refuses the credentials, or they don't allow the call.
    Refused,
    /// A call of the file system failed.
    File(io::ErrorKind),
    /// Any other error.
    Other,
}

impl StoreError {
    /// Converts an error of the client and leaves secrets out.
    pub(crate) fn of(error: &object_store::Error) -> Self {
        use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
        let kind = match error {
            NotFound { .. } => StoreErrorKind::NotFound,
            PermissionDenied { .. } | Unauthenticated { .. } => StoreErrorKind::Refused,
            _ => file_error(error).map_or(StoreErrorKind::Other, StoreErrorKind::File),
        };
        Self {
            kind,
            what: plain(error),
        }
    }

    /// The kind of error.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl Display for StoreError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for StoreError {}

/// The kind of the file system's error that caused this error, if there is one.
fn file_error(error: &object_store::Error) -> Option<io::ErrorKind> {
    let mut cause = error.source();
    while let Some(known) = cause {
        if let Some(error) = known.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = known.source();
    }
    None
}

/// Prefixes of environment variables whose values may be secrets.
const SECRETS: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Least length of a secret. Shorter values are common words.
const LEAST_SECRET: usize = 8;

/// The text of an error, with advice and without secrets: queries and users in URLs and values of the environment are
/// left out.
fn plain(error: &object_store::Error) -> String {
    use object_store::Error::{PermissionDenied, Unauthenticated};
    let mut text = without_secrets(error);
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let refused = matches!(error, PermissionDenied { .. } | Unauthenticated { .. });
    let advice = if refused || has(&REFUSALS) {
        "; give the client credentials that may list, read, write and delete below the prefix"
    } else if has(&["scheme is not allowed"]) {
        "; the server's URL has no TLS: set AWS_ALLOW_HTTP=true if that is meant"
    } else if has(&["certificate"]) {
        "; SSL_CERT_FILE may name a file with the certificates of who signed the server's"
    } else if has(&["NoSuchBucket"]) {
        "; make the bucket, or correct the URL"
    } else if has(&MACHINES) {
        "; the environment has no credentials, so the client asked the machine for some"
    } else {
        ""
    };
    text.push_str(advice);
    text
}

/// Parts of servers' answers to credentials that are wrong or don't allow the call.
const REFUSALS: [&str; 6] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "403 Forbidden",
    "401 Unauthorized",
];
/// Parts of addresses at which clients ask for the machine's credentials.
const MACHINES: [&str; 3] = ["169.254.", "/latest/api/token", "metadata.google"];

fn without_secrets(error: &object_store::Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(known) = cause {
        // Clients only say that sending has failed. The reason is in their causes.
        let why = known.to_string();
        if !told.contains(&why) {
            told = format!("{told}: {why}");
        }
        cause = known.source();
    }
    // A server's answer may repeat the request, so only its code is kept.
    let (told, answer) = told.split_once('<').unwrap_or((&told, ""));
    let code = answer
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once('<'));
    let mut text = code.map_or_else(String::new, |(code, _)| format!("{code}: "));
    let mut in_query = false;
    for letter in told.chars() {
        in_query |= letter == '?';
        in_query &= !letter.is_whitespace() && !"\"')>".contains(letter);
        if !in_query {
            text.push(letter);
        }
    }
    text = without_users(&text);
    // A value goes before one that it begins with.
    for value in lock(&KNOWN).iter().rev() {
        text = text.replace(value, "(not told)");
    }
    text
}

/// Values that errors must not tell: all that clients may have found in the environment. Errors come from threads that
/// must not read the environment, since Python may change it meanwhile.
static KNOWN: PriorityMutex<BTreeSet<String>> = PriorityMutex::new(BTreeSet::new());

/// Names and values of environment variables that may be secret. From now on errors leave these values out.
pub(crate) fn secrets() -> Vec<(String, String)> {
    let is_secret = |name: &str| {
        let name = name.to_ascii_uppercase();
        SECRETS.iter().any(|prefix| name.starts_with(prefix))
            && ["KEY", "TOKEN", "SECRET", "CREDENTIAL", "ACCOUNT"]
                .iter()
                .any(|part| name.contains(part))
    };
    let found = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        is_secret(&name).then_some((name, value))
    });
    let found = Vec::from_iter(found);
    let values = found.iter().map(|(_, value)| value);
    lock(&KNOWN).extend(values.filter(|value| value.len() >= LEAST_SECRET).cloned());
    found
}

/// Removes names and passwords from the URLs in a text.
fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| letter.is_whitespace() || "/\"')>".contains(letter));
        let (host, rest) = part.split_at(end.unwrap_or(part.len()));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        told.extend(["://", host, rest]);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_without_secrets() {
        let said = "403 https://host/bucket/key?X-Amz-Signature=abcdef: Forbidden: <?xml version=\"1.0\"?><Error>\
                    <Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIAHIDDEN</AWSAccessKeyId></Error>";
        let error = object_store::Error::Generic {
            store: "S3",
            source: said.into(),
        };
        let text = plain(&error);
        for secret in ["abcdef", "AKIAHIDDEN", "Signature="] {
            assert!(!text.contains(secret), "{text}");
        }
        for part in [
            "SignatureDoesNotMatch",
            "403",
            "Forbidden",
            "give the client",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = "no answer from http://me:hidden@host:1/b (https://a@b), s3://bucket/a@b";
        assert_eq!(
            without_users(text),
            "no answer from http://host:1/b (https://b), s3://bucket/a@b"
        );
    }
}
