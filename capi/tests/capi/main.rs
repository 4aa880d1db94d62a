//! The C interface as a C program finds it: installed by `install.sh`.

mod examples;
mod headers;
mod install;
mod layout;
mod manual;
mod programs;
mod support;
mod symbols;
