//! A lookup in a table of handles (`uringlet::table`): one value, many in turn, and a handle
//! without a value.
#![allow(unsafe_code)]

use criterion::Criterion;
use std::hint::black_box;
use uringlet::table::{PAGE, Pages, Table};

/// A table of this many values, and their pages.
fn filled(count: u64) -> (Table<u64>, Vec<Pages>) {
    let table = Table::new().expect("address space");
    let pages: Vec<Pages> = (0..count)
        .map(|value| {
            let pages = table.allocate(PAGE).expect("a page");
            // SAFETY: pages of this table, published at once.
            unsafe { table.publish_at(pages.address(), Box::new(value)) };
            pages
        })
        .collect();
    (table, pages)
}

pub fn lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table lookup");
    for count in [1, 64, 4096] {
        let (table, pages) = filled(count);
        // The counts are powers of two, so an odd stride visits every handle, and never two
        // neighbours in a row.
        let mut at = 0;
        group.bench_function(format!("one of {count}"), |bencher| {
            bencher.iter(|| {
                at = (at + 1237) % pages.len();
                table.get(black_box(pages[at].address())).is_some()
            });
        });
        group.bench_function(format!("none of {count}"), |bencher| {
            let forged = pages[0].address() + 8;
            bencher.iter(|| table.get(black_box(forged)).is_some());
        });
        for pages in pages {
            table.remove(pages.address(), |_| {});
            // SAFETY: the pages are of this table, and nothing is published there any more.
            unsafe { table.free(pages) };
        }
    }
}
