//! The text of a key file: what its lines say, and how a tenant's key is taken out of it.

use hashbrown::{HashMap, HashSet};
use hybrid_pages::error::{Error, Result};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::key_tree::{KEY_BYTES, Key, KeyNode, KeyTree, hex};

/// Most bytes of the name of a store.
const MOST_STORE: usize = 256;

/// What a key file says.
pub(crate) struct KeyFile {
    /// The key for all.
    pub(crate) main: Key,
    /// Keys of single tenants, by the SHA-256 of the tenant's name.
    pub(crate) tenants: HashMap<Key, Key>,
    /// The keys of all other tenants; empty if only the key for all makes them.
    pub(crate) tree: KeyTree,
    /// The name of the store that the file is for; empty for none.
    pub(crate) store: String,
}

enum KeyLine<'a> {
    Nothing,
    Main(Key),
    Tenant(Key, Key),
    Node(KeyNode),
    Store(&'a str),
}

impl KeyLine<'_> {
    fn key(&self) -> Option<Key> {
        match self {
            Self::Main(key) | Self::Tenant(_, key) => Some(*key),
            Self::Node(node) => Some(node.key()),
            Self::Nothing | Self::Store(_) => None,
        }
    }
}

impl KeyFile {
    /// Reads a text. Errors don't repeat what is in it.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (mut main, mut tenants, mut all) = (None, HashMap::new(), HashSet::new());
        let (mut nodes, mut store) = (Vec::new(), None);
        for (at, line) in text.lines().enumerate() {
            let line = read(line, at)?;
            if line.key().is_some_and(|key| !all.insert(key)) {
                return Err(refused(
                    at,
                    "expected a key that no other line has, found that of a line before: make one with `openssl rand \
                     -hex 32`",
                ));
            }
            let again = match line {
                KeyLine::Nothing => false,
                KeyLine::Main(key) => main.replace(key).is_some(),
                KeyLine::Tenant(name, key) => tenants.insert(name, key).is_some(),
                KeyLine::Node(node) => {
                    nodes.push(node);
                    false
                }
                KeyLine::Store(name) => store.replace(name).is_some(),
            };
            if again {
                return Err(refused(
                    at,
                    "expected one key for all, one for each tenant and one name of a store, found a second one",
                ));
            }
        }
        let main = main.ok_or_else(|| {
            Error::InvalidArgument(
                "encrypt_key: expected a line with a key of 64 hexadecimal digits, found none: make one with \
                 `openssl rand -hex 32`"
                    .into(),
            )
        })?;
        Ok(Self {
            main,
            tenants,
            tree: KeyTree::of(nodes)?,
            store: store.unwrap_or_default().to_owned(),
        })
    }
}

/// The text of a key file without the key of the tenant whose name has this SHA-256: nobody can make it from the new
/// text. All other keys stay, and the tenant gets a new random one.
///
/// # Errors
/// [`Error::InvalidArgument`] for a text that is no key file, and if the tenant's key comes from the key for all alone.
pub fn without_tenant(text: &str, tenant: &[u8; 32]) -> Result<String> {
    drop(KeyFile::parse(text)?);
    let (mut lines, mut found) = (Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        let beside = match read(line, at)? {
            KeyLine::Tenant(name, _) if name == *tenant => Vec::new(),
            KeyLine::Node(node) if node.has(tenant) => node.take(tenant).1,
            _ => {
                lines.push(line.to_owned());
                continue;
            }
        };
        found = true;
        if let Some((_, comment)) = line.split_once('#') {
            lines.push(format!("#{comment}"));
        }
        lines.extend(beside.iter().map(|node| format!("tenants {}", node.line())));
    }
    if !found {
        return Err(Error::InvalidArgument(
            "encrypt_key: expected a line `tenants`, or `tenant` for this one, found neither: the key for all makes this \
             tenant's key, and a line that is added now destroys nothing that was written before: that takes a new key \
             for all"
                .into(),
        ));
    }
    let mut key = [0; KEY_BYTES];
    random(&mut key)?;
    lines.push(format!("tenant {} {}\n", hex(tenant), hex(&key)));
    Ok(lines.join("\n"))
}

/// Fills a key with random bytes of the system.
pub(crate) fn random(key: &mut Key) -> Result<()> {
    let drawn = SystemRandom::new().fill(key);
    drawn.map_err(|_| {
        Error::InvalidArgument(
            "encrypt_key: expected a random number from the system, found none".into(),
        )
    })
}

fn read(line: &str, at: usize) -> Result<KeyLine<'_>> {
    let said = line.split('#').next().unwrap_or_default();
    let words: Vec<&str> = said.split_whitespace().collect();
    let name = |text: &str| digits(text).ok_or_else(|| wrong(at));
    Ok(match words[..] {
        [] => KeyLine::Nothing,
        [key] => KeyLine::Main(sound_key(key, at)?),
        ["tenant", of, key] => KeyLine::Tenant(name(of)?, sound_key(key, at)?),
        ["tenants", key] => KeyLine::Node(KeyNode::root(sound_key(key, at)?)),
        ["tenants", place, key] => {
            let node = KeyNode::at(place, sound_key(key, at)?);
            KeyLine::Node(node.ok_or_else(|| wrong(at))?)
        }
        ["store", name] if name.len() <= MOST_STORE => KeyLine::Store(name),
        _ => return Err(wrong(at)),
    })
}

