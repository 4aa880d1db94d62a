//! A gate that opens when everybody has arrived, or it is known that they will not.

use std::sync::{Condvar, Mutex, PoisonError};

/// Where threads wait for each other once.
#[derive(Default)]
pub struct Gate {
    /// Those that have not arrived.
    missing: Mutex<usize>,
    all_here: Condvar,
}

impl Gate {
    /// For so many.
    pub fn new(threads: usize) -> Self {
        Self { missing: Mutex::new(threads), all_here: Condvar::new() }
    }

    /// The arrival of one thread, which happens when it is dropped: whatever becomes of a thread, the others do not wait
    /// in vain.
    pub fn arrival(&self) -> Arrival<'_> {
        Arrival(self)
    }

    /// So many will not come.
    pub fn without(&self, threads: usize) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        *missing -= threads;
        self.all_here.notify_all();
    }
}

/// Its drop waits for the others.
pub struct Arrival<'a>(&'a Gate);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.without(1);
        let missing = self.0.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.0.all_here.wait_while(missing, |missing| *missing > 0);
        drop(open.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn nobody_passes_before_all_are_here_or_given_up() {
        let gate = Gate::new(4);
        let here = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let arrival = gate.arrival();
                    here.fetch_add(1, Ordering::Relaxed);
                    drop(arrival);
                    assert_eq!(here.load(Ordering::Relaxed), 3);
                });
            }
            gate.without(1);
        });
    }
}
