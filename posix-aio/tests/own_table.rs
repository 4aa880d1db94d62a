//! Threads that have a descriptor table of their own. The C library executes their requests in
//! threads with another table, and so may read other files than the program means.

#[path = "../../libaio/tests/support/environment.rs"]
mod environment;
#[path = "../../libaio/tests/support/mod.rs"]
mod support;

#[test]
fn a_thread_with_a_table_of_its_own_is_refused_and_the_others_are_not() {
    let manifest = env!("CARGO_MANIFEST_DIR");
    let library = support::library();
    let program = environment::Program::new("own_table", manifest, &library, "libposix_aio.so");
    let part = |name: &str| {
        format!(
            "{name}, other bytes than those of its file: 0\n\
             {name}, all of them right or all refused: yes\n\
             {name}, the others: 0 wrong, 0 refused, 0 failed\n"
        )
    };
    let expected = [
        "unshare by the only thread: 0\n".into(),
        part("unshare"),
        "a wait for what was in flight: -EINVAL\na cancel of it: -EINVAL\nits state: 115\n".into(),
        part("unshare with a request in flight"),
        part("unshare, a thread of that thread"),
        part("close_range"),
        "what was in flight: 1 x\n".into(),
    ];
    assert_eq!(program.answers(), expected.concat());
}
