//! One suite for every engine.
#![allow(unsafe_code)]

mod common;

mod bad_input;
mod matrix;
mod operations;
mod promises;
mod random_programs;
mod stress;
mod twins;
