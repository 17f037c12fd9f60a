//! The keys that bytes below the host are encrypted with: one key for all, and keys of single tenants.

use std::fmt;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use hybrid_pages::error::{Error, Result};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

use crate::name::Identity;

const KEY_BYTES: usize = 32;
/// What a namespace of a named tenant begins with. The length of the tenant's name follows in 8 bytes, and the name.
const TENANT: &[u8] = b"tenant";

type Key = [u8; KEY_BYTES];

/// The keys in a key file. Clones share them. They are never shown.
#[derive(Clone)]
pub struct EncryptKeys(Arc<KeyRing>);

struct KeyRing {
    main: Key,
    /// Keys of single tenants, by the SHA-256 of the tenant's name.
    tenants: HashMap<Key, Key>,
    derived: Prk,
}

/// The keys of one tenant, from which those of entries are derived.
pub(crate) struct TenantKey {
    pub(crate) derived: Prk,
    /// Hides checksums.
    pub(crate) sums: Key,
}

impl EncryptKeys {
    /// Reads the text of a key file. Errors don't repeat what is in it.
    ///
    /// A line is the key for all, in 64 hexadecimal digits, or the word `tenant` with the SHA-256 of a tenant's name
    /// and the tenant's own key, each in as many digits. Empty lines, and what follows a `#`, count for nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for any other line, without a key for all, for two keys for one use, and for one key
    /// in two lines: it would not be gone with one of them.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut main, mut tenants, mut all) = (None, HashMap::new(), HashSet::new());
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let key = words.last().and_then(|key| digits(key));
            let twice = key.is_some_and(|key| !all.insert(key));
            let again = match words[..] {
                [] => false,
                [key] => main.replace(sound_key(key, at)?).is_some(),
                ["tenant", name, key] => {
                    let name = digits(name).ok_or_else(|| wrong(at))?;
                    tenants.insert(name, sound_key(key, at)?).is_some()
                }
                _ => return Err(wrong(at)),
            };
            if again {
                let line = at + 1;
                return Err(Error::InvalidArgument(format!(
                    "encrypt_key: line {line}: expected one key for all and one for each tenant, found a second one"
                )));
            }
            if twice {
                let line = at + 1;
                return Err(Error::InvalidArgument(format!(
                    "encrypt_key: line {line}: expected a key that no other line has, found that of a line before: \
                     make one with `openssl rand -hex 32`"
                )));
            }
        }
        let main = main.ok_or_else(|| {
            Error::InvalidArgument(
                "encrypt_key: expected a line with a key of 64 hexadecimal digits, found none: make one with \
                 `openssl rand -hex 32`"
                    .into(),
            )
        })?;
        let derived = Salt::new(HKDF_SHA256, b"hybrid-pages").extract(&main);
        Ok(Self(Arc::new(KeyRing {
            main,
            tenants,
            derived,
        })))
    }

    /// A short name of the key for all, by which people and directories tell keys apart: 16 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> String {
        let id = derive(&self.0.derived, &[b"id"]);
        id[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The identity of encrypted entries: another one for each key.
    pub(crate) fn identity(&self, identity: &Identity) -> Identity {
        derive(&self.0.derived, &[b"identity", identity])
    }

    /// The key of the tenant that a namespace belongs to.
    pub(crate) fn tenant(&self, namespace: &[u8]) -> TenantKey {
        let name = digest(&SHA256, tenant_of(namespace));
        let ring = &*self.0;
        let own = <Key>::try_from(name.as_ref()).ok();
        let own = own.and_then(|name| ring.tenants.get(&name));
        let both = own.map(|own| {
            Salt::new(HKDF_SHA256, b"hybrid-pages tenant").extract(&[ring.main, *own].concat())
        });
        let from = both.as_ref().unwrap_or(&ring.derived);
        let key = derive(from, &[b"tenant", name.as_ref()]);
        let derived = Prk::new_less_safe(HKDF_SHA256, &key);
        let sums = derive(&derived, &[b"sums"]);
        TenantKey { derived, sums }
    }
}

impl fmt::Debug for EncryptKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncryptKeys({})", self.id())
    }
}

impl fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantKey")
    }
}

/// The name of the tenant that a namespace belongs to; empty for requests of no named tenant.
fn tenant_of(namespace: &[u8]) -> &[u8] {
    let named = || {
        let (length, rest) = namespace.strip_prefix(TENANT)?.split_first_chunk()?;
        rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
    };
    named().unwrap_or_default()
}

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

/// 32 bytes for a use that `info` names.
pub(crate) fn derive(from: &Prk, info: &[&[u8]]) -> Key {
    let mut bytes = [0; KEY_BYTES];
    from.expand(info, Bytes32)
        .and_then(|derived| derived.fill(&mut bytes))
        .expect("32 bytes are fewer than HKDF can make");
    bytes
}

fn sound_key(text: &str, at: usize) -> Result<Key> {
    let key = digits(text).ok_or_else(|| wrong(at))?;
    if key == [0; KEY_BYTES] {
        let line = at + 1;
        return Err(Error::InvalidArgument(format!(
            "encrypt_key: line {line}: expected a random key, found zeros: make one with `openssl rand -hex 32`"
        )));
    }
    Ok(key)
}

