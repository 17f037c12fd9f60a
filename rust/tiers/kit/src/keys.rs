//! The keys that bytes below the host are encrypted with: one key for all, and keys of single tenants.

use std::fmt;
use std::sync::Arc;

use hybrid_pages::error::Result;
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

use crate::key_file::{KeyFile, random};
use crate::key_tree::{KEY_BYTES, Key, hex};
use crate::name::Identity;

/// What a namespace of a named tenant begins with. The length of the tenant's name follows in 8 bytes, and the name.
const TENANT: &[u8] = b"tenant";

/// The keys in a key file. Clones share them. They are never shown.
#[derive(Clone)]
pub struct EncryptKeys(Arc<KeyRing>);

struct KeyRing {
    file: KeyFile,
    /// Makes keys for tenants whose own were destroyed. It ends with the process.
    passing: Key,
    derived: Prk,
}

/// The keys of one tenant, from which those of entries are derived.
pub(crate) struct TenantKey {
    /// The SHA-256 of the tenant's name.
    pub(crate) name: Key,
    pub(crate) derived: Prk,
    /// Hides checksums.
    pub(crate) sums: Key,
    /// Hides names of tenants. It comes from the key for all, so it is the same for each tenant.
    pub(crate) owners: Key,
    /// Shows that an entry was sealed with this key, and with no earlier one of the tenant.
    pub(crate) check: Key,
}

impl EncryptKeys {
    /// Reads the text of a key file. Errors don't repeat what is in it.
    ///
    /// A line is the key for all, in 64 hexadecimal digits; or `tenants` and a key from which those of all tenants grow;
    /// or `tenant`, the SHA-256 of a tenant's name and the tenant's own key; or `store` and the name of the store that
    /// the file is for. Empty lines, and what follows a `#`, count for nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](hybrid_pages::error::Error::InvalidArgument) for any other line, without a key for
    /// all, for two keys for one use, and for one key in two lines: it would not be gone with one of them.
    pub fn parse(text: &str) -> Result<Self> {
        let file = KeyFile::parse(text)?;
        let mut passing = [0; KEY_BYTES];
        random(&mut passing)?;
        let derived = Salt::new(HKDF_SHA256, b"hybrid-pages").extract(&file.main);
        Ok(Self(Arc::new(KeyRing {
            file,
            passing,
            derived,
        })))
    }

