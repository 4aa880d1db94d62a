//! Remembered facts about a descriptor's number may cost time, but change no answer and no byte.

mod support;

#[path = "support/reused.rs"]
mod reused;

#[test]
fn numbers_that_are_reused_unseen_answer_as_plain_calls_do() {
    reused::check(&support::library(), &["-laio"], "LIBAIO_EXPECTED");
}
