//! Request slots: taken in batches of 1 and of 32, and given back.

use crate::free::FreeSlots;
use criterion::{Criterion, Throughput};

pub fn slots(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("32 slots taken and given back");
    group.throughput(Throughput::Elements(32));
    for batch in [1, 32] {
        let free = FreeSlots::new(128);
        group.bench_function(format!("{batch} at a time"), |bencher| {
            bencher.iter(|| {
                for _ in 0..32 / batch {
                    let taken = free.take_counted(batch, &mut ());
                    taken.as_slice().iter().for_each(|&slot| free.give(slot));
                }
            });
        });
        // Some slots are held, so a batch may have to be collected from several words.
        let scattered = FreeSlots::new(128);
        let held = [scattered.take_counted(32, &mut ()), scattered.take_counted(32, &mut ())];
        held[0].as_slice().iter().step_by(2).for_each(|&slot| scattered.give(slot));
        group.bench_function(format!("{batch} at a time, among held ones"), |bencher| {
            bencher.iter(|| {
                for _ in 0..32 / batch {
                    let taken = scattered.take_counted(batch, &mut ());
                    taken.as_slice().iter().for_each(|&slot| scattered.give(slot));
                }
            });
        });
    }
}
