//! The executors of all tests.

use futures::FutureExt as _;
use std::future::Future;
use std::panic::AssertUnwindSafe;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    TokioThreads,
    TokioCurrent,
    Smol,
    LocalPool,
    Pollster,
}

pub(crate) const ALL: [Executor; 5] = [
    Executor::TokioThreads,
    Executor::TokioCurrent,
    Executor::Smol,
    Executor::LocalPool,
    Executor::Pollster,
];

impl Executor {
    /// Runs a future to its end.
    pub(crate) fn run<T: Send + 'static>(
        self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self {
            Self::TokioThreads => {
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
                // The future is a task: the workers poll it, not this thread.
                runtime.block_on(async { tokio::spawn(future).await.unwrap() })
            }
            Self::TokioCurrent => {
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
            }
            Self::Smol => {
                let task = smol::spawn(AssertUnwindSafe(future).catch_unwind());
                // smol's thread may print a panic into the captured output of another test. So this
                // thread panics with the same text.
                smol::block_on(task).unwrap_or_else(|panic| {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    panic!("in a task: {}", text.or(panic.downcast_ref().copied()).unwrap_or("?"))
                })
            }
            Self::LocalPool => futures::executor::LocalPool::new().run_until(future),
            Self::Pollster => pollster::block_on(future),
        }
    }

    pub(crate) fn each(test: impl Fn(Self)) {
        ALL.into_iter().for_each(test);
    }
}
