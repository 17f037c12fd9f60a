//! Transfers: how they end, and what waits for them.
#![cfg(target_os = "linux")]

use crate::transfer_plain;
use crate::transfer_support;

use std::time::Duration;

use hybrid_pages::error::Error;
use hybrid_pages::ids::SlotId;
use hybrid_pages::transfer::{Direction, Engine, Ticket};
use transfer_plain::{Plain, argument_error};
use transfer_support::{entry, expecting, run};

#[test]
fn tickets_end_once_and_can_be_waited_for_again() {
    let plain = Plain::new(10, 4, 8, 2);
    let first = plain
        .engine
        .submit(Direction::Store, vec![entry(0, &[0, 1, 2], &[0])])
        .unwrap();
    let empty = plain.engine.submit(Direction::Load, vec![]).unwrap();
    assert!(first < empty);
    assert!(plain.engine.wait(first, None).unwrap());
    assert!(
        plain
            .engine
            .wait(empty, Some(Duration::from_secs(60)))
            .unwrap()
    );
    let mut ended = plain.engine.poll();
    ended.sort_by_key(|completion| completion.ticket);
    let seen: Vec<_> = ended
        .iter()
        .map(|c| (c.ticket, c.error.is_none(), c.bytes))
        .collect();
    assert_eq!(seen, [(first, true, 10), (empty, true, 0)]);
    assert!(ended[0].seconds >= 0.0);
    assert_eq!(plain.engine.poll(), []);
    assert_eq!(plain.engine.in_flight(), 0);
    assert!(plain.engine.wait(first, Some(Duration::ZERO)).unwrap());
    assert!(plain.engine.wait(first, Some(Duration::MAX)).unwrap());
    for unknown in [Ticket(0), Ticket(3)] {
        argument_error(plain.engine.wait(unknown, None));
    }
}

#[test]
fn a_wait_copies_and_one_that_ends_early_leaves_the_rest_to_the_threads() {
    const BYTES: usize = 4 << 20;
    let plain = Plain::new(BYTES, BYTES, Plain::BLOCKS, 1);
    let blocks = || 0..Plain::BLOCKS;
    for timeout in [Duration::ZERO, Duration::from_micros(300), Duration::MAX] {
        let go = |direction, entries| {
            let ticket = plain.engine.submit(direction, entries).unwrap();
            let ended = plain.engine.wait(ticket, Some(timeout)).unwrap();
            assert!(ended || timeout < Duration::MAX);
            assert!(plain.engine.wait(ticket, None).unwrap());
            let done = plain.engine.poll().remove(0);
            assert_eq!((done.ticket, done.error), (ticket, None));
            done.checksums
        };
        let mut before = plain.memory.bytes();
        let stores = blocks().map(|block| entry(0, &[block as u32], &[block]));
        let sums = go(Direction::Store, stores.collect());
        let loads = std::iter::zip(blocks(), sums).map(|(block, sum)| {
            let next = (block + 1) % Plain::BLOCKS;
            expecting(entry(0, &[block as u32], &[next]), sum)
        });
        go(Direction::Load, loads.collect());
        before.rotate_right(BYTES);
        assert!(plain.memory.bytes() == before);
    }
}

#[test]
fn closing_waits_for_what_is_in_flight_and_refuses_more() {
    let plain = Plain::new(1 << 20, 1 << 16, 64, 2);
    let slots: Vec<u32> = (0..64).collect();
    let store = |i: usize| entry(0, &slots[16 * i..][..16], &[i]);
    for i in 0..4 {
        plain
            .engine
            .submit(Direction::Store, vec![store(i)])
            .unwrap();
    }
    plain.engine.close();
    assert_eq!(plain.engine.in_flight(), 0);
    let ended = plain.engine.poll();
    assert!(ended.len() == 4 && ended.iter().all(|c| c.error.is_none()));
    plain.engine.close();
    let refused = plain.engine.submit(Direction::Store, vec![store(0)]);
    assert!(matches!(refused, Err(Error::Transfer(why)) if why.contains("closed")));
    assert!(plain.engine.wait(ended[0].ticket, None).unwrap());
}

#[test]
fn dropping_an_engine_waits_for_its_copies() {
    let Plain {
        engine,
        arena,
        memory,
    } = Plain::new(1 << 20, 1 << 20, 4, 2);
    for i in 0..4 {
        engine
            .submit(Direction::Store, vec![entry(0, &[i], &[i as usize])])
            .unwrap();
    }
    drop(engine);
    let stored: Vec<u8> = (0..4)
        .flat_map(|slot| arena.read(SlotId(slot)).unwrap())
        .collect();
    assert!(stored == memory.bytes());
}

#[test]
fn an_engine_keeps_its_arena_mapped() {
    let Plain {
        engine,
        arena,
        memory,
    } = Plain::new(1 << 16, 1 << 16, 4, 1);
    drop(arena);
    assert_eq!(
        run(&engine, Direction::Store, vec![entry(0, &[3], &[2])]).error,
        None
    );
    assert_eq!(
        run(&engine, Direction::Load, vec![entry(0, &[3], &[0])]).error,
        None
    );
    drop(engine);
    let bytes = memory.bytes();
    assert!(bytes[..1 << 16] == bytes[2 << 16..3 << 16]);
}

#[test]
fn transfers_of_many_threads_end_each_once() {
    let plain = Plain::new(4096, 1024, 4 * 8, 3);
    let done = std::thread::scope(|scope| {
        let submit = |thread: u32| {
            let engine = &plain.engine;
            move || {
                let slots: Vec<u32> = (0..4).map(|i| 4 * thread + i).collect();
                let block = thread as usize % Plain::BLOCKS;
                let store = || vec![entry(0, &slots, &[block])];
                (0..50)
                    .map(|_| {
                        let ticket = engine.submit(Direction::Store, store()).unwrap();
                        assert!(engine.wait(ticket, None).unwrap());
                        ticket
                    })
                    .collect::<Vec<_>>()
            }
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(submit(thread))).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    let mut ended: Vec<_> = plain.engine.poll().into_iter().map(|c| c.ticket).collect();
    ended.sort_unstable();
    let mut done = done;
    done.sort_unstable();
    assert_eq!(ended, done);
    assert_eq!(ended, (1..=400).map(Ticket).collect::<Vec<_>>());
}
