//! A list of completions: any thread adds with one atomic step, and one thread takes all of them.
//!
//! One word, the head, is the top of the list, or the owner's state: `AWAKE`, `ASLEEP`, or `GONE`
//! (the list has no owner). So the thread that adds learns in the same step whether it has to wake
//! or make the owner. No other thread learns it.
//!
//! | step | from | to | by |
//! |---|---|---|---|
//! | add | any | the chain's newest node, above the old nodes | any thread |
//! | drain | any | `AWAKE` | the owner, which takes all nodes |
//! | doze | `AWAKE` | `ASLEEP` | the owner, which found nothing |
//! | retire | `ASLEEP` | `GONE` | the owner, at the end of a long sleep |
//! | leave | `AWAKE` | `GONE` | an owner without a thread of its own, which found nothing |
//!
//! Doze and add change the same word, one after the other. Either the add finds `ASLEEP` and wakes
//! the owner, or the doze finds the node and fails. The list is only taken as a whole, so a node
//! cannot leave and return while an add is under way.
#![allow(unsafe_code)]
// Nothing would use a `Default` of these types.
#![allow(clippy::new_without_default)]

use std::marker::PhantomData;
use std::ptr::{null_mut, without_provenance_mut};
use std::time::Duration;

use crate::queue::{Sleep, SleepEnd};
use crate::sync::{AtomicPtr, Ordering, UnsafeCell};

/// A node of a list, and its item while it is on one.
#[derive(Debug)]
pub struct Node<T> {
    /// The node that was added before this one.
    below: UnsafeCell<*mut Node<T>>,
    item: UnsafeCell<Option<T>>,
}

// SAFETY: until a node is on a list, only the thread that adds it accesses the fields. From then
// on, only the list's owner does.
unsafe impl<T: Send> Send for Node<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Node<T> {}

impl<T> Node<T> {
    /// A node on no list.
    pub fn new() -> Self {
        Self { below: UnsafeCell::new(null_mut()), item: UnsafeCell::new(None) }
    }
}

/// Nodes that are added to a list together.
#[derive(Debug)]
pub struct Chain<T> {
    newest: *mut Node<T>,
    oldest: *mut Node<T>,
}

impl<T> Chain<T> {
    /// An empty chain.
    pub fn new() -> Self {
        Self { newest: null_mut(), oldest: null_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_null()
    }

    /// Adds a node at the end.
    ///
    /// # Safety
    /// The node belongs to the caller alone: it is on no list and no other chain. It is not moved
    /// until the list that the chain is added to has returned its item.
    #[inline]
    pub unsafe fn add(&mut self, node: &Node<T>, item: T) {
        // SAFETY: the node belongs to the caller alone.
        node.item.with_mut(|at| unsafe { *at = Some(item) });
        // SAFETY: as above.
        node.below.with_mut(|at| unsafe { *at = self.newest });
        self.newest = std::ptr::from_ref(node).cast_mut();
        if self.oldest.is_null() {
            self.oldest = self.newest;
        }
    }
}

/// The state of a list's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The owner checks the list before it sleeps.
    Awake,
    /// The owner has to be woken, with `CompletionList::wake`.
    Asleep,
    /// There is no owner: the thread that gets this answer becomes the owner, or makes one.
    Gone,
}

/// The list of completions.
///
/// The list gives items to other threads, so they have to be `Send`:
///
/// ```compile_fail,E0277
/// fn is_shared<T: Sync>(_: T) {}
/// is_shared(uringlet::list::CompletionList::<std::rc::Rc<u32>>::new());
/// ```
#[derive(Debug)]
pub struct CompletionList<T> {
    head: AtomicPtr<Node<T>>,
    sleep: Sleep,
    /// The list moves items to other threads, as a node does.
    items: PhantomData<Node<T>>,
}

const fn awake<T>() -> *mut Node<T> {
    null_mut()
}

fn asleep<T>() -> *mut Node<T> {
    without_provenance_mut(1)
}

fn gone<T>() -> *mut Node<T> {
    without_provenance_mut(2)
}

fn is_node<T>(head: *mut Node<T>) -> bool {
    // No node has such a small address.
    head.addr() > 2
}

impl<T> CompletionList<T> {
    /// An empty list without an owner.
    pub fn new() -> Self {
        Self { head: AtomicPtr::new(gone()), sleep: Sleep::new(), items: PhantomData }
    }

