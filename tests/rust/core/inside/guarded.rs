//! Who comes next where several wait.

use super::*;

#[test]
fn whoever_waits_comes_before_the_one_who_has_just_had_it() {
    for _ in 0..100 {
        let guarded = Guarded::new(Vec::new());
        std::thread::scope(|scope| {
            let other = guarded.with(|_| {
                let other = scope.spawn(|| guarded.with(|order| order.push("other")));
                // It has the place of the next one when it waits.
                while guarded.next.try_lock().is_ok() {
                    std::thread::yield_now();
                }
                other
            });
            assert_eq!(guarded.with_again(|order| order.push("first")), Ok(()));
            assert_eq!(other.unwrap().join().unwrap(), Ok(()));
        });
        let order = guarded.with(|order| order.clone());
        assert_eq!(order, Ok(vec!["other", "first"]));
    }
}
