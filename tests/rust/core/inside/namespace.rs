//! Namespaces when their numbers run out, and their memory.

use super::*;

#[test]
fn when_all_numbers_were_given_new_identities_are_refused_and_known_ones_found() {
    let mut namespaces = Namespaces {
        given: u64::from(u32::MAX),
        ..Namespaces::default()
    };
    let last = namespaces.intern(b"last", b"").unwrap();
    assert_eq!(last, NamespaceId(u32::MAX));
    assert_eq!(namespaces.intern(b"last", b""), Ok(last));
    for _ in 0..2 {
        let refused = namespaces.intern(b"one more", b"");
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
    // Not even a freed number is given again.
    for _ in 0..2 {
        assert_eq!(namespaces.release(last), Ok(()));
    }
    assert!(namespaces.check(last).is_err());
    assert!(namespaces.intern(b"last", b"").is_err());
    assert_eq!(namespaces.audit(&HashMap::new()), None);
}

#[test]
fn what_the_tables_grew_to_is_given_back() {
    let mut namespaces = Namespaces::default();
    let ids: Vec<_> = (0..10_000_u32)
        .map(|number| namespaces.intern(&number.to_le_bytes(), b"").unwrap())
        .collect();
    let grown = namespaces.bytes();
    for id in ids {
        assert_eq!(namespaces.release(id), Ok(()));
    }
    assert!(namespaces.bytes() < grown / 50);
}