fn sound_key(text: &str, at: usize) -> Result<Key> {
    let key = digits(text).ok_or_else(|| wrong(at))?;
    if key == [0; KEY_BYTES] {
        return Err(refused(
            at,
            "expected a random key, found zeros: make one with `openssl rand -hex 32`",
        ));
    }
    Ok(key)
}

/// 32 bytes from 64 hexadecimal digits.
fn digits(text: &str) -> Option<Key> {
    let mut key = [0; KEY_BYTES];
    let is_hex = text.len() == 2 * KEY_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
    for (at, byte) in key.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    is_hex.then_some(key)
}

fn wrong(at: usize) -> Error {
    refused(
        at,
        "expected a key of 64 hexadecimal digits, or `tenants` and a key, or `tenant`, the SHA-256 of a cache_salt and \
         a key, or `store` and a name, found something else",
    )
}

fn refused(at: usize, what: &str) -> Error {
    Error::InvalidArgument(format!("encrypt_key: line {}: {what}", at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    const OTHER: &str = "10112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff";
    const ROOT: &str = "20112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    /// The SHA-256 of "salt".
    const NAME: &str = "63479ad69a090b258277ec8fba6f99419a2ffb248981510657c944ccd1148e97";

    #[test]
    fn other_texts_are_refused_without_being_repeated() {
        let zeros = "0".repeat(64);
        let long = "x".repeat(MOST_STORE + 1);
        for (text, expected) in [
            (String::new(), "found none"),
            (format!("{MAIN}\n{OTHER}"), "line 2: expected one key"),
            (
                format!("{MAIN}\ntenant {NAME} {OTHER}\ntenant {NAME} {ROOT}"),
                "line 3",
            ),
            (format!("{MAIN}00"), "line 1"),
            (format!("x{}", &MAIN[1..]), "line 1"),
            (format!("{MAIN}\ntenant salt {OTHER}"), "line 2"),
            (format!("{MAIN}\ntenant {NAME}"), "line 2"),
            (format!("{MAIN}\ntenants {OTHER} {ROOT}"), "line 2"),
            (format!("{MAIN}\ntenants 8/5 {OTHER}"), "line 2"),
            (
                format!("{MAIN}\ntenants {OTHER}\ntenants 8/1 {ROOT}"),
                "for different tenants",
            ),
            (format!("{MAIN}\nstore a\nstore a"), "line 3"),
            (format!("{MAIN}\nstore a b"), "line 2"),
            (format!("{MAIN}\nstore {long}"), "line 2"),
            (format!("{}é", &MAIN[2..]), "line 1"),
            (zeros, "found zeros"),
            (
                format!("{MAIN}\ntenant {NAME} {MAIN}"),
                "line 2: expected a key that no other line has",
            ),
            (
                format!("tenants {OTHER}\n{OTHER}"),
                "line 2: expected a key that no other line has",
            ),
            (
                format!("{MAIN}\ntenant {NAME} {OTHER}\ntenant {MAIN} {OTHER}"),
                "line 3: expected a key that no other line has",
            ),
        ] {
            let error = KeyFile::parse(&text).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("223344"), "{error}");
        }
    }

    #[test]
    fn a_tenant_is_taken_out_and_all_else_stays() {
        let name = digits(NAME).unwrap();
        let text = format!("# ours\n{MAIN} # all\nstore a\ntenants {ROOT} # of this site");
        let before = KeyFile::parse(&text).unwrap();
        let once = without_tenant(&text, &name).unwrap();
        assert!(!once.contains(ROOT) && once.ends_with('\n'));
        assert!(once.starts_with(&format!("# ours\n{MAIN} # all\nstore a\n# of this site\n")));
        let after = KeyFile::parse(&once).unwrap();
        assert_eq!(after.tree.leaf(&name), None);
        let new = after.tenants[&name];
        assert_ne!(Some(new), before.tree.leaf(&name));
        for other in [[0; 32], [0x63; 32], [255; 32]] {
            assert_eq!(after.tree.leaf(&other), before.tree.leaf(&other));
        }
        let twice = without_tenant(&once, &name).unwrap();
        let after = KeyFile::parse(&twice).unwrap();
        assert_ne!(after.tenants[&name], new);
        assert_eq!(
            (after.tenants.len(), twice.len()),
            (1, once.len()),
            "nothing grows"
        );
        // A line goes, and so does what the tenants' line would make in its place.
        let both = format!("{MAIN}\ntenants {ROOT}\ntenant {NAME} {OTHER}");
        let after = without_tenant(&both, &name).unwrap();
        assert!(!after.contains(OTHER) && !after.contains(ROOT));
        let alone = without_tenant(&format!("{MAIN}\ntenant {NAME} {OTHER}"), &name).unwrap();
        assert_eq!(alone.lines().count(), 2);
        let error = without_tenant(MAIN, &name).unwrap_err().to_string();
        assert!(error.contains("expected a line `tenants`"), "{error}");
        assert!(
            error.ends_with(
                "destroys nothing that was written before: that takes a new key for all"
            ),
            "{error}"
        );
        assert!(without_tenant("", &name).is_err());
    }
}
