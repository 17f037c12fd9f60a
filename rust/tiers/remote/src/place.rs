//! The place of a remote store: a URL, and the client for it.

use std::future::ready;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use hybrid_pages::error::{Cause, Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, GetOptions, ObjectStore, ObjectStoreExt as _, RetryConfig, collect_bytes,
};
use url::Url;

use crate::error::{StoreError, secrets};

/// The place of a remote store, and the client that talks to it.
#[derive(Debug, Clone)]
pub struct RemotePlace {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    /// The client of the file system, if the store is a directory.
    pub(crate) directory: Option<Arc<LocalFileSystem>>,
    /// What all who share the store call it; empty for a directory, which may be mounted at different paths.
    pub(crate) name: String,
    shown: String,
}

impl RemotePlace {
    /// Makes a place from a URL: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
    /// `file:///DIRECTORY`. Clients read settings and credentials from the environment, with the names of
    /// `object_store`: nothing may change it during this call, and nothing reads it later. The store is not contacted.
    /// The directory, for which no environment is read, is made if its parent exists.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for any other URL, or one with further parts; [`Error::Remote`] if the client or
    /// the directory can't be made.
    pub fn of_url(text: &str) -> Result<Self> {
        let invalid = |what: &str| {
            Err(Error::InvalidArgument(format!(
                "remote: expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
                 file:///DIRECTORY, found {what}"
            )))
        };
        let Ok(url) = Url::parse(text) else {
            return invalid("no URL");
        };
        if !url.username().is_empty() || url.password().is_some() {
            return invalid("a URL with a name or a password: credentials go into the environment");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return invalid("a URL with '?' or '#' in it: settings go into the environment");
        }
        if url.port().is_some() {
            return invalid("a port: AWS_ENDPOINT_URL in the environment says which server");
        }
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(50),
                max_backoff: Duration::from_secs(1),
                base: 2.0,
            },
            max_retries: 4,
            retry_timeout: Duration::from_secs(10),
        };
        let (scheme, host) = (url.scheme(), url.host_str().unwrap_or_default());
        if scheme == "file" {
            let text = text.trim_start().to_ascii_lowercase();
            if !text.starts_with("file:///") {
                return invalid("no whole path: write file:/// and all of it");
            }
            if url.path().trim_matches('/').is_empty() {
                return invalid("the root of the file system: name a directory below it");
            }
            return Self::of_directory(&url);
        }
        if host.is_empty() {
            return invalid("no bucket");
        }
        let Ok(prefix) = Path::from_url_path(url.path()) else {
            return invalid("'//' in the prefix, or a character that no name may have");
        };
        let secrets = secrets();
        // rustls is built without a default provider. If the process has one already, it is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
            "s3" => {
                let builder = AmazonS3Builder::from_env();
                check_s3(&builder, &secrets)?;
                builder
                    .with_bucket_name(host)
                    .with_retry(retry)
                    .build()
                    .map(|store| Arc::new(store) as _)
            }
            "gs" => GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(host)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            "az" => {
                let builder = MicrosoftAzureBuilder::from_env();
                let server = builder.get_config_value(&AzureConfigKey::Endpoint);
                check_server("AZURE_STORAGE_ENDPOINT", server)?;
                check_secrets(&secrets)?;
                builder
                    .with_container_name(host)
                    .with_retry(retry)
                    .build()
                    .map(|store| Arc::new(store) as _)
            }
            _ => return invalid("another kind of URL"),
        };
        let store = store.map_err(|error| {
            let found = Cause::of(StoreError::of(&error));
            Error::remote(found.map(|found| {
                format!(
                    "expected settings for {scheme}://{host} in the environment, found: {found}"
                )
            }))
        })?;
        Ok(Self::of(
            store,
            prefix,
            format!("{scheme}://{host}{}", url.path()),
        ))
    }

    fn of_directory(url: &Url) -> Result<Self> {
        let Ok(path) = url.to_file_path() else {
            return Err(Error::InvalidArgument(
                "remote: expected file:/// and a whole path, found none".into(),
            ));
        };
        let failed = |found: Cause| {
            let path = path.display();
            Error::remote(found.map(|found| format!("{path}: expected a directory, found {found}")))
        };
        make_directory(&path).map_err(|error| failed(Cause::of(error)))?;
        let store = LocalFileSystem::new_with_prefix(&path);
        let store = store.map_err(|error| failed(Cause::of(StoreError::of(&error))))?;
        let store = Arc::new(store);
        let place = Self::of(Arc::clone(&store) as _, Path::default(), url.to_string());
        Ok(Self {
            directory: Some(store),
            name: String::new(),
            ..place
        })
    }

    /// A place below `prefix` in a store with the given client. `shown` is the name of the place in logs, and what
    /// encrypted entries are bound to.
    #[must_use]
    pub fn of(store: Arc<dyn ObjectStore>, prefix: Path, shown: String) -> Self {
        Self {
            store,
            prefix,
            directory: None,
            name: shown.trim_end_matches('/').to_owned(),
            shown,
        }
    }

    /// The client that talks to the store.
    #[must_use]
    pub const fn client(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Reads a range of an object's bytes. If the answer is longer, reading stops soon.
    pub(crate) async fn range(
        &self,
        path: &Path,
        range: Range<u64>,
    ) -> object_store::Result<Bytes> {
        if self.directory.is_some() {
            return self.store.get_range(path, range).await;
        }
        let length = range.end - range.start;
        let options = GetOptions::new().with_range(Some(range));
        let pieces = self.store.get_opts(path, options).await?.into_stream();
        let mut taken = 0;
        let pieces = pieces.try_take_while(move |piece| {
            let goes_on = taken <= length;
            taken += piece.len() as u64;
            ready(Ok(goes_on))
        });
        collect_bytes(pieces.boxed(), Some(length)).await
    }

    /// The name of the place in logs, without credentials.
    #[must_use]
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

/// Rejects settings at which the client would panic.
fn check_s3(builder: &AmazonS3Builder, secrets: &[(String, String)]) -> Result<()> {
    let value = |key| builder.get_config_value(&key);
    check_server("AWS_ENDPOINT_URL", value(AmazonS3ConfigKey::Endpoint))?;
    check_server("AWS_ENDPOINT_URL_S3", value(AmazonS3ConfigKey::S3Endpoint))?;
    let is_one = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    match value(AmazonS3ConfigKey::Region) {
        Some(region) if region.is_empty() || !region.chars().all(is_one) => {
            Err(misses("AWS_REGION", "the name of a region"))
        }
        _ => check_secrets(secrets),
    }
}

fn check_server(name: &str, server: Option<String>) -> Result<()> {
    let Some(server) = server else { return Ok(()) };
    let is_one = Url::parse(&server).is_ok_and(|url| {
        let known = ["http", "https"].contains(&url.scheme());
        known && url.has_host()
    });
    if is_one {
        return Ok(());
    }
    Err(misses(name, "https://HOST or http://HOST:PORT"))
}

fn check_secrets(secrets: &[(String, String)]) -> Result<()> {
    for (name, value) in secrets {
        if !name.starts_with("GOOGLE") && value.contains(|letter: char| letter.is_control()) {
            return Err(misses(name, "one line, without its end"));
        }
    }
    Ok(())
}

fn misses(name: &str, expected: &str) -> Error {
    let what = format!("{name} in the environment: expected {expected}, found something else");
    Error::remote(what)
}

fn make_directory(path: &FilePath) -> std::io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let path: PathBuf = path.into();
            if path.is_dir() { Ok(()) } else { Err(error) }
        }
        made => made,
    }
}

/// Converts an error of the file system to the client's error.
pub(crate) fn of_a_file(error: std::io::Error) -> object_store::Error {
    object_store::Error::Generic {
        store: "a directory",
        source: Box::new(error),
    }
}