    /// Adds a chain that is not empty, with one atomic step. The caller handles the owner's state
    /// that this returns.
    #[inline]
    #[must_use]
    pub fn add(&self, chain: Chain<T>) -> Owner {
        assert!(!chain.is_empty(), "something to add");
        // SAFETY: the chain's nodes belong to this thread until the exchange below.
        let oldest = unsafe { &(*chain.oldest).below };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let below = if is_node(head) { head } else { null_mut() };
            // SAFETY: as above.
            oldest.with_mut(|at| unsafe { *at = below });
            // Release: the owner sees the nodes of the chain. It sees the nodes below through the
            // earlier exchanges of this word, which have added them.
            match self.head.compare_exchange_weak(
                head,
                chain.newest,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) if head == asleep() => return Owner::Asleep,
                Ok(_) if head == gone() => return Owner::Gone,
                Ok(_) => return Owner::Awake,
                Err(now) => head = now,
            }
        }
    }

    /// The owner takes all nodes, oldest first. Each node is free again when its item was passed to
    /// `take`. Returns the number of nodes. The owner is awake afterwards.
    pub fn drain(&self, mut take: impl FnMut(T)) -> usize {
        // Acquire: the owner sees what the adders have written into the nodes.
        let mut top = self.head.swap(awake(), Ordering::Acquire);
        if !is_node(top) {
            return 0;
        }
        let mut oldest = null_mut();
        while !top.is_null() {
            // SAFETY: after the exchange, the nodes of the list belong to this thread, its owner.
            let node = unsafe { &*top };
            // SAFETY: as above.
            let below = node.below.with_mut(|at| unsafe { std::mem::replace(&mut *at, oldest) });
            (oldest, top) = (top, below);
        }
        let mut count = 0;
        while !oldest.is_null() {
            // SAFETY: as above.
            let node = unsafe { &*oldest };
            // The link is read first: once its item was given out, the node may be on a list again.
            // SAFETY: as above.
            oldest = node.below.with(|at| unsafe { *at });
            // SAFETY: as above.
            let item = node.item.with_mut(|at| unsafe { (*at).take() });
            take(item.expect("a node on a list has an item"));
            count += 1;
        }
        count
    }

    /// For the owner, when it has found nothing: sleeps until a node is added, at most `timeout`.
    /// False: the time is over, and this thread is no longer the owner.
    pub(crate) fn rest(&self, timeout: Option<Duration>) -> bool {
        if !self.step(awake(), asleep()) {
            return true;
        }
        loop {
            // Each round takes a new ticket before it reads the head, because a wake for an earlier
            // add may come late.
            let ticket = self.sleep.ticket();
            if self.head.load(Ordering::Relaxed) != asleep() {
                return true;
            }
            let over = self.sleep.sleep(ticket, timeout, true) == SleepEnd::TimedOut;
            if over && self.step(asleep(), gone()) {
                return false;
            }
        }
    }

    /// For an owner without a thread of its own: gives the list up. False: a node was added.
    pub(crate) fn leave(&self) -> bool {
        self.step(awake(), gone())
    }

    fn step(&self, from: *mut Node<T>, to: *mut Node<T>) -> bool {
        // Release: a thread that reads this state may use a node again. It sees that the owner has
        // finished with the node.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.head.compare_exchange(from, to, success, failure).is_ok()
    }

    /// Wakes the owner. The caller has added a node while the owner was asleep.
    pub(crate) fn wake(&self) {
        self.sleep.change();
        self.sleep.wake_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Chain, CompletionList, Node, Owner};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    fn add(list: &CompletionList<u64>, nodes: &[Node<u64>], items: &[u64]) -> Owner {
        let mut chain = Chain::new();
        for (node, &item) in nodes.iter().zip(items) {
            // SAFETY: the tests use each node once, or again after it was drained.
            unsafe { chain.add(node, item) };
        }
        list.add(chain)
    }

    fn drain(list: &CompletionList<u64>) -> Vec<u64> {
        let mut items = Vec::new();
        list.drain(|item| items.push(item));
        items
    }

    #[test]
    fn chains_are_drained_in_the_order_in_which_they_were_added() {
        let list = CompletionList::new();
        let nodes: Vec<Node<u64>> = (0..5).map(|_| Node::new()).collect();
        for lap in 0..3u64 {
            let owner = add(&list, &nodes[..3], &[lap, lap + 1, lap + 2]);
            assert_eq!(owner, if lap == 0 { Owner::Gone } else { Owner::Awake });
            assert_eq!(add(&list, &nodes[3..], &[7, 8]), Owner::Awake);
            assert_eq!(drain(&list), [lap, lap + 1, lap + 2, 7, 8]);
            assert!(drain(&list).is_empty());
        }
        assert!(list.leave() && !list.leave());
        assert_eq!(add(&list, &nodes[..1], &[1]), Owner::Gone);
        assert!(!list.leave(), "something was added");
    }

    #[test]
    #[cfg_attr(miri, ignore = "futex(2) is inline assembly here, which Miri does not execute")]
    fn an_owner_that_nobody_wakes_is_gone_after_its_sleep() {
        let list = CompletionList::<u64>::new();
        assert!(drain(&list).is_empty());
        assert!(!list.rest(Some(Duration::from_millis(1))));
        let node = [Node::new()];
        assert_eq!(add(&list, &node, &[1]), Owner::Gone);
        assert!(list.rest(None), "does not sleep where something is");
    }

    #[test]
    #[cfg_attr(miri, ignore = "futex(2) is inline assembly here, which Miri does not execute")]
    fn nothing_is_lost_and_the_owner_sleeps_in_between() {
        const EACH: u64 = 20_000;
        let (list, sum) = (CompletionList::<u64>::new(), AtomicU64::new(0));
        let nodes: Vec<Vec<Node<u64>>> =
            (0..3).map(|_| (0..EACH).map(|_| Node::new()).collect()).collect();
        list.drain(|_| ());
        std::thread::scope(|scope| {
            for nodes in &nodes {
                scope.spawn(|| {
                    for nodes in nodes.chunks(7) {
                        let items: Vec<u64> = nodes.iter().map(|_| 1).collect();
                        if add(&list, nodes, &items) == Owner::Asleep {
                            list.wake();
                        }
                    }
                });
            }
            while sum.load(Ordering::Relaxed) < 3 * EACH {
                let add = |item| {
                    sum.fetch_add(item, Ordering::Relaxed);
                };
                if list.drain(add) == 0 {
                    list.rest(None);
                }
            }
        });
        assert_eq!(sum.into_inner(), 3 * EACH);
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    //! A failure would be: an item missing or twice, a node that two threads use, or an owner that
    //! sleeps although a node is on its list (loom reports a deadlock).

    use super::{Chain, CompletionList, Node, Owner, asleep, awake};
    use crate::sync::{AtomicBool, Ordering};
    use loom::sync::Arc;
    use loom::thread;

    struct Model {
        list: CompletionList<u32>,
        nodes: [Node<u32>; 3],
    }

    impl Model {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                list: CompletionList::new(),
                nodes: [Node::new(), Node::new(), Node::new()],
            })
        }

        fn add(&self, items: &[u32]) -> Owner {
            let mut chain = Chain::new();
            for &item in items {
                // SAFETY: each model adds a node once, or again after it was drained.
                unsafe { chain.add(&self.nodes[item as usize], item) };
            }
            let owner = self.list.add(chain);
            if owner == Owner::Asleep {
                self.list.wake();
            }
            owner
        }

        /// Drains and sleeps until this many items have come.
        fn own(&self, count: usize) -> Vec<u32> {
            let mut seen = Vec::new();
            while seen.len() < count {
                if self.list.drain(|item| seen.push(item)) == 0 {
                    self.list.rest(None);
                }
            }
            seen
        }
    }

    #[test]
    fn loom_a_sleeping_owner_gets_every_item_once_and_in_order() {
        loom::model(|| {
            let model = Model::new();
            model.list.drain(|_| ());
            let other = Arc::clone(&model);
            let first = thread::spawn(move || other.add(&[0, 1]));
            let other = Arc::clone(&model);
            let second = thread::spawn(move || other.add(&[2]));
            let seen = model.own(3);
            first.join().unwrap();
            second.join().unwrap();
            let at = |item| seen.iter().position(|&seen| seen == item).unwrap();
            assert!(at(0) < at(1), "the order of a chain");
            at(2);
        });
    }

    #[test]
    fn loom_one_of_those_that_find_no_owner_becomes_it() {
        loom::model(|| {
            let model = Model::new();
            let serve = |model: &Model, items: &[u32]| {
                let mut served = 0;
                if model.add(items) == Owner::Gone {
                    loop {
                        served += model.list.drain(|_| ());
                        if model.list.leave() {
                            break;
                        }
                    }
                }
                served
            };
            let other = Arc::clone(&model);
            let first = thread::spawn(move || serve(&other, &[0]));
            let mine = serve(&model, &[1, 2]);
            assert_eq!(first.join().unwrap() + mine, 3);
        });
    }

    #[test]
    fn loom_a_node_may_be_added_again_as_soon_as_its_item_is_given_out() {
        loom::model(|| {
            let model = Model::new();
            model.list.drain(|_| ());
            model.add(&[0, 1]);
            let free = Arc::new(AtomicBool::new(false));
            let (other, given) = (Arc::clone(&model), Arc::clone(&free));
            let owner = thread::spawn(move || {
                other.list.drain(|item| {
                    if item == 0 {
                        given.store(true, Ordering::Release);
                    }
                })
            });
            let again = free.load(Ordering::Acquire);
            if again {
                model.add(&[0]);
            }
            let drained = owner.join().unwrap() + model.list.drain(|_| ());
            assert_eq!(drained, 2 + usize::from(again));
        });
    }

    /// Canary: an owner that stores `ASLEEP` instead of exchanging it misses a node that was added
    /// meanwhile.
    #[test]
    #[should_panic(expected = "lost")]
    fn loom_canary_dozing_by_store_loses_what_was_added() {
        loom::model(|| {
            let model = Model::new();
            model.list.drain(|_| ());
            let other = Arc::clone(&model);
            let adder = thread::spawn(move || other.add(&[0]));
            if model.list.head.load(Ordering::Relaxed) == awake() {
                model.list.head.store(asleep(), Ordering::Release);
            }
            adder.join().unwrap();
            assert_eq!(model.list.drain(|_| ()), 1, "lost");
        });
    }
}
