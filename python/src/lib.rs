//! The Python module `uringlet`: a thin interface to the library, in one extension module.
//!
//! Nothing here executes a request. Batches go through a context of the calling thread
//! (`batch.rs`), and awaitables through `uringlet::fs` (`request.rs`). Each context of caio's
//! classes has a context of the library (`caio.rs`).

mod batch;
mod buffer;
mod caio;
mod error;
mod file;
mod gather;
mod loops;
mod many;
mod open;
mod ready;
mod request;
mod whole;

use pyo3::prelude::*;

/// Asynchronous file I/O for Linux in user space: the compiled part of the package.
#[pymodule(gil_used = false)]
fn _uringlet(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(many::read_many, module)?)?;
    module.add_function(wrap_pyfunction!(many::write_many, module)?)?;
    module.add_function(wrap_pyfunction!(gather::gather, module)?)?;
    module.add_class::<file::File>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<caio::Context>()?;
    module.add_class::<caio::Operation>()?;
    module.add("OperationError", caio::operation_error(module.py())?)?;
    Ok(())
}
