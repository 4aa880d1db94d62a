//! The header's structures have the sizes and offsets of the library's.

use std::mem::{offset_of, size_of};

use uringlet::{Cqe, ENTRIES_MAX, Sqe};
use uringlet_capi::{Handler, Options, Range, Stats, VERSION};

use crate::support::{finished, program};

/// The size of the field that a function returns.
fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! lines {
    ($lines:ident, $type:ident as $name:literal: $($field:ident)*) => {
        $lines.push(format!("{} {}", $name, size_of::<$type>()));
        $($lines.push(format!(
            "{}.{} {} {}",
            $name,
            stringify!($field),
            offset_of!($type, $field),
            size_of_field(|value: &$type| &value.$field),
        ));)*
    };
}

#[test]
fn structures_have_the_same_layout() {
    let mut lines = Vec::new();
    lines!(lines, Sqe as "uringlet_sqe": opcode flags ioprio fd off addr len op_flags user_data
        buf_index personality file_index addr3 pad);
    lines!(lines, Cqe as "uringlet_cqe": user_data res flags);
    lines!(lines, Options as "uringlet_options": size entries workers engine flags reserved);
    lines!(lines, Range as "uringlet_range": fd res off buf len);
    lines!(lines, Handler as "uringlet_handler": done);
    lines!(lines, Stats as "uringlet_stats": size submitted reads writes fsyncs polls others
        canceled errors bytes_read bytes_written by_program by_threads by_kernel);
    lines.push(format!("VERSION {VERSION}"));
    lines.push(format!("ENTRIES_MAX {ENTRIES_MAX}"));
    lines.push("WITH_STATS 1".to_owned());
    let at_position = u8::from(uringlet::FILE_POSITION == u64::MAX);
    lines.push(format!("FILE_POSITION {at_position}"));
    let text = finished("layout", &program("tests/c/layout.c").output().expect("timeout(1)"));
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
}
