//! The calls that end the life of a descriptor number: requests that still wait for it come first.

uringlet::see_descriptors_end!(crate::handle::before_close);
