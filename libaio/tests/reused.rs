//! The library remembers facts about a descriptor's number. A fact that is no longer true may cost
//! time, but changes no answer and no byte.

mod support;

#[path = "support/reused.rs"]
mod reused;

#[test]
fn numbers_that_are_reused_unseen_answer_as_plain_calls_do() {
    reused::check(&support::library(), &["-laio"], "LIBAIO_EXPECTED");
}
