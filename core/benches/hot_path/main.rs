//! The parts of every request's path, one by one: `cargo bench -p uringlet`.
#![allow(missing_docs)]

mod slots;
mod stats;
mod submit;
mod table;

// The slots are no part of the library's interface, so their file is compiled once more. With
// `cfg(test)` its tests are compiled, too, and nothing runs them here.
#[path = "../../src/request/free.rs"]
#[allow(dead_code, unused_imports)]
mod free;
#[path = "../../src/sync.rs"]
#[allow(dead_code, unused_imports)]
mod sync;

criterion::criterion_group!(
    benches,
    table::lookups,
    slots::slots,
    submit::submit_and_reap,
    stats::counting
);
criterion::criterion_main!(benches);
