//! Submit and reap on the engine `null`, which executes nothing: the cost around an engine.
#![allow(unsafe_code)]

use criterion::{Criterion, Throughput};
use uringlet::front::{Entry, Instance, SubmitSteps};
use uringlet::{Context, Cqe, EngineKind, Sqe};

pub fn submit_and_reap(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("submit and reap, engine null");
    for count in [1, 32] {
        let mut context =
            Context::builder().entries(128).engine(EngineKind::Null).build().expect("a context");
        let mut cqes = [Cqe::default(); 32];
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("{count} at a time"), |bencher| {
            bencher.iter(|| {
                for _ in 0..count {
                    // SAFETY: a nop has no addresses.
                    unsafe { context.push(Sqe::nop()) }.expect("room");
                }
                context.submit().expect("room");
                assert_eq!(context.reap_into(&mut cqes), count);
            });
        });
    }
    let builder = Context::builder().entries(128).engine(EngineKind::Null);
    let instance = Instance::new(&builder).expect("a context");
    let entries = [Entry { sqe: Sqe::nop(), data: 0, notify: -1 }; 32];
    for batch in [1, 32] {
        group.bench_function(format!("32 at a time, slots {batch} at a time"), |bencher| {
            let mut steps = SubmitSteps::default();
            bencher.iter(|| {
                // SAFETY: a nop has no addresses.
                let submitted = unsafe { instance.submit_measured(&entries, batch, &mut steps) };
                assert_eq!((submitted.accepted, instance.reap(32, |_| {})), (32, 32));
            });
        });
    }
    instance.close();
}