    /// A short name of the key for all, by which people and directories tell keys apart: 16 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> String {
        hex(&derive(&self.0.derived, &[b"id"])[..8])
    }

    /// A short name of all that the key file says, comments aside: 16 hexadecimal digits. Engines that share entries
    /// have the same.
    #[must_use]
    pub fn file_id(&self) -> String {
        let file = &self.0.file;
        let mut tenants: Vec<_> = file.tenants.iter().collect();
        tenants.sort_unstable();
        let mut said = blake3::Hasher::new_keyed(&derive(&self.0.derived, &[b"file"]));
        for (name, key) in tenants {
            said.update(name).update(key);
        }
        for line in file.tree.lines() {
            said.update(line.as_bytes()).update(b"\n");
        }
        said.update(b"store ").update(file.store.as_bytes());
        hex(&said.finalize().as_bytes()[..8])
    }

    /// What the key of a tenant without a line comes from: `tenants` lines, or the key for all `alone`.
    #[must_use]
    pub fn tenants_from(&self) -> &'static str {
        if self.0.file.tree.is_empty() {
            "alone"
        } else {
            "tenants"
        }
    }

    /// The identity of encrypted entries: another one for each key and each store. `place` is what all call the store if
    /// the key file does not name it; empty if they may call it differently.
    pub(crate) fn identity(&self, identity: &Identity, place: &str) -> Identity {
        let named = &self.0.file.store;
        let store = if named.is_empty() { place } else { named };
        derive(&self.0.derived, &[b"identity", identity, store.as_bytes()])
    }

    /// The key of the tenant that a namespace belongs to.
    pub(crate) fn tenant(&self, namespace: &[u8]) -> TenantKey {
        let mut name = [0; KEY_BYTES];
        name.copy_from_slice(digest(&SHA256, tenant_of(namespace)).as_ref());
        self.tenant_named(name)
    }

    /// The key of the tenant whose name has this SHA-256.
    pub(crate) fn tenant_named(&self, name: Key) -> TenantKey {
        let (ring, file) = (&*self.0, &self.0.file);
        let own = file.tenants.get(&name).copied();
        let own = own.or_else(|| {
            let grown = || file.tree.leaf(&name);
            let passing = || *blake3::keyed_hash(&ring.passing, &name).as_bytes();
            (!file.tree.is_empty()).then(|| grown().unwrap_or_else(passing))
        });
        let both = own.map(|own| {
            Salt::new(HKDF_SHA256, b"hybrid-pages tenant").extract(&[file.main, own].concat())
        });
        let from = both.as_ref().unwrap_or(&ring.derived);
        let key = derive(from, &[b"tenant", &name]);
        let derived = Prk::new_less_safe(HKDF_SHA256, &key);
        TenantKey {
            name,
            sums: derive(&derived, &[b"sums"]),
            check: derive(&derived, &[b"check"]),
            owners: self.owners(),
            derived,
        }
    }

    /// The key that hides names of tenants.
    pub(crate) fn owners(&self) -> Key {
        derive(&self.0.derived, &[b"owners"])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_file::without_tenant;

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
        assert_eq!(plain.identity(&[1; 32], ""), named.identity(&[1; 32], ""));
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
        let plain = EncryptKeys::parse(MAIN).unwrap();
        let named = EncryptKeys::parse(&format!("{MAIN}\ntenant {NAME} {OTHER}")).unwrap();
        let salt = namespace("salt");
        let own = named.tenant(&salt);
        assert_eq!(plain.id(), "fdf0a73d3b4b9234");
        for (found, expected) in [
            (
                plain.identity(&[1; 32], ""),
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
    fn a_tree_gives_every_tenant_a_key_and_a_destroyed_one_a_passing_key() {
        let text = format!("{MAIN}\ntenants {OTHER}");
        let (plain, grown) = (
            EncryptKeys::parse(MAIN).unwrap(),
            EncryptKeys::parse(&text).unwrap(),
        );
        assert_eq!(plain.id(), grown.id());
        let (salt, other) = (namespace("salt"), namespace("other"));
        let sums = |keys: &EncryptKeys, namespace: &[u8]| keys.tenant(namespace).sums;
        for tenant in [&salt[..], &other, b""] {
            assert_ne!(sums(&plain, tenant), sums(&grown, tenant));
        }
        let mut name = [0; KEY_BYTES];
        name.copy_from_slice(digest(&SHA256, b"salt").as_ref());
        let gone = without_tenant(&text, &name).unwrap();
        let after = EncryptKeys::parse(&gone).unwrap();
        assert_eq!(sums(&after, &other), sums(&grown, &other));
        assert_eq!(sums(&after, b""), sums(&grown, b""));
        assert_ne!(sums(&after, &salt), sums(&grown, &salt));
        assert_eq!(
            sums(&after, &salt),
            sums(&EncryptKeys::parse(&gone).unwrap(), &salt)
        );
        // Without its new line the tenant has a key that nobody can make again.
        let line = |line: &&str| !line.starts_with("tenant ");
        let nobody = gone.lines().filter(line).collect::<Vec<_>>().join("\n");
        let (one, two) = (
            EncryptKeys::parse(&nobody).unwrap(),
            EncryptKeys::parse(&nobody).unwrap(),
        );
        assert_eq!(sums(&one, &salt), sums(&one, &salt));
        assert_ne!(sums(&one, &salt), sums(&two, &salt));
        assert_ne!(sums(&one, &salt), sums(&grown, &salt));
        assert_ne!(sums(&one, &salt), sums(&plain, &salt));
        assert_eq!(sums(&one, &other), sums(&grown, &other));
    }

    #[test]
    fn each_store_has_identities_of_its_own() {
        let named = |name: &str| EncryptKeys::parse(&format!("{MAIN}\nstore {name}")).unwrap();
        let plain = EncryptKeys::parse(MAIN).unwrap();
        let all = [
            plain.identity(&[1; 32], ""),
            named("a").identity(&[1; 32], ""),
            named("b").identity(&[1; 32], ""),
        ];
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        assert_eq!(named("a").identity(&[1; 32], "s3://other"), all[1]);
        assert_eq!(plain.identity(&[1; 32], "a"), all[1]);
        assert_eq!(named("a").id(), plain.id());
        assert_eq!(named("a").tenant(b"").sums, plain.tenant(b"").sums);
    }
}