fn digits(text: &str) -> Option<Key> {
    let mut key = [0; KEY_BYTES];
    let is_hex = text.len() == 2 * KEY_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
    for (at, byte) in key.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    is_hex.then_some(key)
}

fn wrong(at: usize) -> Error {
    let line = at + 1;
    Error::InvalidArgument(format!(
        "encrypt_key: line {line}: expected a key of 64 hexadecimal digits, or `tenant`, the SHA-256 of a cache_salt \
         and a key, found something else"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const OTHER: &str = "10112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff";
    /// The SHA-256 of "salt".
    const NAME: &str = "63479ad69a090b258277ec8fba6f99419a2ffb248981510657c944ccd1148e97";

    fn namespace(tenant: &str) -> Vec<u8> {
        let length = (tenant.len() as u64).to_le_bytes();
        [TENANT, &length, tenant.as_bytes(), b"rest"].concat()
    }

    #[test]
    fn a_tenant_has_a_key_of_its_own_that_a_line_can_change() {
        let plain = EncryptKeys::parse(&format!("# of this site\n\n {MAIN} # all\n")).unwrap();
        let named = EncryptKeys::parse(&format!("tenant {NAME} {OTHER}\n{MAIN}")).unwrap();
        assert_eq!(plain.id(), named.id());
        assert_ne!(plain.id(), EncryptKeys::parse(OTHER).unwrap().id());
        assert_eq!(plain.identity(&[1; 32]), named.identity(&[1; 32]));
        let sums = |keys: &EncryptKeys, namespace: &[u8]| keys.tenant(namespace).sums;
        let salt = namespace("salt");
        assert_ne!(sums(&plain, &salt), sums(&named, &salt));
        assert_ne!(sums(&plain, &salt), sums(&plain, &namespace("other")));
        assert_ne!(sums(&plain, &salt), sums(&plain, b""));
        assert_eq!(
            sums(&plain, b"lora"),
            sums(&plain, b""),
            "of no tenant, both"
        );
        assert_eq!(sums(&plain, &salt[..12]), sums(&plain, b""), "cut short");
        assert_eq!(
            sums(&plain, &namespace("other")),
            sums(&named, &namespace("other"))
        );
        assert!(!format!("{plain:?}").contains("001122"));
    }

    /// As computed from docs/encryption.md with the HMAC of another library. Other keys lose all entries, so they need
    /// another version of the format.
    #[test]
    fn keys_are_derived_as_the_version_says() {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|it| format!("{it:02x}")).collect() };
        let plain = EncryptKeys::parse(MAIN).unwrap();
        let named = EncryptKeys::parse(&format!("{MAIN}\ntenant {NAME} {OTHER}")).unwrap();
        let salt = namespace("salt");
        let own = named.tenant(&salt);
        assert_eq!(plain.id(), "fdf0a73d3b4b9234");
        for (found, expected) in [
            (
                plain.identity(&[1; 32]),
                "dcba83f0b253d8f788e7eae8e01f22fb334e0b2b0eb1d5d07bdd52eb5952c960",
            ),
            (
                plain.tenant(b"").sums,
                "8625d94c4744511387c5eca284b812e85b60e15ef1f7f853f14312f3dc9b9ec6",
            ),
            (
                plain.tenant(&salt).sums,
                "4472e279088e5af09afc60da6ffddf1839001632c65f3e27741b53c99ebe59d1",
            ),
            (
                own.sums,
                "b9f42288849b977190f28ecc35324616b4969d168e0064cc9efb6ddb1ccb1cb9",
            ),
            (
                derive(&own.derived, &[b"namespace", b"x"]),
                "4232b5c4f777b35498964852fa8c5430d3092ffd5cf120570317e75b3117a79f",
            ),
        ] {
            assert_eq!(hex(&found), expected);
        }
    }

    #[test]
    fn other_texts_are_refused_without_being_repeated() {
        let zeros = "0".repeat(64);
        for (text, expected) in [
            (String::new(), "found none"),
            (format!("{MAIN}\n{OTHER}"), "line 2: expected one key"),
            (
                format!("{MAIN}\ntenant {NAME} {OTHER}\ntenant {NAME} {MAIN}"),
                "line 3",
            ),
            (format!("{MAIN}00"), "line 1"),
            (format!("x{}", &MAIN[1..]), "line 1"),
            (format!("{MAIN}\ntenant salt {OTHER}"), "line 2"),
            (format!("{MAIN}\ntenant {NAME}"), "line 2"),
            (format!("{}é", &MAIN[2..]), "line 1"),
            (zeros, "found zeros"),
            (
                format!("{MAIN}\ntenant {NAME} {MAIN}"),
                "line 2: expected a key that no other line has",
            ),
            (
                format!("tenant {NAME} {OTHER}\n{OTHER}"),
                "line 2: expected a key that no other line has",
            ),
            (
                format!("{MAIN}\ntenant {NAME} {OTHER}\ntenant {MAIN} {OTHER}"),
                "line 3: expected a key that no other line has",
            ),
        ] {
            let error = EncryptKeys::parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("223344"), "{error}");
        }
    }
}
