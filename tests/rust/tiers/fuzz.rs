//! Changed key files and sealed tiles: nothing panics, and a tile opens only as it was sealed.

#[path = "../shared/fuzz.rs"]
mod any;
#[path = "../shared/report.rs"]
mod report;

use hybrid_pages::ids::{EntryKey, PrefixKey};

use crate::{EncryptKeys, Identity, SEAL_BYTES, SealedPlace, Seals, without_tenant};
use any::{Random, fuzz};

const MAIN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const OTHER: &str = "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const TENANT: [u8; 32] = [0x5a; 32];
const IDENTITY: Identity = [9; 32];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn changed_key_files_are_refused_or_lose_a_tenant_cleanly() {
    let third = OTHER.replace("10", "31");
    let corpus = [
        format!("{MAIN}\n"),
        format!("# keys\nstore s3://bucket/a\n{MAIN}\ntenants {OTHER}\r\n"),
        format!(
            "{MAIN}\ntenants {OTHER}\n\ntenant {} {third}\n",
            hex(&TENANT)
        ),
    ];
    let corpus = &corpus.map(String::into_bytes);
    fuzz("key files", 10, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(corpus, &mut bytes);
            let Ok(text) = std::str::from_utf8(&bytes) else {
                return;
            };
            let Ok(keys) = EncryptKeys::parse(text) else {
                return;
            };
            assert_eq!(EncryptKeys::parse(text).unwrap().id(), keys.id());
            if let Ok(rest) = without_tenant(text, &TENANT) {
                let rest = EncryptKeys::parse(&rest);
                assert_eq!(rest.unwrap().id(), keys.id());
            }
        }
    });
}

#[test]
fn changed_tiles_do_not_open() {
    let seals = Seals::new(Some(EncryptKeys::parse(MAIN).unwrap()));
    let key = EntryKey {
        namespace: b"engine"[..].into(),
        prefix: PrefixKey::new(&[3; 32]).unwrap(),
        block_index: 5,
        class_index: 0,
    };
    let seal = seals.entry(&key).1.unwrap();
    let place = SealedPlace {
        identity: &IDENTITY,
        place: [1, 2, 3, 4],
        shard_bytes: 100,
        sums: &[7, 8],
    };
    let lot = seal.lot().unwrap();
    let sealed = [0, 1].map(|rank| {
        let mut bytes = vec![rank as u8; 100 + SEAL_BYTES];
        lot.seal(&place, rank, 0, &mut bytes).unwrap();
        bytes
    });
    let (seal, place, sealed) = (&seal, &place, &sealed);
    fuzz("sealed tiles", 10, || {
        let mut bytes = Vec::new();
        move |random: &mut Random| {
            random.changed(sealed, &mut bytes);
            let rank = random.below(2);
            // The caller knows how many bytes there are: of none, nothing is wrong.
            let same = bytes == sealed[rank] || bytes.is_empty();
            assert_eq!(seal.open(place, rank, 0, &mut bytes), same);
        }
    });
}
