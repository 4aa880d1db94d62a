//! The cost of adding to a completion list, compared with that of a vector behind a mutex. The
//! publication (Linux block layer, 2008) left this question open.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use uringlet::list::{Chain, CompletionList, Node, Owner};

/// Completions in a batch; a thread adds one batch after the other.
const BATCH: usize = 32;

/// Nanoseconds that the adding threads spend on each item. Their waits for each other count, the
/// drain does not.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ListCost {
    /// Threads that added.
    pub producers: usize,
    /// A list as the completion threads use it: nanoseconds for each item.
    pub list_ns: f64,
    /// A vector behind a mutex that is taken once for each batch.
    pub mutex_ns: f64,
    /// The vector with the mutex taken once for each item, as published.
    pub mutex_per_item_ns: f64,
}

/// A completion on a list: owner, number, and result.
type Item = [u64; 3];

/// Measures the three costs, one after the other, for the duration `each`. Meanwhile `producers`
/// threads add batches of 32, and one thread drains. Keeps `producers + 1` CPUs busy.
pub fn compare_lists(producers: usize, each: Duration) -> ListCost {
    let (list, queue) = (CompletionList::<Item>::new(), Mutex::new(Vec::new()));
    list.drain(|_| ());
    let drain_list = |free: &mut dyn FnMut(Item)| list.drain(free);
    let mut taken: Vec<Item> = Vec::with_capacity(8 * BATCH);
    let mut drain_queue = |free: &mut dyn FnMut(Item)| {
        std::mem::swap(&mut *lock(&queue), &mut taken);
        let count = taken.len();
        taken.drain(..).for_each(free);
        count
    };
    let add_list = |nodes: &[Node<Item>], items: &[Item]| {
        let mut chain = Chain::new();
        for (node, &item) in nodes.iter().zip(items) {
            // SAFETY: each node belongs to one producer, which uses it again or drops it only after
            // all its nodes were drained.
            unsafe { chain.add(node, item) };
        }
        assert_ne!(list.add(chain), Owner::Gone);
    };
    let add_batch = |_: &[Node<Item>], items: &[Item]| lock(&queue).extend_from_slice(items);
    let add_each = |_: &[Node<Item>], items: &[Item]| {
        items.iter().for_each(|&item| lock(&queue).push(item));
    };
    ListCost {
        producers,
        list_ns: measure(producers, each, &add_list, &mut { drain_list }),
        mutex_ns: measure(producers, each, &add_batch, &mut drain_queue),
        mutex_per_item_ns: measure(producers, each, &add_each, &mut drain_queue),
    }
}

fn lock<T>(queue: &Mutex<T>) -> MutexGuard<'_, T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

type Add<'a> = dyn Fn(&[Node<Item>], &[Item]) + Sync + 'a;
type Drain<'a> = dyn FnMut(&mut dyn FnMut(Item)) -> usize + 'a;

/// The number of batches that a producer adds before it waits until they are drained.
const ROUND: usize = 8;

fn measure(producers: usize, each: Duration, add: &Add<'_>, drain: &mut Drain<'_>) -> f64 {
    let stop = AtomicBool::new(false);
    let (ns, items) = (AtomicU64::new(0), AtomicU64::new(0));
    let drained: Vec<AtomicU64> = (0..producers).map(|_| AtomicU64::new(0)).collect();
    let running = AtomicU64::new(producers as u64);
    let start = Barrier::new(producers + 1);
    std::thread::scope(|scope| {
        for producer in 0..producers {
            let (stop, ns, items, drained, running, start) =
                (&stop, &ns, &items, &drained[producer], &running, &start);
            scope.spawn(move || {
                let nodes: Vec<Node<Item>> = (0..ROUND * BATCH).map(|_| Node::new()).collect();
                let batch = [[producer as u64, 1, 2]; BATCH];
                let (mut spent, mut added) = (Duration::ZERO, 0);
                start.wait();
                // Each thread adds once at least, however late it gets a CPU.
                loop {
                    let begin = Instant::now();
                    nodes.chunks(BATCH).for_each(|nodes| add(nodes, &batch));
                    spent += begin.elapsed();
                    added += (ROUND * BATCH) as u64;
                    while drained.load(Ordering::Acquire) < added {
                        std::thread::yield_now();
                    }
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                ns.fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
                items.fetch_add(added, Ordering::Relaxed);
                running.fetch_sub(1, Ordering::Release);
            });
        }
        start.wait();
        let begin = Instant::now();
        let mut counts = vec![0u64; producers];
        while running.load(Ordering::Acquire) > 0 {
            let any = drain(&mut |item: Item| counts[item[0] as usize] += 1);
            if any == 0 {
                std::thread::yield_now();
            }
            for (count, drained) in counts.iter_mut().zip(&drained) {
                drained.fetch_add(std::mem::take(count), Ordering::Release);
            }
            if begin.elapsed() > each {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
    ns.into_inner() as f64 / items.into_inner().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::compare_lists;
    use std::time::Duration;

    #[test]
    fn every_way_of_adding_is_measured() {
        let cost = compare_lists(2, Duration::from_millis(5));
        assert!(cost.list_ns > 0.0 && cost.mutex_ns > 0.0 && cost.mutex_per_item_ns > 0.0);
    }
}
