//! The tests of the disk tier, in one binary. What needs a process of its own has a binary of its own.

mod damage;
mod disk;
mod door;
mod encrypted;
mod faults;
mod learnt;
mod marker;
mod model;
mod month;
mod places;
mod quota;
mod slow;
mod starts;
mod support;
mod tree;
